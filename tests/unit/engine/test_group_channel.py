"""Failed calls over shared memory: their errors are found on the loop, for the caller's thread."""

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import pytest

from allhands.engine.failures.tracker import FailureTracker
from allhands.engine.group_recorder import GroupRecorder
from allhands.engine.numbering import CallNumbering
from allhands.engine.shm import group_channel
from allhands.engine.shm.group_channel import GroupChannel
from allhands.errors import AllhandsError
from allhands.runtime.helper_threads import HelperThreads
from allhands.runtime.job_thread import JobThread
from allhands.runtime.loop_thread import LoopThread
from allhands.shm.areas import GroupAreas
from allhands.shm.failures import CallFailure
from support.signal_steps import Rang, ring_at_each_step

PATIENCE = 20.0
FAILURE = CallFailure(
    status="abandoned",
    sequence=1,
    operation="all_reduce",
    dtype=None,
    count=3,
    op=0,
    root=-1,
    splits=None,
    shape=None,
    waiting=0,
    offenders=2,
    timeout=1.0,
    label=None,
    touches_output=False,
)


class Comm:
    """A communicator of which a call has failed."""

    def set_outcome(self, sequence: int, outcome: int) -> None:
        pass


class Areas:
    """The memory of ranks that are all here."""

    on_failure: Callable[[CallFailure], None]

    def list_missing(self) -> list[int]:
        return []

    def get_refusal(self) -> str:
        return ""

    def make_comm(self, **parts: Any) -> Comm:
        self.on_failure = parts["on_failure"]
        return Comm()


class Failures:
    """What is known of a call that another rank gave up: nothing before it is told."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def list_last_calls(self) -> list[int]:
        return []

    def name_call(self, operation: str, sequence: int, label: str | None) -> str:
        return f"{operation} #{sequence}"

    async def await_failure_reason(self) -> None:
        await self.told.wait()

    def find_failure(self, sequence: int) -> Callable[[str], AllhandsError]:
        return lambda what: AllhandsError(f"{what} was given up")

    def has_mismatch(self, sequence: int) -> bool:
        return False

    async def is_timed_out_elsewhere(self, *_: object) -> bool:
        return False

    def conclude(self, sequence: int) -> None:
        pass


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("loop of a group")
    yield made
    made.stop()


@pytest.fixture
def failures(thread: LoopThread) -> Failures:
    async def make() -> Failures:
        return Failures()

    return thread.run(make())


@pytest.fixture
def fail(thread: LoopThread, failures: Failures) -> Callable[[], None]:
    """Have a call fail on the caller's thread."""
    areas = Areas()

    def refuse(*_: object) -> NoReturn:
        raise AssertionError

    async def make() -> None:
        order = CallNumbering()
        channel = GroupChannel(
            "world",
            0,
            order,
            JobThread("jobs", HelperThreads()),
            cast(FailureTracker, failures),
            cast(GroupAreas, areas),
            GroupRecorder("world", (0, 1), order, 8),
            refuse,
            False,
        )
        await channel.negotiate(lambda: 0)

    thread.run(make())
    return lambda: areas.on_failure(FAILURE)


def goes_on(thread: LoopThread) -> bool:
    ran = threading.Event()
    thread.call(ran.set)
    return ran.wait(PATIENCE)


def test_the_error_is_raised_once_the_reason_is_known(
    thread: LoopThread, failures: Failures, fail: Callable[[], None]
) -> None:
    thread.call(failures.told.set)
    with pytest.raises(AllhandsError, match="all_reduce #1 was given up"):
        fail()


@pytest.mark.parametrize("is_told", [False, True])
def test_a_handler_that_raises_while_the_error_is_looked_for_is_heard_and_harms_nothing(
    thread: LoopThread,
    failures: Failures,
    fail: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    is_told: bool,
) -> None:
    """Neither the lock for which the loop waits is left held, nor a coroutine left unawaited."""
    monkeypatch.setattr(group_channel, "_FAILURE_SECONDS", 0.002)
    if is_told:
        thread.call(failures.told.set)
    with pytest.raises(AllhandsError if is_told else TimeoutError):
        fail()  # what is made with the first failure is no part of those that follow
    rang = 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for error in ring_at_each_step(fail):
            assert [type(error), [str(one.message) for one in warned]] == [Rang, []]
            assert goes_on(thread)
            rang += 1
    assert rang > 0
    thread.call(failures.told.set)  # to all that wait still
    assert goes_on(thread)
