"""Named barriers that are cancelled and listed, and double barriers."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

import allhands as ah
from allhands.aio import AsyncControl
from allhands.coordinator.client import Control
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.deadlines import Timeout
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until
from allhands_proto.v1 import coordinator_pb2 as wire
from support.async_poll import poll_async

_PATIENCE = 60.0
T = TypeVar("T")


@pytest.fixture
def connect(daemon: DaemonProcess, job_name: str) -> Callable[[], Control]:
    """Return a factory of clients of the test's job."""
    return lambda: Control(daemon.endpoint, job=job_name, timeout=_PATIENCE)


@pytest.fixture
def control(connect: Callable[[], Control]) -> Iterator[Control]:
    with connect() as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def await_arrivals(control: Control, name: str, count: int) -> ah.BarrierStatus:
    """Wait until so many have come to a barrier; return its status."""
    control.put("there", "is a job")

    def find() -> list[ah.BarrierStatus]:
        return [one for one in control.barriers() if one.name == name and len(one.arrived) == count]

    poll_until(lambda: bool(find()), _PATIENCE)
    return find()[0]


def test_a_cancelled_barrier_tells_all_who_wait_who_and_why(
    control: Control, pool: ThreadPoolExecutor
) -> None:
    names = ["a", "b", "c"]
    waiting = [pool.submit(control.barrier, "start", name, names) for name in names[:2]]
    found = await_arrivals(control, "start", 2)
    assert found == ah.BarrierStatus("start", 3, ("a", "b", "c"), ("a", "b"))
    assert found.missing == ("c",)
    assert control.cancel_barrier("start", "no more data", by="the operator") == 2
    for one in waiting:
        error = one.exception(_PATIENCE)
        assert isinstance(error, ah.BarrierCancelled)
        assert (error.by, error.reason) == ("the operator", "no more data")
        assert "was cancelled by the operator: no more data" in str(error)
    assert control.barriers() == ()
    with pytest.raises(ah.NotFound, match="nobody waits at barrier 'start'"):
        control.cancel_barrier("start", "again")
    # The name is free again.
    passed = [pool.submit(control.barrier, "start", name, names) for name in names]
    assert [one.result(_PATIENCE) for one in passed] == [1, 1, 1]


MANY = [f"rank {number:03}" for number in range(100)]


class ControlOfOlderDaemon(Control):
    """A client whose daemon does not know of digests: fields that it does not know are ignored."""

    def request(self, asked: AnyKvRequest[T], timeout: Timeout | None = None) -> T:
        message = asked.message
        if isinstance(message, wire.BarrierRequest):
            message.ClearField("digest")
            message.ClearField("count")
            message.ClearField("first_participants")
        return super().request(asked, timeout)


@pytest.mark.parametrize("kind", [Control, ControlOfOlderDaemon])
def test_many_participants_pass_together(
    daemon: DaemonProcess, job_name: str, kind: type[Control]
) -> None:
    with (
        kind(daemon.endpoint, job=job_name, timeout=_PATIENCE) as control,
        ThreadPoolExecutor(len(MANY)) as pool,
    ):
        for generation in (1, 2):
            waiting = [pool.submit(control.barrier, "start", name, MANY) for name in MANY[1:]]
            await_arrivals(control, "start", len(MANY) - 1)
            assert not any(one.done() for one in waiting)
            assert control.barrier("start", MANY[0], MANY) == generation
            assert {one.result(_PATIENCE) for one in waiting} == {generation}


def test_the_absent_of_many_are_named(control: Control, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(control.barrier, "b", name, MANY) for name in MANY[4:11]]
    await_arrivals(control, "b", len(waiting))
    absent = "92 of 100 did not arrive .*: 'rank 000', .*, 'rank 003' and 88 more, of whose names"
    with pytest.raises(ah.StoreTimeout, match=absent):
        control.barrier("b", MANY[50], MANY, timeout=0.05)
    assert control.cancel_barrier("b", "over") == len(waiting)


def test_other_lists_of_many_are_refused_with_what_is_known(
    control: Control, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(control.barrier, "b", MANY[50], MANY)
    await_arrivals(control, "b", 1)
    with pytest.raises(ah.Refused, match="but 'rank 050', who waits there, with 'rank 000'"):
        control.barrier("b", "another", [*MANY, "another"])
    with pytest.raises(ValueError, match="'stranger' is not among the participants"):
        control.barrier("b", "stranger", MANY)
    assert control.cancel_barrier("b", "over") == 1
    assert isinstance(waiting.exception(_PATIENCE), ah.BarrierCancelled)


def test_an_older_client_hears_of_a_cancellation_as_well(
    control: Control, pool: ThreadPoolExecutor, job_name: str
) -> None:
    request = wire.BarrierRequest(
        job=job_name, name="start", participant="a", participants=["a", "b"]
    )
    waiting = pool.submit(control._call_kv, request, wire.BarrierReply, _PATIENCE)
    await_arrivals(control, "start", 1)
    control.cancel_barrier("start", "no more data")
    error = waiting.exception(_PATIENCE)
    assert isinstance(error, ah.Refused)
    assert f"pid {os.getpid()}': 'no more data'" in str(error)


async def is_waited_for(control: AsyncControl) -> bool:
    return len(await control.barriers()) > 0


async def test_tasks_wait_cancel_and_list(daemon: DaemonProcess, job_name: str) -> None:
    async with AsyncControl(daemon.endpoint, job=job_name, timeout=_PATIENCE) as control:
        waiting = asyncio.create_task(control.barrier("start", "a", ["a", "b"]))
        await control.put("there", "is a job")
        await poll_async(partial(is_waited_for, control))
        assert [one.missing for one in await control.barriers()] == [("b",)]
        assert await control.cancel_barrier("start", "enough", by="me") == 1
        with pytest.raises(ah.BarrierCancelled, match="by me: enough"):
            await waiting
        both = [control.barrier("start", name, ["a", "b"]) for name in "ab"]
        assert await asyncio.gather(*both) == [1, 1]


def test_the_command_lists_and_cancels(
    daemon: DaemonProcess, control: Control, pool: ThreadPoolExecutor, job_name: str
) -> None:
    waiting = pool.submit(control.barrier, "st\x1bart", "a", ["a", "b"])
    with pytest.raises(ValueError, match="unprintable"):
        waiting.result(_PATIENCE)
    waiting = pool.submit(control.barrier, "start", "a", ["a", "b"])
    await_arrivals(control, "start", 1)
    listed = daemon.run_command("barrier", "list", job_name, timeout=_PATIENCE)
    assert listed.stdout == "start: 1 of 2 came: a; missing: b\n"
    listed = daemon.run_command("barrier", "list", job_name, "-o", "json", timeout=_PATIENCE)
    assert json.loads(listed.stdout)["barriers"] == [
        {"name": "start", "size": 2, "participants": ["a", "b"], "arrived": ["a"], "missing": ["b"]}
    ]
    done = daemon.run_command(
        "barrier", "cancel", job_name, "start", "--reason", "late", timeout=_PATIENCE
    )
    assert done.stdout == "released 1 participant\n"
    with pytest.raises(ah.BarrierCancelled, match="late"):
        waiting.result(_PATIENCE)


def test_all_enter_and_leave_a_double_barrier_together(
    connect: Callable[[], Control], pool: ThreadPoolExecutor
) -> None:
    inside = 0
    lock = threading.Lock()
    seen: list[int] = []

    def take_part(number: int) -> None:
        nonlocal inside
        with connect() as control:
            barrier = control.double_barrier("d", 5)
            for _ in range(3):
                with barrier:
                    assert len(barrier.participants) == 5
                    with lock:
                        inside += 1
                with lock:
                    seen.append(inside)

    for one in [pool.submit(take_part, number) for number in range(5)]:
        one.result(_PATIENCE)
    # After each round all of it have been inside, and nobody of a later one is long ahead.
    assert [min(seen[n : n + 5]) >= 5 * (n // 5 + 1) for n in (0, 5, 10)] == [True] * 3
    assert inside == 15
    with connect() as control:
        assert control.list("_allhands/double_barriers/") == ()


def test_another_size_is_refused_at_once_and_a_missing_one_is_counted(
    connect: Callable[[], Control], control: Control, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(control.double_barrier("d", 3).enter)
    found = await_arrivals(control, "d", 1)
    assert (found.size, found.participants) == (3, ())
    with connect() as other:
        with pytest.raises(ah.Refused, match="who waits there, as one of 3"):
            other.double_barrier("d", 2).enter()
        with pytest.raises(ah.Refused, match="with participants 'a', but"):
            other.barrier("d", "a", ["a"])
        with pytest.raises(ah.StoreTimeout, match=f"1 of 3 did not arrive .*pid {os.getpid()}"):
            other.double_barrier("d", 3).enter(timeout=3)
    assert not waiting.done()
    assert control.cancel_barrier("d", "enough") == 1
    with pytest.raises(ah.BarrierCancelled):
        waiting.result(_PATIENCE)
    assert control.list("_allhands/double_barriers/") == ()
    with pytest.raises(ValueError, match="1 to 10,000 participants"):
        control.double_barrier("d", 0)


def test_nobody_waits_for_a_participant_that_died_within(
    connect: Callable[[], Control], control: Control, pool: ThreadPoolExecutor
) -> None:
    barriers = [control.double_barrier("d", 4) for _ in range(3)]
    dying = connect()
    entering = [pool.submit(one.enter) for one in (*barriers, dying.double_barrier("d", 4))]
    for one in entering:
        one.result(_PATIENCE)
    leaving = [pool.submit(one.leave) for one in barriers[:2]]
    with pytest.raises(ah.StoreTimeout, match="of 4 are still within double barrier 'd'"):
        barriers[2].leave(timeout=0.3)
    assert not any(one.done() for one in leaving)
    dying.close()  # which ends its lease
    for one in leaving:
        one.result(_PATIENCE)
    with pytest.raises(ah.LockLost, match="not within"):
        barriers[0].leave()


def test_the_loss_of_the_lease_within_a_double_barrier_is_told(control: Control) -> None:
    barrier = control.double_barrier("d", 1, ttl=9)
    barrier.enter()
    for number in control.leases():
        control.revoke_lease(number)
    assert barrier.lost.wait(_PATIENCE)
    with pytest.raises(ah.LockLost, match="lease of 9 s"):
        barrier.leave()


async def test_tasks_enter_and_leave_a_double_barrier(daemon: DaemonProcess, job_name: str) -> None:
    inside = 0

    async def take_part(control: AsyncControl) -> int:
        nonlocal inside
        async with control.double_barrier("d", 3) as barrier:
            assert len(barrier.participants) == 3
            inside += 1
        return inside

    async with AsyncControl(daemon.endpoint, job=job_name, timeout=_PATIENCE) as control:
        assert await asyncio.gather(*[take_part(control) for _ in range(3)]) == [3, 3, 3]
        late = asyncio.create_task(control.double_barrier("d", 2).enter())
        await poll_async(partial(is_waited_for, control))
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert await control.barriers() == ()
