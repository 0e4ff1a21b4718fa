"""Failures of a group in the order in which they became known: the first names what a call ends in.

What is heard of ranks comes in the coordinator's order. A rank that ends because it lost another
one is heard of later than that one, and is not to blame.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from allhands.engine.failures.call_errors import Failure

_NO_CALL = -1


@dataclass(frozen=True, slots=True)
class _Loss:
    failure: Failure
    after: int
    """Calls of a greater number cannot end."""
    is_fault: bool
    """Whether faults that come later are taken for consequences of this one."""
    rank: int | None = None
    """Who has left; None: it is not about one rank."""


class Losses:
    """What calls and messages of a group on one rank can end in; first of all the first loss."""

    def __init__(self) -> None:
        self._losses: list[_Loss] = []
        self._given_up: dict[int, tuple[int, Failure]] = {}
        """By call, and how many losses there were before."""
        self._has_failed = False

    @property
    def has_failed(self) -> bool:
        """Whether no call can end well any more."""
        return self._has_failed

    def fail(self, failure: Failure) -> bool:
        """Take in what ends the group; say whether nothing had ended it before."""
        if self._has_failed:
            return False
        self._has_failed = True
        self._losses.append(_Loss(failure, _NO_CALL, is_fault=True))
        return True

    def close(self, failure: Failure) -> bool:
        """Take in that this rank ends the group; unlike a failure it hides who has left before."""
        if self._has_failed:
            return False
        self.replace(failure)
        return True

    def replace(self, failure: Failure) -> None:
        """Let `failure` be what all calls end in, instead of what was taken in before."""
        self._has_failed = True
        self._losses.insert(0, _Loss(failure, _NO_CALL, is_fault=True))

    def leave(self, rank: int, completed: int, failure: Failure, *, is_fault: bool) -> None:
        """Take in that a rank of the world left after call number `completed`."""
        self._losses.append(_Loss(failure, completed, is_fault, rank))

    def give_up(self, sequence: int, failure: Failure) -> Failure:
        """Take in that a rank has given a call up; return what was taken in of that call first."""
        return self._given_up.setdefault(sequence, (len(self._losses), failure))[1]

    def conclude(self, sequence: int) -> None:
        """Forget which calls were given up, up to a number."""
        if self._given_up:
            self._given_up = {at: one for at, one in self._given_up.items() if at > sequence}

    def reason(self, sequence: int) -> Failure | None:
        """Return what a call ends in that cannot end well; None: nothing is known of that."""
        before, given_up = self._given_up.get(sequence, (None, None))
        for one in self._losses[:before]:
            if sequence > one.after:
                return self._blamed(one)
        return given_up

    def reason_of_message(self, peer: int | None, others: Sequence[int]) -> Failure | None:
        """Return what a message ends in that cannot arrive; `others` are the group's other ranks.

        It is with `peer`, a rank of the world, or with any of them where that is None.
        """
        candidates = set(others if peer is None else [peer])
        for one in self._losses:
            if one.rank is not None:
                candidates.discard(one.rank)
            if one.rank is None or not candidates:
                return self._blamed(one)
        return None

    def has_left(self, rank: int) -> bool:
        """Say whether a rank of the world has left."""
        return any(one.rank == rank for one in self._losses)

    def left(self) -> Collection[int]:
        """Return the ranks of the world that have left."""
        return [one.rank for one in self._losses if one.rank is not None]

    def limits(self) -> list[int]:
        """Return after which calls ranks have left."""
        return [one.after for one in self._losses if one.rank is not None]

    def _blamed(self, loss: _Loss) -> Failure:
        """Return the first fault where a loss is one too, and may follow from it."""
        if not loss.is_fault:
            return loss.failure
        return next(one.failure for one in self._losses if one.is_fault)
