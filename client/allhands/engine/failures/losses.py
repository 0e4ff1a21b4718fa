"""Failure log of a group, in the order of arrival: the first failure is the error of later calls.

Losses of ranks arrive in the coordinator's order. A rank that ends because it lost a peer arrives
later than that peer, and is not to blame.
"""

from collections.abc import Collection, Sequence

from allhands.engine.failures.call_errors import ErrorFactory
from allhands_proto.quick_dataclass import dataclass

_NO_CALL = -1


@dataclass(frozen=True, slots=True)
class _FailureEvent:
    failure: ErrorFactory
    last_call: int
    """Calls of a greater number cannot end."""
    is_fault: bool
    """Whether faults that come later are taken for consequences of this one."""
    rank: int | None = None
    """Who has left; None: it is not about one rank."""


class FailureLog:
    """The failures of calls and messages of a group on one rank; the first loss comes first."""

    def __init__(self) -> None:
        self._events: list[_FailureEvent] = []
        self._give_ups: dict[int, tuple[int, ErrorFactory]] = {}
        """By call, and how many losses there were before."""
        self._has_failed = False

    @property
    def has_failed(self) -> bool:
        """Whether no call can end well any more."""
        return self._has_failed

    @property
    def is_quiet(self) -> bool:
        """Whether no failure, departure or call given up is known."""
        return not (self._events or self._give_ups)

    def fail(self, failure: ErrorFactory) -> bool:
        """Record a failure of the group; return whether it is the first."""
        if self._has_failed:
            return False
        self._has_failed = True
        self._events.append(_FailureEvent(failure, _NO_CALL, is_fault=True))
        return True

    def close(self, failure: ErrorFactory) -> bool:
        """Record that this rank closes the group; unlike a failure, hides earlier departures."""
        if self._has_failed:
            return False
        self.replace(failure)
        return True

    def replace(self, failure: ErrorFactory) -> None:
        """Replace all recorded failures by `failure`."""
        self._has_failed = True
        self._events.insert(0, _FailureEvent(failure, _NO_CALL, is_fault=True))

    def record_departure(
        self, rank: int, completed: int, failure: ErrorFactory, *, is_fault: bool
    ) -> None:
        """Take in that a rank of the world left after call number `completed`."""
        self._events.append(_FailureEvent(failure, completed, is_fault, rank))

    def record_give_up(self, sequence: int, failure: ErrorFactory) -> ErrorFactory:
        """Record that a rank cancelled a call; return the first failure recorded for that call."""
        return self._give_ups.setdefault(sequence, (len(self._events), failure))[1]

    def conclude(self, sequence: int) -> None:
        """Forget which calls were given up, up to a number."""
        if self._give_ups:
            self._give_ups = {at: one for at, one in self._give_ups.items() if at > sequence}

    def find_failure(self, sequence: int) -> ErrorFactory | None:
        """Return the failure of a call that cannot succeed; None: no failure is known."""
        before, given_up = self._give_ups.get(sequence, (None, None))
        for one in self._events[:before]:
            if sequence > one.last_call:
                return self._resolve_cause(one)
        return given_up

    def is_ended_by_departure(self, sequence: int) -> bool:
        """Return whether a call cannot succeed because a rank left, without an error."""
        for one in self._events:
            if sequence > one.last_call:
                return one.rank is not None and not one.is_fault
        return False

    def find_message_failure(self, peer: int | None, others: Sequence[int]) -> ErrorFactory | None:
        """Return the failure of a message that cannot arrive; None: no failure is known.

        `peer` is the message's other end, a rank of the world; None: any of `others`, the other
        ranks of the group.
        """
        candidates = set(others if peer is None else [peer])
        for one in self._events:
            if one.rank is not None:
                candidates.discard(one.rank)
            if one.rank is None or not candidates:
                return self._resolve_cause(one)
        return None

    def has_left(self, rank: int) -> bool:
        """Say whether a rank of the world has left."""
        return any(one.rank == rank for one in self._events)

    def list_departed(self) -> Collection[int]:
        """Return the departed ranks of the world."""
        return [one.rank for one in self._events if one.rank is not None]

    def list_last_calls(self) -> list[int]:
        """Return after which calls ranks have left."""
        return [one.last_call for one in self._events if one.rank is not None]

    def _resolve_cause(self, event: _FailureEvent) -> ErrorFactory:
        """Return the first fault instead, if the loss is a fault that may follow from it."""
        if not event.is_fault:
            return event.failure
        return next(one.failure for one in self._events if one.is_fault)
