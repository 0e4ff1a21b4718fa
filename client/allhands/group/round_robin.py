"""Round robin over several groups of the same ranks.

Calls of one group wait for each other, those of several do not: a small call need not wait for a
large one before it.
"""

import functools
import itertools
import threading
from collections.abc import Sequence

from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import BuildParts, CallTimeout
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.engine.numbering import CallNumbering
from allhands.engine.work.work import Work
from allhands.group.group import Group


class RoundRobin(Group):
    """A group for callers, made by `round_robin`; `parts` are those that carry out its calls.

    Collectives go to the groups in turn, in the order of the calls, which must be the same on all
    ranks. Messages from point to point go to the first group, so that they keep their order.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        first = groups[0]
        super().__init__(first._engine, first._thread, first.timeout, first._recovery)
        self.order = (
            CallNumbering()
        )  # no communicator: one group's would take calls past the others
        self.objects = first.objects
        self._parts = tuple(groups)
        self._group_cycle = itertools.cycle(self._parts)
        self._call_count = 0
        self._dispatch_lock = threading.Lock()
        """Held while a call is dealt and takes its number there, in one step."""

    @property
    def name(self) -> str:
        return " + ".join(group.name for group in self._parts)

    @property
    def parts(self) -> tuple[Group, ...]:
        return self._parts

    @functools.cached_property
    def here(self) -> Group:
        return self

    @property
    def sequence(self) -> int:
        """Number of the latest call of this rank; 0 before the first."""
        return self._call_count

    def explain(self) -> str:
        return "; ".join(f"{group.name}: {group.explain()}" for group in self._parts)

    def barrier(self, *, timeout: CallTimeout = None, label: str | None = None) -> Work:
        """End when every rank has called it; calls before it, on any of the groups, have ended."""
        seconds = self._resolve_timeout(timeout)
        with self._dispatch_lock:
            self._call_count += 1
            works = [group.barrier(timeout=seconds, label=label) for group in self._parts]
            return _join_works(
                works, Work(CallSignature("barrier"), self._call_count, label, self.name)
            )

    def monitored_barrier(
        self,
        timeout: CallTimeout = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> Work:
        """End when every rank has called it; it waits for no calls on other groups."""
        seconds = self._resolve_timeout(timeout)  # what is refused takes no turn
        with self._dispatch_lock:
            return self._take_next_group().monitored_barrier(seconds, wait_all_ranks, label=label)

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

    def _take_next_group(self) -> Group:
        """Return the next group in turn, with `_dispatch_lock` held."""
        self._call_count += 1
        return next(self._group_cycle)

    def _start(
        self,
        request: CollectiveRequest,
        build: BuildParts,
        result: Result,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        seconds = self._resolve_timeout(timeout)  # what is refused takes no turn
        with self._dispatch_lock:
            return self._take_next_group()._start(request, build, result, seconds, label)

    def _start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        seconds = self._resolve_timeout(timeout)  # what is refused takes no turn
        with self._dispatch_lock:
            return self._take_next_group()._start_composite(composite, seconds, label)

    def _start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
    ) -> Work:
        seconds = self._resolve_timeout(timeout)
        return self._parts[0]._start_p2p(operation, array, result, peer, tag, seconds, label)


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
