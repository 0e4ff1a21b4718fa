"""Pictures of the page for the documents: a running, a stalled and a failed job of 8 ranks.

The ranks are on two hosts, which are network namespaces; launcher, daemon and browser are on the
first of them. It needs root.

PYTHONPATH=tests python -m support.page_pictures docs/figures
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from allhands.bench import netns
from allhands.testing.daemon import DaemonProcess, run_daemon
from programs import pictured
from support import ssh_double
from support.browser import explain_missing, open_browser
from support.ranks.launchers import COMMAND, as_script

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PATIENCE = 60_000  # milliseconds
_PORT = 7070  # of namespaces in which nothing else listens
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
    with netns.open_two_hosts(None) as (here, there):
        holder = int(there.command_prefix[there.command_prefix.index("--target") + 1])
        hosts = json.dumps({here.name: 0, there.name: holder})
        command = [sys.executable, "-m", "support.page_pictures", str(folder.resolve())]
        subprocess.run(
            [*here.command_prefix, *command, here.name, there.name, here.address],
            env={**os.environ, "SSH_DOUBLE_HOSTS": hosts, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )


def take_all(folder: Path, here: str, there: str, address: str) -> None:
    """Take the pictures from inside the first of two hosts, which has this address."""
    with open_browser() as browser:
        for fate in _SHOWN:
            listen = ("--listen", f"{address}:{_PORT}", "--insecure", "--http", "127.0.0.1:0")
            with (
                tempfile.TemporaryDirectory() as runtime,
                run_daemon(Path(runtime), *listen) as daemon,
            ):
                options = [
                    *("--hosts", f"{here}:4,{there}:4", "--job", "train", "--grace", "1"),
                    *("--ssh", f"{sys.executable} {ssh_double.__file__}"),
                    *("--launcher-address", address),
                    *("--coordinator", f"ah://{address}:{_PORT}"),
                ]
                _take(browser, daemon, options, fate, folder / f"page_{fate}.png")


def _take(
    browser: "Browser", daemon: DaemonProcess, options: list[str], fate: str, file: Path
) -> None:
    environ = {
        **daemon.environ,
        "ALLHANDS_TOKEN": daemon.notice.token,
        "ALLHANDS_INSECURE": "1",
        "SSH_DOUBLE_HOSTS": os.environ["SSH_DOUBLE_HOSTS"],
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
            page.goto(daemon.run_command("page").stdout.strip())
            _show(page, fate)
            page.screenshot(path=file)
        finally:
            launcher.terminate()


def _show(page: "Page", fate: str) -> None:
    page.click("#jobs a")
    page.locator(".node").first.wait_for()
    if fate == "stall":
        page.locator(".node.is-missing").first.click()
    page.locator(_SHOWN[fate]).first.wait_for()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        take_all(Path(sys.argv[1]), *sys.argv[2:])
    else:
        main(Path(sys.argv[1]))
