"""Barriers whose daemon is killed and started again while somebody waits."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import allhands as ah
from allhands.coordinator.client import Control
from allhands.testing.poll import poll_until
from support.served_daemon import ServedDaemon

_PATIENCE = 60.0
_TTL = 120.0
Connect = Callable[[], Control]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ServedDaemon]:
    served = ServedDaemon(tmp_path)
    served.start()
    yield served
    served.close()


@pytest.fixture
def connect(daemon: ServedDaemon) -> Iterator[Connect]:
    """Return a factory of clients, which are closed afterwards."""
    made: list[Control] = []

    def open_client() -> Control:
        made.append(Control(daemon.endpoint, job="j", timeout=_PATIENCE))
        return made[-1]

    yield open_client
    for one in made:
        one.close()


def list_arrived(control: Control) -> dict[str, int]:
    return {one.name: len(one.arrived) for one in control.barriers()}


def test_who_waits_at_a_barrier_goes_on_waiting_over_a_kill_of_the_daemon(
    daemon: ServedDaemon, connect: Connect
) -> None:
    control = connect()
    control.put("there", "is a job")
    names = ["a", "b", "c"]
    doubles = [connect().double_barrier("d", 3, ttl=_TTL) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(connect().barrier, "start", name, names) for name in names[:2]]
        entering = [pool.submit(one.enter) for one in doubles[:2]]
        poll_until(lambda: list_arrived(control) == {"start": 2, "d": 2}, _PATIENCE)
        daemon.kill()
        daemon.start()
        poll_until(lambda: list_arrived(control) == {"start": 2, "d": 2}, _PATIENCE)
        assert control.barrier("start", "c", names) == 1
        doubles[2].enter()
        assert [one.result(_PATIENCE) for one in waiting] == [1, 1]
        for one in entering:
            one.result(_PATIENCE)
        assert len({one.participants for one in doubles}) == 1
        leaving = [pool.submit(one.leave) for one in doubles[:2]]
        daemon.kill()
        daemon.start()
        doubles[2].leave()
        for one in leaving:
            one.result(_PATIENCE)
    assert control.list("_allhands/double_barriers/") == ()


def test_a_barrier_is_cancelled_after_a_kill_of_the_daemon(
    daemon: ServedDaemon, connect: Connect
) -> None:
    control = connect()
    control.put("there", "is a job")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect().barrier, "start", "a", ["a", "b"])
        poll_until(lambda: list_arrived(control) == {"start": 1}, _PATIENCE)
        daemon.kill()
        daemon.start()
        poll_until(lambda: list_arrived(control) == {"start": 1}, _PATIENCE)
        assert control.cancel_barrier("start", "enough") == 1
        assert isinstance(waiting.exception(_PATIENCE), ah.BarrierCancelled)
    assert list_arrived(control) == {}
