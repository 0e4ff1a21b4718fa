"""Clients and daemons without a version of the protocol in common."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import configure_channel
from allhands.coordinator.session import Session
from allhands.errors import JoinRefused, Refused
from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands_proto import versions
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from support.other_versions import make_command
from support.served_daemon import ServedDaemon

_PATIENCE = 60.0
_NEWER = (versions.OWN.newest + 3, versions.OWN.newest + 4)

Serve = Callable[..., ServedDaemon]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function to start a daemon that speaks some versions."""
    started: list[ServedDaemon] = []

    def start(oldest: int, newest: int, *, checks: bool = True) -> ServedDaemon:
        daemon = ServedDaemon(tmp_path, make_command(oldest, newest, checks=checks))
        started.append(daemon)
        daemon.start_without_folder()
        return daemon

    yield start
    for daemon in started:
        daemon.close()


def make_join(oldest: int = 0, newest: int = 0) -> wire.Join:
    join = wire.Join(job="j", rank=0, world_size=1, host="h", pid=1, port=1)
    join.min_version, join.max_version = oldest, newest
    return join


def call(daemon: ServedDaemon) -> grpc.Channel:
    return configure_channel(daemon.endpoint).open()


def refuse(text: str) -> "pytest.RaisesExc[Refused]":
    return pytest.raises(Refused, match=text)


@pytest.mark.parametrize("checks", [True, False], ids=["by the daemon", "by the client"])
def test_a_client_and_a_daemon_without_a_common_version_say_so(serve: Serve, checks: bool) -> None:
    daemon = serve(*_NEWER, checks=checks)
    own, newer = versions.OWN, versions.Versions(*_NEWER)
    told = rf"no version of the protocol in common: .* speaks ({own}|{newer}), .*({own}|{newer}); "
    older = "the caller is older" if checks else "this (client|worker) is older"
    expected = rf"{told}{older}: upgrade allhands there"
    with Control(daemon.endpoint, job="j", timeout=_PATIENCE) as control:
        for attempt in (lambda: control.put("k", "v"), control.jobs, lambda: control.get("k")):
            with refuse(expected):
                attempt()

    async def join_and_store() -> None:
        join = make_join(own.oldest, own.newest)
        with pytest.raises(JoinRefused, match=expected):
            await Session.join(configure_channel(daemon.endpoint), join, _PATIENCE)
        async with AsyncCoordinatorStore(daemon.endpoint, job="j", timeout=_PATIENCE) as store:
            with refuse(expected):
                await store.set("k", b"v")

    asyncio.run(join_and_store())


def test_a_command_says_what_to_upgrade(serve: Serve) -> None:
    daemon = serve(*_NEWER)
    done = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "kv", "put", "j", "k", "v"],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done
    assert "the caller is older: upgrade allhands there" in done.stderr


def test_nothing_happens_before_the_versions_are_compared(serve: Serve) -> None:
    daemon = serve(*_NEWER)
    with call(daemon) as channel:
        stub = coordinator_pb2_grpc.CoordinatorStub(channel)
        metadata = configure_channel(daemon.endpoint).metadata
        for first in (
            wire.SessionRequest(join=make_join()),
            wire.SessionRequest(resume=wire.Resume(job="j", min_version=1, max_version=1)),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                next(stub.Session(iter([first]), timeout=_PATIENCE, metadata=metadata))
            assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "the caller version 1; the caller is older" in raised.value.details()
        assert not stub.ListJobs(wire.ListJobsRequest(), metadata=metadata).jobs


def test_what_both_sides_speak_is_enough(serve: Serve) -> None:
    daemon = serve(versions.OWN.newest, versions.OWN.newest + 9)
    with Control(daemon.endpoint, job="j", timeout=_PATIENCE) as control:
        assert control.add("n") == 1
        assert control._kv_pool._connections
