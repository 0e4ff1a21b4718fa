"""Stack dumps: a program's own lines, and none of what is inside of a call."""

import threading

from allhands.futures import Future
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.stack_dump import format_thread
from allhands.testing.poll import poll_until


def test_a_dump_ends_at_the_call() -> None:
    future: Future[None] = Future(Callbacks("test"))

    def wait() -> None:
        future.exception(20)

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        poll_until(lambda: "in exception" in format_thread(waiting))
        dumped = format_thread(waiting)
        assert "future.exception(20)" in dumped
        assert "futures.py" in dumped.splitlines()[-2]
        assert "concurrent" not in dumped
    finally:
        future.set_result(None)
        waiting.join()
    assert format_thread(waiting) == ""


def test_what_a_program_calls_of_others_is_all_shown() -> None:
    event = threading.Event()
    waiting = threading.Thread(target=lambda: event.wait(20))
    waiting.start()
    try:
        poll_until(lambda: "in wait" in format_thread(waiting))
        assert "threading.py" in format_thread(waiting).splitlines()[-2]
    finally:
        event.set()
        waiting.join()
