"""Blocks without interruption by signal handlers."""

import signal
from collections.abc import Iterator

import pytest

from allhands.runtime.signal_mask import DelayedSignals


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
