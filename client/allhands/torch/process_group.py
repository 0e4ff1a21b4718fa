"""ProcessGroup of torch.distributed over a group of this package.

PyTorch's C++ reaches its methods too, so they bear the names of c10d, old and new. The calls are
those of `allhands.c10d.ProcessGroup`, with the same checks and texts, on tensors.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from allhands.api.world import World
from allhands.c10d.collectives import Collectives
from allhands.c10d.messages import Messages
from allhands.c10d.monitored_barrier import run_monitored_barrier
from allhands.c10d.options import GroupOptions
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.errors import AllhandsError
from allhands.group.group import Group
from allhands.torch import hook_streams
from allhands.torch.buffer_adapter import TensorAdapter
from allhands.torch.coalescing import CoalescingBlock, TorchCoalescedWork
from allhands.torch.compile.dispatch import add_dispatch
from allhands.torch.error_text import append_gloo_text
from allhands.torch.inline_calls import add_inline_calls
from allhands.torch.no_compile import exclude_from_compile
from allhands.torch.profiler_events import record_events
from allhands.torch.rendezvous.store import unwrap_prefix
from allhands.torch.work import Work


@exclude_from_compile
@add_inline_calls
@add_dispatch
@record_events
class ProcessGroup(
    Collectives[Any, Any, Work],
    Messages[Any, Work],
    dist.ProcessGroup,  # type: ignore[misc]
):
    """A process group of the backend "allhands"; see `allhands.c10d.ProcessGroup` for errors."""

    def __init__(
        self, group: Group, world: World, name: str, store: Any, *, is_world: bool
    ) -> None:
        """Wrap a group; with `is_world`, its destruction leaves the world."""
        dist.ProcessGroup.__init__(self, group.rank, group.size)
        self.group = group
        self.adapter: TensorAdapter = TensorAdapter()
        self.world = world
        self.hook_streams = hook_streams.HookStreams(group, world)
        self._is_world = is_world
        self._is_retired = False
        self._block: CoalescingBlock | None = None
        self.owned_store: Any = None
        """A store of its own, of which C++ would lose the Python half; closed with the world."""
        self._store = store
        self._underlying_store = unwrap_prefix(store)  # PyTorch's C++ does not keep one in Python
        self._name = name
        self._description = "undefined"
        self.generation = 0
        """How often the default group has been replaced, up to this one."""

    def _get_group(self) -> Group:
        """Return the group, or that of the current hook stream."""
        slot = None if self._is_retired else hook_streams.get_current_slot()
        return self.group if slot is None else self.hook_streams.get_group(slot.stream)

    def name(self) -> str:
        return "allhands"

    def rank(self) -> int:
        return self.group.rank

    def size(self) -> int:
        return self.group.size

    getBackendName = _get_backend_name = name
    getRank = rank
    getSize = size

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    _set_group_desc = setGroupDesc

    def get_group_store(self) -> Any:
        return self._store

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")] + [torch.device("cuda")] * torch.cuda.is_available()

    def _get_backend(self, device: Any) -> "ProcessGroup":
        return self

    @property
    def options(self) -> GroupOptions:
        return GroupOptions(timedelta(seconds=self._get_group().timeout))

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def bound_device_id(self) -> None:
        return None

    def set_timeout(self, timeout: timedelta) -> None:
        self.group.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: numbers are equal from the beginning."""

    def _get_sequence_number_for_group(self) -> int:
        return self.group.sequence

    def __repr__(self) -> str:
        return f"ProcessGroup({self.group!r})"

    def _start_coalescing(self, device: Any) -> None:
        """Let this thread's collectives be made together, by `_end_coalescing`.

        Raises:
            RuntimeError: they are already.
        """
        self._block = CoalescingBlock(self._get_group())

    def _end_coalescing(self, device: Any) -> TorchCoalescedWork:
        """Start the calls since `_start_coalescing`; return a work for all of them."""
        block, self._block = self._block, None
        if block is None:
            raise RuntimeError(f"no calls of group {self._name!r} are being collected")
        return block.end()

    def shutdown(self) -> None:
        """End the group after its calls; leave the world if the group is the world. Idempotent.

        In a forked child the group is its parent's, and goes on.
        """
        if self.world.is_inherited:
            return
        if self._is_world:
            self.world.close()
            if self.owned_store is not None:
                self.owned_store.close()
            return
        self.hook_streams.close()
        if self.world.is_open(self.group):
            self.world.close_group(self.group)

    def abort(self, reason: str = "its process group was aborted") -> None:
        """Abort the group on all ranks: calls raise GroupAborted from now on.

        The rank stays in its world, for `recover`, until the default group is shut down. A no-op
        where that is over, and in a forked child.
        """
        if self.world.is_inherited:
            return
        if self.world.is_open(self.group):
            self.group.abort(reason)
        self.hook_streams.abort(reason)

    def retire(self, failure: ErrorFactory) -> None:
        """End the group on this rank in favour of a successor: later calls raise `failure`."""
        self._is_world, self._is_retired = False, True
        self.hook_streams.close()
        if self.world.is_open(self.group):
            self.world.close_group(self.group, failure)

    def barrier(self, opts: Any = None, *, timeout: Any = None) -> Work:
        """End as `Collectives.barrier`, and when the copies of earlier calls have gone back."""
        before = self.adapter.staged_works.list_works()
        work = super().barrier(opts, timeout=timeout)
        work.after = before
        return work

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when every rank has called; else all ranks raise with the missing ranks."""
        try:
            run_monitored_barrier(self._get_group(), timeout, wait_all_ranks)
        except AllhandsError as error:
            append_gloo_text(error)
            raise
