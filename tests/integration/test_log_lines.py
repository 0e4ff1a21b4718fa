"""The daemon's log as lines of JSON, and with a least level."""

import json
from datetime import UTC, datetime
from pathlib import Path

from allhands.coordinator.client import Control
from support.served_daemon import ServedDaemon


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
    return [line for line in daemon.log_lines if line.strip()]


def test_lines_of_json_have_times_levels_loggers_and_the_job(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    lines = list(map(json.loads, log_of_a_deleted_job(tmp_path, "--log-format", "json")))
    for one in lines:
        assert one["time"].endswith("Z")
        assert before <= datetime.fromisoformat(one["time"]).replace(
            microsecond=999_999
        ) and datetime.fromisoformat(one["time"]) <= datetime.now(UTC)
        assert one["level"] == "info"
        assert one["logger"].startswith("allhands_server.")
    assert "job" not in lines[0]
    assert "listening on 127.0.0.1" in lines[0]["message"]
    [deleted] = [one for one in lines if "was deleted by" in one["message"]]
    assert deleted["job"] == "train"


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    assert log_of_a_deleted_job(tmp_path, "--log-level", "warning") == []
