"""Daemons with a folder for their log: killed, started again, refused."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import grpc
import pytest

from allhands.aio.control import AsyncControl
from allhands.coordinator.client import Control
from allhands.coordinator.kv.asynchronous import AsyncKvConnection
from allhands.coordinator.kv.blocking import KvConnectionPool
from allhands.coordinator.kv.calls import KvCallError
from allhands.errors import CoordinatorUnavailable, NotFound, StoreTimeout
from allhands.stores import CoordinatorStore
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.log.sqlite import FILE_NAME

Start = Callable[[], contextlib.AbstractContextManager[DaemonProcess]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a daemon, again and again on the same folder."""
    numbers = iter(range(100))

    @contextlib.contextmanager
    def start_one() -> Iterator[DaemonProcess]:
        runtime = tmp_path / f"runtime{next(numbers)}"
        runtime.mkdir()
        with run_daemon(runtime, "--data-dir", str(tmp_path / "data")) as daemon:
            yield daemon

    return start_one


def kill(daemon: DaemonProcess) -> None:
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait()


@contextlib.contextmanager
def connected(
    daemon: DaemonProcess, timeout: float = 30
) -> Iterator[tuple[Control, CoordinatorStore]]:
    with Control(daemon.endpoint, job="j", timeout=timeout) as control:
        yield control, CoordinatorStore(control, timeout)


def write_until_killed(
    daemon: DaemonProcess, life: int, writers: int
) -> tuple[dict[str, bytes], list[int]]:
    """Write with several threads until the daemon is killed.

    Return the pairs that were acknowledged, and how often each thread's count was.
    """
    pairs: dict[str, bytes] = {}
    counts = [0] * writers
    are_busy = [threading.Event() for _ in range(writers)]
    controls: list[Control] = []

    def write(place: int) -> None:
        with (
            connected(daemon) as (control, store),
            contextlib.suppress(CoordinatorUnavailable),
        ):
            controls.append(control)
            for number in range(10**6):
                key, value = f"{life}-{place}-{number}", os.urandom(8)
                store.set(key, value)
                pairs[key] = value
                store.add(f"count-{place}", 1)
                counts[place] += 1
                if number == 40:
                    are_busy[place].set()

    threads = [threading.Thread(target=write, args=(place,)) for place in range(writers)]
    for thread in threads:
        thread.start()
    for busy in are_busy:
        assert busy.wait(60)
    kill(daemon)
    for control in controls:
        control.close()  # else its call waits for the daemon until the deadline
    for thread in threads:
        thread.join()
    return pairs, counts


def test_a_killed_daemon_has_every_acknowledged_write_once(start: Start) -> None:
    writers, counts = 3, [0] * 3
    everything: dict[str, bytes] = {}
    for life in range(3):
        with start() as daemon:
            with connected(daemon) as (_, store):
                for key, value in everything.items():
                    assert store.get(key) == value
                for place in range(writers):
                    found = store.add(f"count-{place}", 0)
                    # One more may be there: the one whose answer the kill took away.
                    assert counts[place] <= found <= counts[place] + 1
                    counts[place] = found
            pairs, added = write_until_killed(daemon, life, writers)
            everything |= pairs
            counts = [count + more for count, more in zip(counts, added, strict=True)]
    with start() as daemon, connected(daemon) as (_, store):
        assert all(store.get(key) == value for key, value in everything.items())


def test_a_restart_keeps_values_queues_and_what_was_deleted(start: Start) -> None:
    with start() as daemon:
        with connected(daemon) as (control, store):
            store.set("a", b"1")
            store.append("a", b"2")
            store.set("gone", b"x")
            assert store.delete_key("gone")
            for value in (b"x", b"y", b"z"):
                store.queue_push("q", value)
            assert store.queue_pop("q") == b"x"
            revision = control.put("last", b"v")
            assert control.barrier("start", "p", ["p"]) == 1
        kill(daemon)
    with start() as daemon, connected(daemon) as (control, store):
        assert store.get("a") == b"12"
        assert not store.check(["gone"])
        assert store.queue_len("q") == 2
        assert store.queue_pop("q") == b"y"
        assert control.put("next", b"v") == revision + 1
        assert control.barrier("start", "p", ["p"]) == 2


def test_the_next_world_of_a_job_does_not_meet_the_keys_of_the_last(start: Start) -> None:
    join = wire.Join(job="j", rank=0, world_size=1, host="h", pid=1, port=1, heartbeat_window=0.5)
    with start() as daemon, connected(daemon) as (control, _):
        control.put("before", b"of the first world")
        member = RawMember(daemon.endpoint, join)
        member.receive("world_formed")
        control.put("during", b"of the first world")
        kill(daemon)
        member.close()
    with start() as daemon, connected(daemon) as (control, _):
        assert control.get("before") == b"of the first world"
        member = rejoin(daemon, join)
        for key in ("before", "during"):
            with pytest.raises(NotFound):
                control.get(key)
        member.close()


def rejoin(daemon: DaemonProcess, join: wire.Join) -> RawMember:
    """Join as a process that the daemon does not know, once the members of before are lost."""
    members: list[RawMember] = []

    def joins() -> bool:
        member = RawMember(daemon.endpoint, join)
        try:
            member.receive("world_formed")
        except grpc.RpcError as error:
            member.close()
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        members.append(member)
        return True

    poll_until(joins, seconds=60)
    return members[0]


def make_failing(*codes: grpc.StatusCode) -> Callable[..., NoReturn]:
    """Make an attempt of a call that fails with one status after the other."""
    rest = iter(codes)

    def fail(*arguments: object) -> NoReturn:
        raise KvCallError(next(rest), "")

    return fail


async def test_a_daemon_that_does_not_come_back_by_the_deadline_is_unavailable(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last attempt, which begins just before the deadline, has no time for another answer."""

    def prepare() -> None:
        fail = make_failing(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        monkeypatch.setattr(KvConnectionPool, "call", fail)
        monkeypatch.setattr(AsyncKvConnection, "call", fail)

    with start() as daemon:
        async with AsyncControl(daemon.endpoint, job="j") as awaited:
            with connected(daemon) as (control, _):
                control.put("a", b"1")
                assert await awaited.get("a") == b"1"
                prepare()
                with pytest.raises(CoordinatorUnavailable):
                    control.put("a", b"2")
                prepare()
                with pytest.raises(CoordinatorUnavailable):
                    await awaited.put("a", b"2")
                # It may be back, and the key not be there.
                prepare()
                with pytest.raises(StoreTimeout):
                    control.get("b", wait=True)
                prepare()
                with pytest.raises(StoreTimeout):
                    await awaited.get("b", wait=True)


def test_a_second_daemon_on_the_same_folder_says_so(start: Start) -> None:
    with start() as daemon:
        with pytest.raises(RuntimeError, match=f"{FILE_NAME} is in use by another process"):
            start().__enter__()
        with connected(daemon) as (_, store):
            store.set("a", b"still served")


def test_a_damaged_log_is_not_served(start: Start, tmp_path: Path) -> None:
    with start() as daemon, connected(daemon) as (_, store):
        store.set("a", b"1")
    (tmp_path / "data" / FILE_NAME).write_bytes(b"other bytes" * 1000)
    with pytest.raises(RuntimeError, match=r"damaged.*not a database"):
        start().__enter__()


def fill(store: CoordinatorStore) -> None:
    for number in range(100):
        store.set(f"large{number}", bytes(50_000))


def test_a_daemon_whose_log_fails_ends_and_names_it(start: Start) -> None:
    with start() as daemon:
        with connected(daemon, timeout=60) as (control, store):
            store.set("a", b"1")
            # Its files may grow no further: the write fails in the middle.
            subprocess.run(["prlimit", "--fsize=100000", f"--pid={daemon.process.pid}"], check=True)
            with ThreadPoolExecutor(1) as pool:
                filling = pool.submit(fill, store)
                assert daemon.process.wait(60) == 1
                control.close()  # else its call waits for the daemon until the deadline
                with pytest.raises(CoordinatorUnavailable):
                    filling.result()
        assert "its log is gone" in "".join(daemon.log_lines)
    with start() as daemon, connected(daemon) as (_, store):
        assert store.get("a") == b"1"
