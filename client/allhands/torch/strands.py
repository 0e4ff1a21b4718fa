"""Strands: the calls of one hook, in an order of their own.

A hook that calls on when its first call has ended does so on some thread, while the hooks of other
buckets do the same: the ranks then make these calls in different orders. So each bucket has groups
of its own, with the same ranks, on which its hook and all that follows from it call. Who calls in
no strand calls on the group itself.
"""

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from allhands import c10d
from allhands.api.world import GroupOptions, NonMember, World
from allhands.group import Group


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


_inside: ContextVar[Strand | None] = ContextVar("allhands_strand", default=None)


@contextlib.contextmanager
def within(strand: Strand | None) -> Iterator[None]:
    """Let calls of the block, and what follows from them, be of a strand."""
    token = _inside.set(strand)
    try:
        yield
    finally:
        _inside.reset(token)


current = _inside.get
"""Return the strand that the caller is in; None: in none."""


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
