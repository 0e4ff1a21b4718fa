"""Locks whose holder, waiter or daemon is killed or stopped."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import allhands as ah
from allhands import kv
from allhands.coordinator.client import Control
from allhands.coordinator.kv.watching import POLL_SECONDS
from allhands.testing.poll import poll_until
from support.served_daemon import ServedDaemon

_PATIENCE = 60.0
_LOCK = (sys.executable, "-m", "allhands.cli.main", "lock", "j", "l")
Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    served = ServedDaemon(tmp_path)
    served.start()
    yield served
    served.close()


@pytest.fixture
def start(daemon: ServedDaemon) -> Iterator[Started]:
    """Return a function that starts `allhands lock`, with its output in a pipe."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> "subprocess.Popen[str]":
        command = [*_LOCK, *arguments]
        process = subprocess.Popen(
            command, env=daemon.environ, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def connect(daemon: ServedDaemon) -> Control:
    return Control(daemon.endpoint, job="j", timeout=_PATIENCE)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_the_next_in_line_follows_a_holder_and_a_waiter_that_were_killed(
    daemon: ServedDaemon, start: Started
) -> None:
    with connect(daemon) as control:
        lock = control.lock("l")
        holder = start("--ttl", "5")
        assert read_line(holder)
        (first,) = lock.status().holders
        waiter = start("--ttl", "5")
        poll_until(lambda: lock.status().waiting == 1, _PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(lock.acquire)
            poll_until(lambda: lock.status().waiting == 2, _PATIENCE)
            waiter.kill()
            holder.kill()
            third.result(_PATIENCE)
        assert lock.revision > first.revision
        assert lock.status().waiting == 0


def test_a_lock_is_held_and_waited_for_over_a_kill_of_the_daemon(daemon: ServedDaemon) -> None:
    with connect(daemon) as control, connect(daemon) as other, ThreadPoolExecutor(2) as pool:
        held, second, third = (one.lock("l", ttl=120) for one in (control, other, other))
        held.acquire()
        fence = held.condition
        waiting = pool.submit(second.acquire)
        poll_until(lambda: held.status().waiting == 1, _PATIENCE)
        last = pool.submit(third.acquire)
        poll_until(lambda: held.status().waiting == 2, _PATIENCE)
        for _ in range(2):
            daemon.kill()
            daemon.start()
            assert [one.key for one in held.status().holders] == [held.key]
            assert held.status().waiting == 2
            assert control.transaction([fence], [kv.Put("k", "held")])
        assert not waiting.done()
        daemon.kill()
        released = threading.Thread(target=held.release)
        released.start()
        daemon.start()
        released.join(_PATIENCE)
        waiting.result(_PATIENCE)
        assert not control.transaction([fence], [kv.Put("k", "late")])
        assert held.revision == 0 < second.revision
        second.release()
        last.result(_PATIENCE)
        assert third.revision > 0
        third.release()
        assert control.list("_allhands/locks/") == ()


def test_a_holder_that_was_stopped_for_too_long_has_lost_its_lock(
    daemon: ServedDaemon, start: Started
) -> None:
    holder = start("--ttl", "4", "--", "sh", "-c", "echo $ALLHANDS_LOCK_KEY; exec sleep 600")
    key = read_line(holder)
    holder.send_signal(signal.SIGSTOP)
    with connect(daemon) as control:
        lock = control.lock("l")
        lock.acquire()
        holder.send_signal(signal.SIGCONT)
        assert holder.wait(_PATIENCE) == 1
        assert control.get_record(key) is None
        lock.release()


def test_nobody_holds_a_lock_of_a_daemon_without_a_log_that_was_started_again(
    tmp_path: Path,
) -> None:
    daemon = ServedDaemon(tmp_path)
    daemon.start_without_folder()
    try:
        with connect(daemon) as control, connect(daemon) as other:
            lock = control.lock("l", ttl=3)
            lock.acquire()
            daemon.kill()
            daemon.start_without_folder()
            poll_until(lambda: _can_acquire(other), _PATIENCE)
            assert lock.lost.wait(_PATIENCE)
            with pytest.raises(ah.LockLost):
                lock.release()
    finally:
        daemon.close()


def _can_acquire(control: Control) -> bool:
    try:
        with control.lock("l", ttl=600):
            return True
    except ah.CoordinatorUnavailable:
        return False


def test_a_waiter_whose_lease_is_lost_is_told_by_a_durable_coordinator(
    daemon: ServedDaemon,
) -> None:
    with (
        connect(daemon) as control,
        connect(daemon) as other,
        ThreadPoolExecutor(1) as pool,
        control.lock("l", ttl=600) as held,
    ):
        waiting = pool.submit(other.lock("l", ttl=9).acquire)
        poll_until(lambda: held.status().waiting == 1, _PATIENCE)
        places = control.get_range("_allhands/locks/l/", prefix=True, sort_by="create")
        control.revoke_lease(places.records[1].lease)
        # Before the call that waits for events would be over by itself.
        assert isinstance(waiting.exception(POLL_SECONDS * 0.7), ah.LockLost)
