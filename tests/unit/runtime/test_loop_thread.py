"""The loop's thread, and the loop borrowed by callers: one owner at a time."""

import asyncio
import concurrent.futures
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, NoReturn

import pytest

from allhands.runtime import loop_thread
from allhands.runtime.loop_thread import LoopThread
from support.signal_steps import Rang, ring_at_each_step

PATIENCE = 20.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("lending")
    made.run(asyncio.sleep(0))
    yield made
    made.stop()


def borrow(thread: LoopThread, act: Callable[[], bool]) -> None:
    """Borrow the loop, even right after the loop's thread has taken over."""
    while not thread.run_on_caller_thread(act):
        pass


def test_it_is_lent_to_the_thread_that_asks(thread: LoopThread) -> None:
    seen: list[object] = []

    def act() -> bool:
        seen.extend([threading.current_thread(), asyncio.get_running_loop()])
        return False

    borrow(thread, act)
    assert seen == [threading.current_thread(), thread.loop]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@pytest.mark.parametrize("goes_on", [True, False])
def test_nothing_runs_on_it_meanwhile_and_everything_soon_afterwards(
    thread: LoopThread, goes_on: bool
) -> None:
    ran = threading.Event()

    def act() -> bool:
        thread.loop.call_soon_threadsafe(ran.set)
        assert not ran.wait(0.05)
        return goes_on

    for _ in range(5):  # the first has to ask for it, the others find it free
        borrow(thread, act)
        assert ran.wait(PATIENCE)
        ran.clear()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause between two borrowers be long enough for the thread to take the loop."""
    monkeypatch.setattr(loop_thread, "PARK_SECONDS", 0.2)


def test_what_others_call_comes_to_its_turn_while_it_is_lent_again_and_again(
    steady: None, thread: LoopThread
) -> None:
    over = threading.Event()

    never = threading.Event()

    def keep_borrowing() -> None:
        while not over.is_set():
            thread.run_on_caller_thread(lambda: never.wait(0.0005))  # False

    borrower = threading.Thread(target=keep_borrowing)
    borrower.start()
    try:
        for _ in range(50):
            came = threading.Event()
            thread.call(came.set)
            assert came.wait(PATIENCE)
        # Nobody calls for what is due by itself.
        for _ in range(5):
            came = threading.Event()
            thread.call(thread.loop.call_later, 0.005, came.set)
            assert came.wait(PATIENCE)
    finally:
        over.set()
        borrower.join()


def test_a_thread_that_is_due_has_its_turn_before_it_hands_the_loop_over(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In it the loop looks at its sockets, and acts on what came."""
    monkeypatch.setattr(loop_thread, "MAX_PARK_SECONDS", 0.001)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    came: list[bytes] = []

    def read() -> None:
        came.extend([theirs.recv(1)] if not came else [])

    def act() -> bool:
        thread.loop.add_reader(theirs, lambda: thread.loop.call_soon(read))
        while not thread.is_thread_due:
            never.wait(0.001)
        ours.send(b"x")
        return False

    never = threading.Event()
    with ours, theirs:
        for _ in range(20):
            borrow(thread, act)
            assert thread.take_loop()
            assert came == [b"x"]
            came.clear()


def test_the_loop_is_taken_however_often_the_thread_is_due(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread, "PARK_SECONDS", 0.0001)
    monkeypatch.setattr(loop_thread, "MAX_PARK_SECONDS", 0.0002)
    assert all(thread.take_loop() for _ in range(5000))


def test_the_loop_is_not_taken_on_its_own_thread_or_at_its_end(thread: LoopThread) -> None:
    async def take() -> bool:
        return thread.take_loop()

    assert thread.run(take()) is False
    thread.stop()
    assert thread.take_loop() is False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the thread off a borrowed loop until the doorbell rings."""
    monkeypatch.setattr(loop_thread, "PARK_SECONDS", 60.0)
    monkeypatch.setattr(loop_thread, "MAX_PARK_SECONDS", 60.0)


def test_it_is_taken_back_at_once_where_there_is_something_to_do(
    patient: None, thread: LoopThread
) -> None:
    ran = threading.Event()

    def act() -> bool:
        thread.loop.call_soon(ran.set)
        return True

    borrow(thread, act)
    assert ran.wait(PATIENCE)
    ran.clear()
    borrow(thread, lambda: False)
    thread.call(ran.set)
    assert ran.wait(PATIENCE)
    borrow(thread, lambda: False)
    assert thread.run(asyncio.sleep(0, "ran")) == "ran"
    borrow(thread, lambda: False)  # and `stop` ends it


def test_who_has_borrowed_the_loop_sees_that_the_thread_is_called(
    patient: None, thread: LoopThread
) -> None:
    seen: list[bool] = []
    ran = threading.Event()

    def borrowed() -> bool:
        seen.append(thread.is_rung)
        thread.call(ran.set)
        seen.append(thread.is_rung)
        return False

    borrow(thread, borrowed)
    assert seen == [False, True]
    assert ran.wait(PATIENCE)
    borrow(thread, borrowed)
    assert seen[2:] == [False, True]


def test_the_thread_does_not_ask_for_the_loop_because_it_is_lent_for_long(
    monkeypatch: pytest.MonkeyPatch, thread: LoopThread
) -> None:
    monkeypatch.setattr(loop_thread, "PARK_SECONDS", 0.01)
    monkeypatch.setattr(loop_thread, "MAX_PARK_SECONDS", 60.0)
    seen: list[bool] = []

    def act() -> bool:
        threading.Event().wait(0.1)
        seen.append(thread.is_thread_due)
        return False

    borrow(thread, act)
    assert seen == [False]


def test_a_forked_child_gets_nothing(patient: None, thread: LoopThread) -> None:
    borrow(thread, lambda: False)
    child = os.fork()
    if not child:
        os._exit(thread.run_on_caller_thread(lambda: False))
    assert os.waitpid(child, 0)[1] == 0


def test_it_has_one_owner_at_a_time(thread: LoopThread) -> None:
    inside = 0
    most = 0
    turns = [0, 0, 0]

    def enter() -> bool:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(50):
            threading.Event().is_set()  # gives other threads time to come in
        inside -= 1
        return turns[0] % 3 == 0

    def borrowing(at: int) -> None:
        while turns[at] < 500:
            turns[at] += thread.run_on_caller_thread(enter)

    def calling() -> None:
        for _ in range(500):
            thread.call(enter)

    threads = [threading.Thread(target=borrowing, args=[at]) for at in range(3)]
    threads.append(threading.Thread(target=calling))
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
        assert not one.is_alive()
    thread.run(asyncio.sleep(0))
    assert (most, inside) == (1, 0)


class EndedCoroutine(Coroutine[None, None, None]):
    """A coroutine that ends at once, and may be dropped: no warning tells that it was."""

    def send(self, value: None) -> None:
        raise StopIteration

    def throw(self, *error: Any) -> NoReturn:
        raise error[0]

    def close(self) -> None:
        pass

    def __await__(self) -> Generator[None, None, None]:
        raise NotImplementedError


def test_a_handler_that_raises_in_who_waits_for_a_coroutine_leaves_the_loop_running(
    thread: LoopThread,
) -> None:
    rang = 0
    for error in ring_at_each_step(lambda: thread.run(EndedCoroutine())):
        assert type(error) is Rang
        ran = threading.Event()
        thread.call(ran.set)
        assert ran.wait(PATIENCE)
        rang += 1
    assert rang > 0


def test_a_handler_that_raises_in_who_borrows_the_loop_leaves_it_to_others(
    patient: None, thread: LoopThread
) -> None:
    borrow(thread, lambda: False)
    rang = 0
    for error in ring_at_each_step(lambda: thread.run_on_caller_thread(lambda: False)):
        assert type(error) is Rang
        assert not thread.borrow_lock.locked()
        assert not thread.loop_lock.locked()
        rang += 1
    assert rang > 0


def test_who_waits_for_a_cancelled_coroutine_hears_of_it(thread: LoopThread) -> None:
    async def be_cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(be_cancelled())


def test_signals_do_not_break_into_what_is_done_on_it(thread: LoopThread) -> None:
    whole = []

    def act() -> bool:
        signal.raise_signal(signal.SIGINT)
        whole.append(True)
        return False

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        borrow(thread, act)
    assert whole == [True]
    assert signal.getsignal(signal.SIGINT) is handler
    borrow(thread, lambda: False)
    assert thread.run(asyncio.sleep(0, "alive")) == "alive"


def test_what_goes_wrong_there_is_raised_and_the_loop_goes_on(thread: LoopThread) -> None:
    def act() -> bool:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        borrow(thread, act)
    assert thread.run(asyncio.sleep(0, "alive")) == "alive"


def test_it_is_not_lent_on_its_own_thread_or_after_its_end(thread: LoopThread) -> None:
    async def on_it() -> bool:
        return thread.run_on_caller_thread(lambda: False)

    assert thread.run(on_it()) is False
    thread.stop()
    assert thread.run_on_caller_thread(lambda: False) is False


def test_it_ends_while_others_borrow_it() -> None:
    for _ in range(20):
        thread = LoopThread("ending")
        over = threading.Event()

        def keep_borrowing(thread: LoopThread = thread, over: threading.Event = over) -> None:
            while not over.is_set():
                try:
                    thread.run_on_caller_thread(lambda: True)
                except RuntimeError:  # closed
                    return

        borrower = threading.Thread(target=keep_borrowing)
        borrower.start()
        thread.run(asyncio.sleep(0))
        thread.stop()
        over.set()
        borrower.join(PATIENCE)
        assert not borrower.is_alive()


class PollerCompletionQueue:
    """Namesake of gRPC's poller, which wakes closed loops."""

    def handle_events(self, text: str) -> None:
        raise RuntimeError(text)


def test_what_callbacks_raise_is_told_but_for_a_poller_that_finds_a_loop_over(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    poller = PollerCompletionQueue()
    thread.call(partial(poller.handle_events, "Event loop is closed"))
    thread.run(asyncio.sleep(0))
    assert not caplog.records
    thread.call(partial(poller.handle_events, "something else"))
    thread.run(asyncio.sleep(0))
    assert "something else" in caplog.text
