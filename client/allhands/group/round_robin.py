"""Round robin over several groups of the same ranks.

Calls of one group wait for each other, those of several do not: a small call need not wait for a
large one before it.
"""

import itertools
from collections.abc import Sequence

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.signature import Result
from allhands.collectives.staging import Staging
from allhands.engine.numbering import CallNumbering
from allhands.engine.work.work import Work
from allhands.group.group import Group
from allhands.group.interfaces import Submitter


class RoundRobinSubmitter:
    """Deals calls to the submitters of several groups in turn; barriers to all of them."""

    def __init__(self, groups: Sequence[Group]) -> None:
        # Hooks see the calls of the whole, and not those of its parts.
        self._parts = tuple(group.base_submitter for group in groups)
        self.engine = self._parts[0].engine
        self.executor = self._parts[0].executor
        # No communicator: one group's would take calls past the others. Its lock is held while a
        # call is dealt and takes its number there, in one step.
        self.order = CallNumbering(groups[0].timeout)
        self.name = " + ".join(group.name for group in groups)
        self._submitter_cycle = itertools.cycle(self._parts)

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        seconds = self.order.resolve_timeout(timeout)  # what is refused takes no turn
        with self.order.lock:
            if call.request.kind != "barrier":
                return self._take_next().start(call, seconds, label)
            combined = Work(call.request.call, self.order.take(), label, self.name)
            works = [part.start(call, seconds, label) for part in self._parts]
            return _join_works(works, combined)

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        seconds = self.order.resolve_timeout(timeout)
        with self.order.lock:
            return self._take_next().start_composite(composite, seconds, label)

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        """Start a barrier of the next group, which waits for no calls on the others."""
        seconds = self.order.resolve_timeout(timeout)
        with self.order.lock:
            return self._take_next().start_monitored_barrier(seconds, wait_all_ranks, label)

    def start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        seconds = self.order.resolve_timeout(timeout)
        return self._parts[0].start_p2p(
            operation, array, result, peer, tag, seconds, label, staging
        )

    def skip(self, reason: str) -> None:
        with self.order.lock:
            self._take_next().skip(reason)

    def _take_next(self) -> Submitter:
        """Count a call; return the submitter whose turn it is, with the order's lock held."""
        self.order.take()
        return next(self._submitter_cycle)


class RoundRobin(Group):
    """A group for callers, made by `round_robin`; `parts` are those that carry out its calls.

    Collectives go to the groups in turn, in the order of the calls, which must be the same on all
    ranks. Messages from point to point go to the first group, so that they keep their order. A
    barrier waits for the calls before it on any of the groups; a monitored barrier for none.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._parts = tuple(groups)
        first, submitter = self._parts[0], RoundRobinSubmitter(self._parts)
        self._name = submitter.name
        self._set_up(submitter, None, first.recovery, first.objects)
        if first.call_hooks is not None:
            first.call_hooks.attach(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def parts(self) -> tuple[Group, ...]:
        return self._parts

    def explain(self) -> str:
        return "; ".join(f"{group.name}: {group.explain()}" for group in self._parts)

    def abort(self, reason: str) -> None:
        """Abort all parts on all ranks."""
        for group in self._parts:
            group.abort(reason)

    def shrink(self, *, timeout: CallTimeout = None) -> "RoundRobin":
        """Return the same of groups of the ranks that are left; all of them must call it."""
        return RoundRobin([group.shrink(timeout=timeout) for group in self._parts])

    def grow(self, count: int, *, timeout: CallTimeout = None) -> Group:
        """Refuse: newcomers join a single group as the world."""
        raise RuntimeError("several groups cannot grow as one: let the world grow, and make others")


def _join_works(works: Sequence[Work], combined: Work) -> Work:
    """Let a work end when all of several have, by the first error if there was one."""
    left = itertools.count(len(works) - 1, -1)

    def finish_one(_: object) -> None:
        if next(left):
            return
        error = next((one.exception() for one in works if one.exception() is not None), None)
        if error is None:
            combined.succeed(None)
        else:
            combined.fail(error)

    def cancel() -> None:
        for work in works:
            work.cancel()

    combined.own(cancel)
    for work in works:
        work.get_future().add_done_callback(finish_one)
    return combined
