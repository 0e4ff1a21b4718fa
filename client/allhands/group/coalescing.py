"""A group whose calls are collected, and made together later."""

import bisect
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from allhands.collectives import coalesced
from allhands.collectives.arguments import span
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import Chain
from allhands.collectives.primitive import Build, Timeout
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import Native
from allhands.collectives.signature import Result
from allhands.engine.numbering import Careful
from allhands.engine.work.work import Work
from allhands.futures import Future, at_once
from allhands.group.group import Group

_TOGETHER = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Calls of which many travel as one."""


class NotMade(RuntimeError):
    """Somebody waits for a call that is made at the end of the block of code that this is in."""


class Promised(Work):
    """A call that is not made yet."""

    is_made = False
    gives: Result = None
    """Its result; None: that of the work that carries it out."""
    settle: Callable[[], None] | None = None
    """What is to be done when it has ended well, before anybody is told so who waits for all."""

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait as for any work, once the call has been made.

        Raises:
            NotMade: it would not be while this waits.
        """
        if not self.is_made:
            raise NotMade(
                f"{self.operation} of group {self.group!r} is made at the end of the block of "
                "coalescing(): wait, or call what gives something back, outside of it"
            )
        return super().wait(timeout)

    def made_as(self, work: Work) -> None:
        """Learn which work carries this call out."""
        self.is_made = True
        self.own(work.cancel)

    def end_as(self, future: "Future[Result]") -> None:
        """End as that has."""
        if (error := future.exception()) is not None:
            self.fail(error)
        else:
            self.succeed(future.result() if self.gives is None else self.gives)


@dataclass(slots=True)
class _Collected:
    """A call with its arguments checked."""

    work: Promised
    native: Native
    build: Build | None
    """None where it is a chain."""
    chain: Chain | None
    result: Result
    timeout: Timeout
    label: str | None

    @property
    def alike(self) -> tuple[object, ...]:
        """What calls that travel together have in common; of one that does not, itself."""
        native = self.native
        if native.kind not in _TOGETHER:
            return (id(self),)
        return (native.kind, native.op, self.timeout, self.label)


class Collecting(Group):
    """Collects what one thread calls on a group; made by `on`."""

    def __init__(self, group: Group, thread: int) -> None:
        super().__init__(group._engine, group._thread, group.timeout, group._recovery)
        self.objects = group.objects
        self._group = group
        self._collects_for = thread
        self._calls: list[_Collected] = []

    @classmethod
    @contextlib.contextmanager
    def on(cls, group: Group, thread: int) -> "Iterator[Collecting]":
        """Let calls of a thread be collected that are made on a group by name, for a while.

        Raises:
            RuntimeError: they are already.
        """
        if group.collecting is not None:
            raise RuntimeError(f"calls of group {group.name!r} are being collected already")
        collecting = cls(group, thread)
        order, group.order = group.order, Careful(group._engine.order)  # nothing goes past it
        group.collecting = collecting
        try:
            yield collecting
        finally:
            group.collecting = None
            group.order = order

    def instead(self) -> Group | None:
        """Return what the calling thread is to call on instead of the group; None: the group."""
        return self if threading.get_ident() == self._collects_for else None

    @property
    def here(self) -> Group:
        return self

    def make(self) -> Sequence[Work]:
        """Make what was collected; return a work for each of the calls."""
        alike: list[_Collected] = []
        written: list[tuple[int, int]] = []
        for one in self._calls:
            if alike and (one.alike != alike[0].alike or _touches(written, one.native)):
                self._make(alike)
                alike, written = [], []
            alike.append(one)
            for array in one.native.targets:
                bisect.insort(written, span(array))
        if alike:
            self._make(alike)
        return [one.work for one in self._calls]

    def monitored_barrier(
        self, timeout: Timeout = None, wait_all_ranks: bool = False, *, label: str | None = None
    ) -> Work:
        raise RuntimeError("a monitored_barrier waits for all ranks: call it outside of the block")

    # ------------------------------------------------------------ inside

    def _start(
        self, native: Native, build: Build, result: Result, timeout: Timeout, label: str | None
    ) -> Work:
        self._given(timeout)
        work = Promised(native.call, 0, label, self.name, self._thread.callbacks)
        work.gives = result
        self._calls.append(_Collected(work, native, build, None, result, timeout, label))
        return work

    def _chain(self, chain: Chain, timeout: Timeout, label: str | None) -> Work:
        self._given(timeout)
        work = Promised(chain.call, 0, label, self.name, self._thread.callbacks)
        native = Native(chain.call.operation)
        self._calls.append(_Collected(work, native, None, chain, None, timeout, label))
        return work

    def _exchange(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        return self._group._exchange(operation, array, result, peer, tag, timeout, label)

    def _make(self, alike: Sequence[_Collected]) -> None:
        first = alike[0]
        if first.chain is not None:
            made = self._group._chain(first.chain, first.timeout, first.label)
        elif len(alike) == 1:
            assert first.build is not None
            made = self._group._start(
                first.native, first.build, first.result, first.timeout, first.label
            )
        else:
            made = self._group._chain(self._together(alike), first.timeout, first.label)
        works = [one.work for one in alike]
        for work in works:
            work.made_as(made)

        def end(future: "Future[Result]") -> None:
            for work in works:
                work.end_as(future)

        at_once(made.get_future(), end)

    def _together(self, alike: Sequence[_Collected]) -> Chain:
        natives = [one.native for one in alike]
        targets = [native.targets[0] for native in natives]
        shapes = [native.shape or () for native in natives]
        op = natives[0].op or ReduceOp.SUM
        match natives[0].kind:
            case "all_reduce":
                return coalesced.all_reduce(targets, shapes, op, None)
            case "reduce_scatter_tensor":
                blocks = [one.sources for one in natives]
                return coalesced.reduce_scatter(targets, blocks, shapes, op, None)
            case kind:
                places = [list(target.reshape(self.size, -1)) for target in targets]
                sources = [native.sources[0] for native in natives]
                return coalesced.all_gather(places, sources, shapes, f"{kind}_coalesced", None)


def _touches(written: Sequence[tuple[int, int]], native: Native) -> bool:
    """Say whether a call reads or writes any of the memory that others write, given in order."""
    for array in (*native.targets, *native.sources):
        start, stop = span(array)
        at = bisect.bisect_left(written, (start, start))
        if at < len(written) and written[at][0] < stop and start < stop:
            return True
        if at and written[at - 1][1] > start and start < stop:
            return True
    return False
