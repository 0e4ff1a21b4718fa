"""Strands: the calls of one hook, in an order of their own.

A hook that calls on when its first call has ended does so on some thread, while the hooks of other
buckets do the same: the ranks then make these calls in different orders. So each bucket has groups
of its own, with the same ranks, on which its hook and all that follows from it call. Who calls in
no strand calls on the group itself.

What follows from the calls of a hook has its turn, bucket by bucket: hooks share what they keep
between buckets without a lock, since NCCL's futures run what follows in the hook's own thread.
"""

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from allhands import c10d
from allhands.api.world import GroupOptions, World
from allhands.futures import Future
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.runtime.callbacks import Callbacks


@dataclass(frozen=True)
class Strand:
    """A strand, the same on all ranks."""

    name: str
    gathers_whole: bool = False
    """Whether futures of its all_gathers give one tensor, as NCCL's do, not one of each rank."""

    def given(self, operation: str, result: Any) -> Any:
        """Return what the future of a call gives."""
        is_whole = self.gathers_whole and operation == "all_gather"
        return [torch.stack(result)] if is_whole else result


_inside: ContextVar["Turn | None"] = ContextVar("allhands_turn", default=None)


class Turn:
    """One call of a hook, in a strand, with all that follows from it; safe from any thread."""

    def __init__(self, strand: Strand, begun: Future[None], callbacks: Callbacks | None) -> None:
        """Begin when `begun` is done, which is the end of the turn before."""
        self.strand = strand
        self.over: Future[None] = Future(callbacks)
        """Done when nothing is left to follow."""
        self._begun = begun
        self._lock = threading.Lock()
        self._left = 2
        """What it waits for: to begin, the hook itself, and each future of its calls."""
        begun.add_done_callback(lambda _: self._ended())

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """Let the block, for which the end of the turn waits, make its calls in this turn."""
        token = _inside.set(self)
        try:
            yield
        finally:
            _inside.reset(token)
            self._ended()

    def follow(self, future: Future[Any], act: Callable[[], object]) -> None:
        """Call `act` in this turn, once the future of a call of it is done."""
        with self._lock:
            self._left += 1

        def in_turn(_: object) -> None:
            with self.part():
                act()

        future.add_done_callback(lambda _: self._begun.add_done_callback(in_turn))

    def _ended(self) -> None:
        with self._lock:
            self._left -= 1
            is_over = self._left == 0
        if is_over:
            self.over.set_result(None)


class Turns:
    """The turns of a hook, one after the other as it is called; `callbacks` run what follows.

    What follows in a turn may wait for whatever comes of that turn and of those before it.
    """

    def __init__(self, callbacks: Callbacks | None) -> None:
        self._callbacks = callbacks
        self._last_over: Future[None] = Future(callbacks)
        self._last_over.set_result(None)

    def next(self, strand: Strand) -> Turn:
        turn = Turn(strand, self._last_over, self._callbacks)
        self._last_over = turn.over
        return turn


current = _inside.get
"""Return the turn that the caller is in; None: in none."""


class Strands:
    """The strands of a group; safe from any thread."""

    def __init__(self, group: Group, world: World) -> None:
        self._group = group
        self._world = world
        self._lock = threading.Lock()
        self._natives: dict[Strand, c10d.ProcessGroup] = {}
        self._numbered = itertools.count(1)

    def numbered(self, name: str) -> str:
        """Return a new name: the same on all ranks, where all ask for as many."""
        return f"{name} {next(self._numbered)}"

    def native(self, strand: Strand) -> c10d.ProcessGroup:
        """Return the group on which calls of a strand are made, with the timeout of the whole."""
        with self._lock:
            if (found := self._natives.get(strand)) is None:
                found = self._natives[strand] = c10d.ProcessGroup(self._made(strand))
            found.group.timeout = self._group.timeout
            return found

    def close(self) -> None:
        """End the strands when their calls have ended. Idempotent."""
        with self._lock:
            natives, self._natives = self._natives, {}
        for native in natives.values():
            if self._world.is_open(native.group):
                self._world.close_group(native.group)

    def abort(self, why: str) -> None:
        """End the strands on all ranks, at once."""
        with self._lock:
            natives = list(self._natives.values())
        for native in natives:
            if self._world.is_open(native.group):
                native.group.abort(why)

    def _made(self, strand: Strand) -> Group:
        group = self._group
        options = GroupOptions(timeout=group.timeout)
        tag = f"{strand.name} of {hashlib.blake2b(group.name.encode(), digest_size=8).hexdigest()}"
        made = self._world.part(group, range(group.size), tag, options)
        assert not isinstance(made, NonMember)  # all ranks of the group are in it
        return made
