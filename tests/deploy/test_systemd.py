"""deploy/systemd: a unit that systemd takes, whose command runs with what the unit gives it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deployments.stage import ROOT, Stage, open_stage
from support.deployments.systemd import list_allowed_calls, read_unit
from support.http_pages import fetch
from support.tls_contexts import make_credentials, open_context

FILE = ROOT / "deploy/systemd/allhands.service"
UNIT = read_unit(FILE)
PORTS = (7070, 7071, 7072)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def verify(text: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Have systemd check a unit whose program is one that is here."""
    unit = folder / "allhands.service"
    unit.write_text(text.replace("/opt/allhands/bin/allhands", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    done = verify(FILE.read_text(), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_finds_a_setting_that_it_does_not_know(tmp_path: Path) -> None:
    done = verify(FILE.read_text().replace("RestartSec", "RestartSek"), tmp_path)
    assert "RestartSek" in done.stderr


@needs_systemd
def test_the_service_is_closed_off_from_the_host() -> None:
    rated = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(FILE)]
    done = subprocess.run(rated, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_it_is_not_killed_before_it_has_drained() -> None:
    [drain] = re.findall(r"--drain-timeout=(\d+)", UNIT.get("ExecStart"))
    assert int(UNIT.get("TimeoutStopSec")) > int(drain)


def test_the_file_of_settings_names_variables_of_the_command() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "serve", "--help"],
        env={**os.environ, "COLUMNS": "500", "TERMINAL_WIDTH": "500"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = re.findall(r"^#?(ALLHANDS_\w+)=", (FILE.parent / "allhands.env").read_text(), re.M)
    assert named
    assert [one for one in named if one not in shown] == []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path, "head.cluster", PORTS) as opened:
        yield opened


def resolve(folder: Path) -> dict[str, str]:
    """Make what the unit's directories and credentials stand for; return its specifiers."""
    made = make_credentials(folder / "made", "localhost")
    loaded = folder / "credentials"
    loaded.mkdir()
    for text in UNIT.list_values("LoadCredential"):
        name, _, path = text.partition(":")
        shutil.copy(made / Path(path).relative_to("/etc/allhands"), loaded / name)
    for root, setting in (("state", "StateDirectory"), ("run", "RuntimeDirectory")):
        (folder / root / UNIT.get(setting)).mkdir(parents=True, mode=0o700)
    return {"d": str(loaded), "S": str(folder / "state"), "t": str(folder / "run")}


def test_the_command_serves_with_the_credentials_and_ends_well(
    stage: Stage, tmp_path: Path
) -> None:
    specifiers = resolve(tmp_path)
    _, *arguments = UNIT.get_command(specifiers)
    daemon = stage.start_daemon(["allhands", *arguments], UNIT.get_environment(specifiers), {})
    url = f"https://127.0.0.1:{stage.get_port(7072)}"
    tls = open_context(Path(specifiers["d"], "ca.crt"))
    assert fetch(url, "/readyz", tls=tls).status == 200
    assert list(Path(specifiers["S"], "allhands").iterdir()), "its state is where the unit says"
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.status() == 0


@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_it_makes_no_system_call_that_the_unit_forbids(stage: Stage, tmp_path: Path) -> None:
    specifiers = resolve(tmp_path)
    _, *arguments = UNIT.get_command(specifiers)
    counted = tmp_path / "calls"
    watched = ("strace", "-f", "-c", "-U", "name", "-o", str(counted), sys.executable)
    traced = [*watched, "-m", "allhands.cli.main", *arguments]
    daemon = stage.start_daemon(traced, UNIT.get_environment(specifiers), {})
    tls = open_context(Path(specifiers["d"], "ca.crt"))
    assert fetch(f"https://127.0.0.1:{stage.get_port(7072)}", "/readyz", tls=tls).status == 200
    os.killpg(daemon.process.pid, signal.SIGTERM)
    daemon.status()
    made = {line.strip() for line in counted.read_text().splitlines()} - {"", "total", "syscall"}
    made = {one for one in made if re.fullmatch(r"[a-z_0-9]+", one)}
    assert "epoll_wait" in made or "epoll_pwait" in made
    assert made - list_allowed_calls(UNIT.list_values("SystemCallFilter")) == set()
