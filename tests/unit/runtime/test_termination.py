"""SIGTERM as an exception, unless handled by the program."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from allhands.runtime import termination
from allhands.runtime.signal_mask import DelayedSignals
from allhands.runtime.termination import Terminated


class Ends:
    """A world's reaction to the signal."""

    def __init__(self) -> None:
        self.count = 0

    def end(self) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_ends_what_there_is_and_raises_the_exit_of_a_shell() -> None:
    first, second = Ends(), Ends()
    for one in (first, second):
        termination.install(one.end)
    with pytest.raises(Terminated) as raised:
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 143
    assert isinstance(raised.value, SystemExit)
    assert (first.count, second.count) == (1, 1)
    termination.uninstall(first.end)
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    assert (first.count, second.count) == (1, 2)
    termination.uninstall(second.end)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("is_first", [True, False])
def test_a_handler_of_the_program_stays(is_first: bool) -> None:
    came, ends = [], Ends()
    if not is_first:
        termination.install(ends.end)
    signal.signal(signal.SIGTERM, lambda *_: came.append(True))
    if is_first:
        termination.install(ends.end)
    signal.raise_signal(signal.SIGTERM)
    termination.uninstall(ends.end)
    signal.raise_signal(signal.SIGTERM)
    assert (came, ends.count) == ([True, True], 0)


def test_a_program_that_ignores_it_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    termination.install(Ends().end)
    signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_it_does_not_break_into_what_must_be_done_whole() -> None:
    ends, done = Ends(), []
    termination.install(ends.end)

    def act() -> None:
        with DelayedSignals(), DelayedSignals() as calm:
            with calm.allow():
                signal.raise_signal(signal.SIGTERM)  # the outer block still holds it
            done.append(ends.count)

    with pytest.raises(Terminated):
        act()
    assert (done, ends.count) == ([0], 1)
    with pytest.raises(Terminated), DelayedSignals() as calm, calm.allow():
        signal.raise_signal(signal.SIGTERM)


def test_threads_other_than_the_main_one_leave_it_as_it_is() -> None:
    thread = threading.Thread(target=termination.install, args=[Ends().end])
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_process_ends_by_the_signal() -> None:
    termination.install(Ends().end)
    if (child := os.fork()) == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
