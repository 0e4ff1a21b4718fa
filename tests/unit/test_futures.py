"""Futures, and the threads of callbacks."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable

import pytest

from allhands.futures import Future, collect_all, wait_all, wrap_for_loop
from allhands.runtime.callbacks import Callbacks
from support.signal_steps import Rang, ring_at_each_step

PATIENCE = 10.0


@pytest.fixture
def callbacks():
    made = Callbacks("test")
    yield made
    assert made.close(PATIENCE)


def done(value: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(value)
    return future


def test_then_gives_what_the_function_of_the_future_returns() -> None:
    first: Future[int] = Future()
    third = first.then(lambda one: one.value() + 1).then(lambda two: two.value() * 10)
    assert not third.done()
    first.set_result(4)
    assert third.wait(PATIENCE) == 50


def test_then_is_called_of_a_failure_too_and_passes_it_on_if_the_value_is_asked_for() -> None:
    failed: Future[int] = Future()
    failed.set_exception(OSError("broken"))
    assert failed.then(lambda one: str(one.exception())).value() == "broken"
    with pytest.raises(OSError, match="broken"):
        failed.then(lambda one: one.value()).wait(0)


def test_then_of_something_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="function"):
        done(1).then(5)  # type: ignore[arg-type]


def test_a_value_that_is_not_there_yet_is_refused_at_once() -> None:
    with pytest.raises(RuntimeError, match="not done"):
        Future().value()


def test_functions_run_on_another_thread_than_the_one_that_completes(callbacks: Callbacks) -> None:
    future: Future[int] = Future(callbacks)
    ran_on = future.then(lambda _: threading.current_thread())
    future.set_result(1)
    assert ran_on.wait(PATIENCE) is not threading.current_thread()


def test_functions_of_a_future_that_is_done_run_here(callbacks: Callbacks) -> None:
    future: Future[int] = Future(callbacks)
    future.set_result(1)
    ran_on = future.then(lambda _: threading.current_thread())
    assert ran_on.value() is threading.current_thread()


def test_functions_that_wait_for_each_other_all_run(callbacks: Callbacks) -> None:
    together = threading.Barrier(20)
    start: Future[None] = Future(callbacks)
    waiting = [start.then(lambda _: together.wait(PATIENCE)) for _ in range(20)]
    start.set_result(None)
    assert sorted(wait_all(waiting)) == list(range(20))


def test_quick_functions_do_not_get_a_thread_each(callbacks: Callbacks) -> None:
    start: Future[None] = Future(callbacks)
    ran_on = [start.then(lambda _: threading.get_ident()) for _ in range(500)]
    start.set_result(None)
    assert len(set(wait_all(ran_on))) < 20


def test_what_others_wait_for_runs_at_once_however_many_are_stuck(
    callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allhands.runtime.callbacks._STUCK_SECONDS", 2 * PATIENCE)
    may_end = threading.Event()
    carried, again = threading.Event(), threading.Event()
    try:
        for _ in range(2):
            assert callbacks.run(lambda: may_end.wait(3 * PATIENCE))
        assert callbacks.run_urgent(lambda: (carried.set(), may_end.wait(3 * PATIENCE)))
        assert carried.wait(PATIENCE)
        assert callbacks.run_urgent(again.set)
        assert again.wait(PATIENCE)
    finally:
        may_end.set()


def test_threads_that_carry_leave_others_their_threads(
    callbacks: Callbacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allhands.runtime.callbacks._STUCK_SECONDS", 2 * PATIENCE)
    may_end = threading.Event()
    try:
        for _ in range(5):
            assert callbacks.run_urgent(lambda: may_end.wait(3 * PATIENCE))
        ran: Future[bool] = Future()
        assert callbacks.run(lambda: ran.set_result(True))
        assert ran.wait(PATIENCE)
    finally:
        may_end.set()


def test_what_is_given_at_the_end_runs_on_the_same_thread_and_only_the_first(
    callbacks: Callbacks,
) -> None:
    ran_on: Future[int] = Future()
    others: list[Future[int]] = [Future(), Future()]
    carrier: Future[int] = Future()

    def first() -> None:
        others[0].wait(PATIENCE)  # which would not come if it had to wait for this
        ran_on.set_result(threading.get_ident())

    def carried() -> None:
        with callbacks.mark_ending():
            callbacks.run(first)
            callbacks.run(lambda: others[0].set_result(threading.get_ident()))
        callbacks.run(lambda: others[1].set_result(threading.get_ident()))
        carrier.set_result(threading.get_ident())

    callbacks.run_urgent(carried)
    assert ran_on.wait(PATIENCE) == carrier.wait(PATIENCE) != others[0].wait(PATIENCE)
    others[1].wait(PATIENCE)


def test_other_threads_never_run_what_is_given_at_their_end(callbacks: Callbacks) -> None:
    ran_on: Future[int] = Future()
    with callbacks.mark_ending():
        assert callbacks.run(lambda: ran_on.set_result(threading.get_ident()))
    assert ran_on.wait(PATIENCE) != threading.get_ident()


def test_closing_waits_for_functions_that_run_and_refuses_later_ones() -> None:
    callbacks = Callbacks("test")
    begun, may_end = threading.Event(), threading.Event()
    ended = []

    def act() -> None:
        begun.set()
        may_end.wait(PATIENCE)
        ended.append(True)

    callbacks.run(act)
    begun.wait(PATIENCE)
    assert not callbacks.close(0)
    assert not callbacks.run(act)
    may_end.set()
    assert callbacks.close(PATIENCE)
    assert ended == [True]


def test_a_function_may_close_the_threads_it_runs_on() -> None:
    callbacks = Callbacks("test")
    closed: Future[bool] = Future()
    callbacks.run(lambda: closed.set_result(callbacks.close(PATIENCE)))
    assert closed.wait(PATIENCE)


def test_wait_all_gives_the_values_in_order_or_the_first_failure_without_the_rest() -> None:
    assert wait_all([done(1), done(2)]) == [1, 2]
    assert wait_all([]) == []
    failed: Future[object] = Future()
    failed.set_exception(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        wait_all([Future(), failed])


def test_collect_all_gives_the_futures_once_all_are_done_failed_or_not() -> None:
    one: Future[object] = Future()
    two: Future[object] = Future()
    collected = collect_all([one, two])
    one.set_exception(OSError("broken"))
    assert not collected.done()
    two.set_result(2)
    first, second = collected.value()
    assert isinstance(first.exception(), OSError)
    assert second.value() == 2
    assert collect_all([]).value() == []


async def test_asyncio_waits_for_a_future_either_way(callbacks: Callbacks) -> None:
    for wrap in (wrap_for_loop, asyncio.wrap_future):
        future: Future[int] = Future(callbacks)
        waiting = wrap(future)
        threading.Thread(target=future.set_result, args=(3,)).start()
        assert await waiting == 3
        failed: Future[int] = Future(callbacks)
        waiting = wrap(failed)
        threading.Thread(target=failed.set_exception, args=(OSError("broken"),)).start()
        with pytest.raises(OSError, match="broken"):
            await waiting


def test_a_future_is_one_of_the_standard_library() -> None:
    future: Future[int] = Future()
    future.set_result(1)
    assert list(concurrent.futures.as_completed([future])) == [future]


def test_a_function_given_right_after_another_has_a_thread_though_that_one_waits_for_it(
    callbacks: Callbacks,
) -> None:
    """The single idle thread is woken once, and takes one of the two functions."""
    for _ in range(20):
        ready, done = threading.Event(), threading.Event()
        callbacks.run(ready.set)
        assert ready.wait(PATIENCE)
        second = threading.Event()

        def wait_for(other: threading.Event = second, end: threading.Event = done) -> None:
            if other.wait(PATIENCE):
                end.set()

        callbacks.run(wait_for)
        callbacks.run(second.set)
        assert done.wait(PATIENCE)


@pytest.mark.parametrize("ask", [Future.done, lambda future: future.exception(0.002)])
def test_a_handler_that_raises_in_who_asks_keeps_nobody_from_completing_it(
    ask: Callable[[Future[int]], object],
) -> None:
    future: Future[int] = Future()
    rang = 0
    for error in ring_at_each_step(lambda: ask(future)):
        assert type(error) is Rang
        other = threading.Thread(target=future.done, daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive()
        rang += 1
    assert rang > 0
    future.set_result(1)
    assert future.result() == 1
