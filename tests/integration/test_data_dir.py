"""Coordinators in launchers and ranks that keep their state in a folder."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from allhands.coordinator.client import Control
from allhands_proto.call_metadata import ORIGIN_KEY
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from allhands_server.log.sqlite import FILE_NAME
from programs import launched
from support.ranks.launchers import Start, as_script, environment
from support.served_daemon import ServedDaemon


def read_kept(tmp_path: Path, folder: Path, job: str) -> bytes:
    """Return the key from a folder, by a daemon that goes on there."""
    daemon = ServedDaemon(tmp_path)
    daemon.data_dir = folder
    daemon.start()
    try:
        with Control(daemon.endpoint, job=job, timeout=60) as control:
            return control.get("kept")
    finally:
        daemon.close()


@pytest.mark.parametrize("by_variable", [False, True], ids=["option", "variable"])
def test_a_launchers_coordinator_keeps_its_state(
    run: Start, tmp_path: Path, by_variable: bool
) -> None:
    folder = tmp_path / "kept"
    option = () if by_variable else ("--data-dir", str(folder))
    variables = {"ALLHANDS_DATA_DIR": str(folder)} if by_variable else {}
    for value in ("1", "2"):
        program = as_script(launched.keep_a_key, value)
        running = run("-n", "2", "--job", "j", *option, *program, **variables)
        assert running.status() == 0, running.errors
        assert sorted(running.output()) == ["[0] unset", "[1] unset"]
        assert read_kept(tmp_path, folder, "j") == value.encode()


def test_the_coordinator_of_a_rank_keeps_its_state(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    subprocess.run(
        [sys.executable, *as_script(launched.keep_a_key, "1")],
        env={
            **environment(tmp_path),
            "ALLHANDS_DATA_DIR": str(folder),
            "ALLHANDS_JOB": "j",
            "RANK": "0",
            "WORLD_SIZE": "1",
        },
        check=True,
        timeout=100,
    )
    assert read_kept(tmp_path, folder, "j") == b"1"


def test_an_origin_in_a_read_does_not_end_a_coordinator_that_keeps_its_state(
    tmp_path: Path,
) -> None:
    """Answers to requests with an origin are logged, and the log does not know those of reads."""
    daemon = ServedDaemon(tmp_path)
    daemon.data_dir = tmp_path / "kept"
    daemon.start()
    origin = wire.Origin(client=b"a client", number=1).SerializeToString()
    metadata = ((ORIGIN_KEY, origin), ("authorization", f"Bearer {daemon.endpoint.token}"))
    try:
        with Control(daemon.endpoint, job="j", timeout=60) as control:
            control.put("kept", b"1")
        with grpc.insecure_channel(daemon.endpoint.address.target) as channel:
            stub = coordinator_pb2_grpc.CoordinatorStub(channel)
            for _ in range(2):
                reply = stub.ListJobs(wire.ListJobsRequest(), metadata=metadata, timeout=30)
                assert [one.job for one in reply.jobs] == ["j"]
        with Control(daemon.endpoint, job="j", timeout=60) as control:
            assert control.get("kept") == b"1"
    finally:
        daemon.close()


def test_a_folder_in_use_is_refused_before_any_rank_starts(run: Start, tmp_path: Path) -> None:
    daemon = ServedDaemon(tmp_path)
    daemon.start()
    try:
        program = as_script(launched.show_a_word)
        running = run("-n", "1", "--data-dir", str(daemon.data_dir), *program)
        assert running.status() == 1
        assert running.output() == []
        [error] = running.errors
        assert f"{FILE_NAME} is in use by another process" in error
    finally:
        daemon.close()


def test_a_folder_and_a_coordinator_are_not_given_together(run: Start, tmp_path: Path) -> None:
    daemon = ServedDaemon(tmp_path)
    daemon.start()
    try:
        url, token = daemon.environ["ALLHANDS_URL"], daemon.environ["ALLHANDS_TOKEN"]
        program = as_script(launched.show_a_word)
        arguments = ("-n", "1", "--coordinator", url, "--data-dir", str(tmp_path / "other"))
        running = run(*arguments, *program, ALLHANDS_TOKEN=token)
        assert running.status() == 2
        assert "give the folder to `allhands serve`" in " ".join(running.errors)
    finally:
        daemon.close()
