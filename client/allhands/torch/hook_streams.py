"""Hook streams: the calls of one hook, in an order independent of other calls.

A hook's later calls are made on whichever thread completed its first call, while the hooks of other
buckets do the same: on one group the ranks would make these calls in different orders. So each
bucket has its own groups, of the same ranks, for all calls of its hook. Calls outside of a hook
stream go to the group itself.

Continuations of hooks run one at a time, bucket by bucket: hooks share state between buckets
without a lock, since NCCL's futures run continuations on the hook's own thread.
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

from allhands.api.world import NewGroupOptions, World
from allhands.futures import Future
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.runtime.callbacks import Callbacks


@dataclass(frozen=True)
class HookStream:
    """A strand, the same on all ranks."""

    name: str
    stacks_gathered: bool = False
    """Whether futures of its all_gathers give one tensor, as NCCL's do, not one of each rank."""

    def wrap_result(self, operation: str, result: Any) -> Any:
        """Return the value of the future of a call."""
        is_whole = self.stacks_gathered and operation == "all_gather"
        return [torch.stack(result)] if is_whole else result


_current_slot: ContextVar["HookSlot | None"] = ContextVar("allhands_turn", default=None)


class HookSlot:
    """An invocation of a hook in a stream, with all calls that follow; thread-safe."""

    def __init__(
        self, stream: HookStream, start: Future[None], callbacks: Callbacks | None
    ) -> None:
        """Begin when `start` is done: at the end of the previous slot."""
        self.stream = stream
        self.completion: Future[None] = Future(callbacks)
        """Done when nothing is left to follow."""
        self._start = start
        self._lock = threading.Lock()
        self._pending = 2
        """What it waits for: to begin, the hook itself, and each future of its calls."""
        start.add_done_callback(lambda _: self._finish_part())

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Make the calls of the block in this slot; the end of the slot waits for the block."""
        token = _current_slot.set(self)
        try:
            yield
        finally:
            _current_slot.reset(token)
            self._finish_part()

    def call_after(self, future: Future[Any], act: Callable[[], object]) -> None:
        """Call `act` in this slot, after the future of one of the slot's calls."""
        with self._lock:
            self._pending += 1

        def run_in_slot(_: object) -> None:
            with self.enter():
                act()

        future.add_done_callback(lambda _: self._start.add_done_callback(run_in_slot))

    def _finish_part(self) -> None:
        with self._lock:
            self._pending -= 1
            is_over = self._pending == 0
        if is_over:
            self.completion.set_result(None)


class HookSlots:
    """Slots of a hook in order of invocation; `callbacks` run the continuations.

    What follows in a turn may wait for whatever comes of that turn and of those before it.
    """

    def __init__(self, callbacks: Callbacks | None) -> None:
        self._callbacks = callbacks
        self._last_completion: Future[None] = Future(callbacks)
        self._last_completion.set_result(None)

    def open_slot(self, stream: HookStream) -> HookSlot:
        turn = HookSlot(stream, self._last_completion, self._callbacks)
        self._last_completion = turn.completion
        return turn


get_current_slot = _current_slot.get
"""Return the turn that the caller is in; None: in none."""


class HookStreams:
    """The strands of a group; safe from any thread."""

    def __init__(self, group: Group, world: World) -> None:
        self._group = group
        self._world = world
        self._lock = threading.Lock()
        self._groups: dict[HookStream, Group] = {}
        self._numbers = itertools.count(1)

    def make_name(self, name: str) -> str:
        """Return a new name: the same on all ranks, where all ask for as many."""
        return f"{name} {next(self._numbers)}"

    def get_group(self, stream: HookStream) -> Group:
        """Return the group on which calls of a strand are made, with the timeout of the whole."""
        with self._lock:
            if (found := self._groups.get(stream)) is None:
                found = self._groups[stream] = self._make_group(stream)
            found.timeout = self._group.timeout
            return found

    def close(self) -> None:
        """End the streams after their calls. Idempotent."""
        with self._lock:
            groups, self._groups = self._groups, {}
        for group in groups.values():
            if self._world.is_open(group):
                self._world.close_group(group)

    def abort(self, reason: str) -> None:
        """End the strands on all ranks, at once."""
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            if self._world.is_open(group):
                group.abort(reason)

    def _make_group(self, stream: HookStream) -> Group:
        group = self._group
        options = NewGroupOptions(timeout=group.timeout)
        tag = f"{stream.name} of {hashlib.blake2b(group.name.encode(), digest_size=8).hexdigest()}"
        made = self._world.make_subgroup(group, range(group.size), tag, options)
        assert not isinstance(made, NonMember)  # all ranks of the group are in it
        return made
