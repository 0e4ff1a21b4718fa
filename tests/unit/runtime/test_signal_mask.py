"""Blocks without interruption by signal handlers."""

import signal
from collections.abc import Iterator

import pytest

from allhands.runtime import termination
from allhands.runtime.signal_mask import DelayedSignals
from allhands.runtime.termination import Terminated
from support import signal_steps
from support.signal_steps import ring_at_each_step


class Rang(Exception):
    """Raised by the test's handler."""


@pytest.fixture(autouse=True)
def ringing() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Rang

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    assert signal.getsignal(signal.SIGUSR1) is ring
    signal.signal(signal.SIGUSR1, before)


def ring_then(done: list[str], what: str) -> None:
    signal.raise_signal(signal.SIGUSR1)
    done.append(what)


def test_a_handler_runs_when_the_block_is_over() -> None:
    done: list[str] = []
    with pytest.raises(Rang), DelayedSignals():
        ring_then(done, "in the block")
    assert done == ["in the block"]


def test_a_handler_may_break_into_a_block_in_which_that_is_lifted_and_not_after() -> None:
    done: list[str] = []

    def act() -> None:
        with DelayedSignals() as calm:
            with pytest.raises(Rang), calm.allow():
                ring_then(done, "lifted")
            ring_then(done, "after")

    with pytest.raises(Rang):
        act()
    assert done == ["after"]


def test_what_came_before_it_was_lifted_comes_then() -> None:
    done: list[str] = []
    with DelayedSignals() as calm:
        ring_then(done, "before")
        with pytest.raises(Rang), calm.allow():
            done.append("lifted")
    assert done == ["before"]


@pytest.mark.parametrize("lifts", [False, True])
def test_a_handler_that_raises_while_handlers_are_replaced_leaves_none_of_them_so(
    lifts: bool,
) -> None:
    """Nor is SIGTERM held for ever."""

    def act() -> None:
        with DelayedSignals() as calm:
            if lifts:
                with calm.allow():
                    pass

    ends: list[bool] = []
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    termination.install(end := lambda: ends.append(True))
    try:
        mine = signal.getsignal(signal.SIGUSR1)
        rang = 0
        for error in ring_at_each_step(act):
            assert type(error) is signal_steps.Rang
            assert signal.getsignal(signal.SIGUSR1) is mine
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            rang += 1
            with pytest.raises(Terminated):
                signal.raise_signal(signal.SIGTERM)
            assert len(ends) == rang
        assert rang > 0
    finally:
        termination.uninstall(end)
        signal.signal(signal.SIGTERM, before)
