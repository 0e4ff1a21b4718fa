"""Pictures of the page for the documents: a running, a stalled and a failed job of 8 ranks.

PYTHONPATH=tests python -m support.page_pictures docs/figures
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from allhands.testing.daemon import DaemonProcess, run_daemon
from programs import pictured
from support.browser import explain_missing, open_browser
from support.ranks.launchers import COMMAND, as_script

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PATIENCE = 60_000  # milliseconds
_SHOWN = {
    "run": "#rate .u-over",
    "stall": "#rank-stack:has-text('load_batch')",
    "fail": "#calls .bar.is-broken",
}
"""What a picture waits for, by the fate of its job."""


def main(folder: Path) -> None:
    """Take the pictures into a folder."""
    if problem := explain_missing():
        sys.exit(problem)
    folder.mkdir(exist_ok=True)
    with open_browser() as browser:
        for fate in _SHOWN:
            with (
                tempfile.TemporaryDirectory() as runtime,
                run_daemon(Path(runtime), "--http", "127.0.0.1:0") as daemon,
            ):
                _take(browser, daemon, fate, folder / f"page_{fate}.png")


def _take(browser: "Browser", daemon: DaemonProcess, fate: str, file: Path) -> None:
    options = ("-n", "8", "--job", "train", "--grace", "1")
    environ = {
        **daemon.environ,
        "ALLHANDS_URL": f"ah://127.0.0.1:{daemon.notice.port}",
        "ALLHANDS_TOKEN": daemon.notice.token,
    }
    source, *arguments = as_script(pictured.train, fate)
    # Stacks have the path of the script, which is to be of no machine in particular.
    script = Path(tempfile.gettempdir(), "job", "train.py")
    script.parent.mkdir(exist_ok=True)
    shutil.copy(source, script)
    command = [*COMMAND, *options, str(script), *arguments]
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as launcher:
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.set_default_timeout(_PATIENCE)
            _show(page, daemon, fate)
            page.screenshot(path=file)
        finally:
            launcher.terminate()


def _show(page: "Page", daemon: DaemonProcess, fate: str) -> None:
    page.goto(daemon.run_command("page").stdout.strip())
    page.click("#jobs a")
    page.locator(".node").first.wait_for()
    if fate == "stall":
        page.locator(".node.is-missing").first.click()
    page.locator(_SHOWN[fate]).first.wait_for()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
