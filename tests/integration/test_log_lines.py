"""The daemon's log as lines of JSON, and with a least level."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from allhands.coordinator.client import Control
from support.served_daemon import SERVE, ServedDaemon


def log_of_a_deleted_job(tmp_path: Path, *options: str) -> list[str]:
    """Return the log of a daemon at which a job with a key was deleted."""
    daemon = ServedDaemon(tmp_path)
    daemon.start(*options)
    try:
        with Control(daemon.endpoint, job="train", timeout=60) as control:
            control.put("secret", b"hidden")
            control.delete_job("train")
    finally:
        daemon.close()
    return daemon.log_lines[:-1]  # the last says that it has ended


def test_lines_of_json_have_times_levels_loggers_and_the_job(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    found = log_of_a_deleted_job(tmp_path, "--log-format", "json")
    lines = list(map(json.loads, found))
    for one in lines:
        assert one["time"].endswith("Z")
        time = datetime.fromisoformat(one["time"])
        assert before - timedelta(milliseconds=1) <= time <= datetime.now(UTC)
        assert one["level"] == "info"
        assert one["logger"].startswith("allhands_server.")
    assert "job" not in lines[0]
    assert "listening on 127.0.0.1" in lines[0]["message"]
    [deleted] = [one for one in lines if "was deleted by" in one["message"]]
    assert deleted["job"] == "train"


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    """It warns of what it does insecurely, and then says that it listens and drains."""
    command = [*SERVE, "--listen", "0.0.0.0:0", "--insecure", "--log-level", "warning"]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as daemon:
        assert daemon.stderr is not None
        first = daemon.stderr.readline()
        daemon.terminate()
        lines = [first, *daemon.stderr]
        assert daemon.wait(60) == 0
    assert lines
    assert all(" WARNING " in line for line in lines), lines
