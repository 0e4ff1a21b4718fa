"""Deferred calls: their order, and the threads that run them."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allhands.collectives.signature import CallSignature
from allhands.engine.group_recorder import GroupRecorder
from allhands.engine.numbering import CallNumbering
from allhands.engine.shm.deferred_calls import DeferredCalls
from allhands.engine.work.work import Work
from allhands.futures import add_inline_callback
from allhands.runtime.callbacks import Callbacks

PATIENCE = 10.0


class ShmComm:
    """A communicator that counts like the native communicator, and runs nothing."""

    def __init__(self) -> None:
        self.last_number = self.queued = self.begun = self.completed = 0
        self.is_open = True
        self.skipped: list[int] = []

    def is_next(self, before: int) -> bool:
        return self.is_open and self.queued == before + 1

    def take_number(self) -> int:
        self.last_number += 1
        self.queued += 1
        return self.last_number

    def release(self) -> None:
        self.queued -= 1

    def skip(self, sequence: int) -> None:
        self.skipped.append(sequence)

    def progress(self) -> tuple[int, int, int, str, float]:
        return (self.begun, self.begun, self.completed, "", 0.0)

    def last_call(self) -> tuple[int, str, int, str]:
        return (1, "all_reduce", 8, "slots")


class Pending:
    """A call that runs until `may_end` is set."""

    def __init__(self, world: "World") -> None:
        self.may_end, self.begun = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.ran_on: threading.Thread | None = None
        with world.order.lock:
            number = world.order.take()
            self.work = Work(CallSignature("all_reduce"), number, None, "world", world.callbacks)
            self.is_cancelled = False
            self.result, self.timeout, self.deadline = number, 1.0, 1.0
            self.request = cast(Any, SimpleNamespace(run=self._run))
            self.was_taken = world.backlog.add(self)
        self._world = world

    def _run(self, *_: object) -> None:
        self.ran_on = threading.current_thread()
        self._world.ran.append(self.work.sequence)
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        if self.error is not None:
            raise self.error


class World:
    def __init__(self) -> None:
        self.callbacks = Callbacks("test")
        self.order = CallNumbering()
        self.comm = ShmComm()
        self.order.comm = cast(Any, self.comm)
        self.ran: list[int] = []
        self.skipped: list[int] = []
        recording = GroupRecorder("world", [0, 1], self.order, 0)
        self.backlog = DeferredCalls(self.callbacks, self.order, recording, self.skipped.append)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.callbacks.close(PATIENCE)


def test_calls_that_nobody_waits_for_run_one_after_the_other_in_their_order(world: World) -> None:
    calls = [Pending(world) for _ in range(5)]
    assert calls[0].begun.wait(PATIENCE)
    assert world.ran == [1]
    for one in calls:
        one.may_end.set()
    assert [one.work.get_future().result(PATIENCE) for one in calls] == [1, 2, 3, 4, 5]
    assert world.ran == [1, 2, 3, 4, 5]
    world.backlog.drain()
    assert world.backlog.is_empty
    assert world.comm.queued == world.order.deferred_count == 0


def test_calls_that_wait_take_no_thread_each(world: World) -> None:
    calls = [Pending(world) for _ in range(50)]
    for one in calls:
        one.may_end.set()
    calls[-1].work.get_future().result(PATIENCE)
    assert len(world.callbacks._threads) < 5


def test_what_follows_a_call_does_not_keep_the_next_one_waiting(world: World) -> None:
    first, second = Pending(world), Pending(world)
    followed = threading.Event()

    def follow(_: object) -> None:
        second.work.wait(PATIENCE)
        followed.set()

    first.work.get_future().add_done_callback(follow)
    for one in (first, second):
        one.may_end.set()
    assert followed.wait(PATIENCE)


def test_what_follows_the_last_call_runs_on_the_thread_that_carried_it_out(world: World) -> None:
    call = Pending(world)
    ran_on = call.work.get_future().then(lambda _: threading.current_thread())
    call.may_end.set()
    assert ran_on.wait(PATIENCE) is call.ran_on


def test_what_follows_the_last_call_does_not_wait_for_one_that_came_since(world: World) -> None:
    first = Pending(world)
    followed = threading.Event()
    future = first.work.get_future()
    future.add_done_callback(lambda _: followed.set())
    came: list[Pending] = []
    add_inline_callback(
        future, lambda _: came.append(Pending(world))
    )  # on the thread that ends the first
    first.may_end.set()
    assert followed.wait(PATIENCE)
    came[0].may_end.set()
    assert came[0].work.get_future().result(PATIENCE) == 2


def test_who_waits_carries_out_what_is_before_its_call_and_no_more(world: World) -> None:
    blocker = threading.Event()
    for _ in range(2):  # so nobody else has time
        world.callbacks.run(lambda: blocker.wait(PATIENCE))
    world.callbacks.run_urgent = lambda act: True  # type: ignore[method-assign]
    calls = [Pending(world) for _ in range(3)]
    for one in calls:
        one.may_end.set()
    calls[1].work.wait()
    assert world.ran == [1, 2]
    assert {one.ran_on for one in calls[:2]} == {threading.current_thread()}
    world.backlog.drain()
    assert world.ran == [1, 2, 3]
    blocker.set()


def test_who_has_waited_passes_on_what_is_left(world: World) -> None:
    carriers: list[Any] = []
    world.callbacks.run_urgent = lambda act: carriers.append(act) is None  # type: ignore[method-assign]
    calls = [Pending(world) for _ in range(2)]
    waiting = threading.Thread(target=calls[0].work.wait)
    waiting.start()
    assert calls[0].begun.wait(PATIENCE)
    while carriers:
        carriers.pop()()  # finds that another thread carries on
    assert world.ran == [1]
    calls[0].may_end.set()
    waiting.join(PATIENCE)
    calls[1].may_end.set()
    (act,) = carriers
    act()
    assert world.ran == [1, 2]


def test_a_call_that_fails_does_so_alone(world: World) -> None:
    calls = [Pending(world) for _ in range(2)]
    calls[0].error = OSError("broken")
    for one in calls:
        one.may_end.set()
    with pytest.raises(OSError, match="broken"):
        calls[0].work.wait()
    calls[1].work.wait()


def test_what_a_signal_handler_raises_is_for_who_waits_and_the_call_is_over(world: World) -> None:
    world.callbacks.run_urgent = lambda act: True  # type: ignore[method-assign]
    calls = [Pending(world) for _ in range(2)]
    calls[0].error = KeyboardInterrupt()
    world.comm.begun = 1
    for one in calls:
        one.may_end.set()
    with pytest.raises(KeyboardInterrupt):
        calls[1].work.wait()
    assert "was given up by this rank: KeyboardInterrupt()" in str(calls[0].work.exception())
    assert world.comm.queued == 1
    calls[1].work.wait()


def test_a_call_that_had_ended_when_a_signal_came_has_ended_well(world: World) -> None:
    world.callbacks.run_urgent = lambda act: True  # type: ignore[method-assign]
    call = Pending(world)
    call.error = KeyboardInterrupt()
    call.may_end.set()
    world.comm.begun = world.comm.completed = 1
    with pytest.raises(KeyboardInterrupt):
        call.work.wait()
    assert call.work.result() == 1


def test_a_call_that_had_not_begun_when_a_signal_came_begins_later(world: World) -> None:
    world.callbacks.run_urgent = lambda act: True  # type: ignore[method-assign]
    calls = [Pending(world) for _ in range(2)]
    calls[0].error = KeyboardInterrupt()
    for one in calls:
        one.may_end.set()
    with pytest.raises(KeyboardInterrupt):
        calls[1].work.wait()
    assert not calls[0].work.is_completed()
    calls[0].error = None
    calls[1].work.wait()
    assert calls[0].work.result() == 1
    assert world.ran == [1, 1, 2]


def test_a_call_is_left_out_only_before_its_turn(world: World) -> None:
    calls = [Pending(world) for _ in range(2)]
    assert calls[0].begun.wait(PATIENCE)
    assert not world.backlog.withdraw(calls[0])
    assert world.backlog.is_running(calls[0])
    assert world.backlog.withdraw(calls[1])
    for one in calls:
        one.may_end.set()
    world.backlog.drain()
    assert world.ran == [1]
    assert world.skipped == world.comm.skipped == [2]
    assert not calls[1].work.is_completed()  # that is for who cancelled it
    assert not world.backlog.withdraw(calls[0])
    assert not world.backlog.is_running(calls[0])


def test_no_call_goes_past_those_that_are_elsewhere(world: World) -> None:
    with world.order.lock:
        world.order.take()  # of a call on the loop
    assert not Pending(world).was_taken
    for _ in range(2):
        world.order.release()
    call = Pending(world)
    assert call.was_taken
    call.may_end.set()
    world.backlog.drain()
    world.comm.is_open = False
    assert not Pending(world).was_taken


def test_a_call_is_not_taken_when_no_thread_would_carry_it_out() -> None:
    world = World()
    assert world.callbacks.close(PATIENCE)
    assert not Pending(world).was_taken
