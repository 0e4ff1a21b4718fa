"""The asyncio face: `async with connect(...) as world: await world.all_reduce(x)`.

The same core as the plain calls, on the same thread of its own: a busy loop of the program's
delays its answers, not its heartbeats. Cancelling an awaited call ends the call.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from allhands import config
from allhands.aio_composed import AsyncComposed, await_then_return
from allhands.api.default_world import count_attempt, identify_parent_process
from allhands.api.world import NewGroupOptions, World
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.group.group import Group
from allhands.group.non_member import NonMember

__all__ = ["AsyncGroup", "AsyncWorld", "connect"]


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    rank: int = -1,
    world_size: int = -1,
    timeout: float = config.DEFAULT_TIMEOUT,
    job: str | None = None,
    token: str | None = None,
    tls: str | None = None,
    insecure: bool = False,
    label: str | None = None,
    heartbeat_window: float | None = None,
    on_failure: str = "raise",
    retryable: bool = False,
    min_size: int = 1,
    max_size: int = 0,
    abort_on_exception: bool = True,
    verify: bool = False,
    allow_pickle: bool = False,
) -> AsyncIterator["AsyncWorld"]:
    """Join a world for as long as the block lasts; arguments as for `init_process_group`.

    Left in order when the block ends well; when it raises, the others are told why.
    """
    settled = config.resolve_config(
        os.environ,
        init_method=url,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        job=job,
        token=token,
        tls_ca=tls,
        insecure=insecure,
        label=label,
        heartbeat_window=heartbeat_window or 0.0,
        on_failure=on_failure,
        retryable=retryable,
        min_size=min_size,
        max_size=max_size,
        abort_on_exception=abort_on_exception,
        verify=verify,
        allow_pickle=allow_pickle,
        parent=identify_parent_process(),
        attempt=count_attempt(),
    )
    world = await asyncio.to_thread(World.join, settled)
    world.install_termination_handler()
    try:
        yield AsyncWorld(world)
    except BaseException as error:
        await asyncio.to_thread(world.fail, error)
        raise
    await asyncio.to_thread(world.close)


class AsyncGroup(AsyncComposed):
    """A group whose calls are awaited. Ranks here are ranks of the group.

    The calls are those of `Group`, where arrays, ownership and errors are described; each returns
    its output. A call takes its place in the group's order when it begins to run: tasks that call
    on one group must begin in the same order on every rank.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    async def broadcast(
        self, x: AnyArray, src: int = 0, *, timeout: float | None = None, label: str | None = None
    ) -> AnyArray:
        """Overwrite `x` with that of rank `src`; return it."""
        return await await_then_return(
            self.group.broadcast(x, src, timeout=timeout, label=label), x
        )

    async def all_reduce(
        self,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Overwrite `x` with the combination of all ranks'; return it."""
        return await await_then_return(
            self.group.all_reduce(x, op, timeout=timeout, label=label), x
        )

    async def reduce(
        self,
        x: AnyArray,
        dst: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray | None:
        """Overwrite `x` on rank `dst` with the combination of all; None elsewhere."""
        return await await_then_return(
            self.group.reduce(x, dst, op, timeout=timeout, label=label),
            x if dst == self.rank else None,
        )

    async def gather(
        self,
        x: AnyArray,
        gather_list: list[AnyArray] | None = None,
        dst: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> list[AnyArray] | None:
        """Fill `gather_list` on rank `dst` with every rank's `x`; None elsewhere."""
        return await await_then_return(
            self.group.gather(x, gather_list, dst, timeout=timeout, label=label), gather_list
        )

    async def scatter(
        self,
        x: AnyArray,
        scatter_list: list[AnyArray] | None = None,
        src: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Overwrite `x` with this rank's array of the list on `src`; return it."""
        return await await_then_return(
            self.group.scatter(x, scatter_list, src, timeout=timeout, label=label), x
        )

    async def all_gather(
        self,
        outputs: list[AnyArray],
        x: AnyArray,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> list[AnyArray]:
        """Fill `outputs` with every rank's `x`; return it."""
        return await await_then_return(
            self.group.all_gather(outputs, x, timeout=timeout, label=label), outputs
        )

    async def all_gather_into_tensor(
        self,
        output: AnyArray,
        x: AnyArray,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Fill `output` with every rank's `x`, by rank; return it."""
        return await await_then_return(
            self.group.all_gather_into_tensor(output, x, timeout=timeout, label=label), output
        )

    async def reduce_scatter(
        self,
        output: AnyArray,
        inputs: list[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Overwrite `output` with the combination of all `inputs[rank]`; return it."""
        return await await_then_return(
            self.group.reduce_scatter(output, inputs, op, timeout=timeout, label=label), output
        )

    async def reduce_scatter_tensor(
        self,
        output: AnyArray,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Overwrite `output` with this rank's share of the combination; return it."""
        return await await_then_return(
            self.group.reduce_scatter_tensor(output, x, op, timeout=timeout, label=label), output
        )

    async def all_to_all(
        self,
        outputs: list[AnyArray],
        inputs: list[AnyArray],
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> list[AnyArray]:
        """Give `inputs[j]` to rank j, fill `outputs[j]` with what it gives; return it."""
        return await await_then_return(
            self.group.all_to_all(outputs, inputs, timeout=timeout, label=label), outputs
        )

    async def all_to_all_single(
        self,
        output: AnyArray,
        x: AnyArray,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> AnyArray:
        """Give each rank its rows of `x`, fill `output` with theirs; return it."""
        return await await_then_return(
            self.group.all_to_all_single(
                output, x, output_split_sizes, input_split_sizes, timeout=timeout, label=label
            ),
            output,
        )

    async def barrier(self, *, timeout: float | None = None, label: str | None = None) -> None:
        """Return when every rank has called it."""
        await await_then_return(self.group.barrier(timeout=timeout, label=label), None)

    async def monitored_barrier(
        self,
        timeout: float | None = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> None:
        """Return when every rank has called it; else all are told which have not."""
        await await_then_return(
            self.group.monitored_barrier(timeout, wait_all_ranks, label=label), None
        )

    def abort(self, reason: str) -> None:
        """End the group on all its ranks, soon: calls raise `GroupAborted`, also those to come."""
        self.group.abort(reason)

    async def send(
        self,
        x: AnyArray,
        dst: int,
        tag: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> None:
        """Send `x` to rank `dst`; return when its memory may be changed."""
        await await_then_return(self.group.send(x, dst, tag, timeout=timeout, label=label), None)

    async def recv(
        self,
        x: AnyArray,
        src: int | None = None,
        tag: int = 0,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> int:
        """Receive into `x` from `src`, or from whoever sends; return the rank that sent it."""
        work = self.group.recv(x, src, tag, timeout=timeout, label=label)
        await await_then_return(work, None)
        return work.source_rank()

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group; see `Group.revoke`."""
        self.group.revoke(reason)

    async def agree(self, flag: bool = True, *, timeout: float | None = None) -> bool:
        """Return whether all ranks that are there have given a true flag; see `Group.agree`."""
        return await asyncio.to_thread(self.group.agree, flag, timeout=timeout)

    async def shrink(self, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of the ranks that are left; see `Group.shrink`."""
        return AsyncGroup(await asyncio.to_thread(self.group.shrink, timeout=timeout))

    async def grow(self, count: int, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of the ranks that are left and of newcomers; see `Group.grow`."""
        return AsyncGroup(await asyncio.to_thread(self.group.grow, count, timeout=timeout))


class AsyncWorld(AsyncGroup):
    """The group of all ranks, and the way to others."""

    def __init__(self, world: World) -> None:
        super().__init__(world.group)
        self._world = world

    async def new_group(
        self,
        ranks: Sequence[int] | None = None,
        tag: str | None = None,
        use_local_synchronization: bool = False,
        timeout: float | None = None,
        *,
        on_failure: str = "raise",
        retryable: bool = False,
        verify: bool | None = None,
        allow_pickle: bool | None = None,
    ) -> AsyncGroup | None:
        """Make a group of some ranks of the world; None where this rank is not one of them.

        Arguments and errors are those of `allhands.new_group`.
        """
        chosen = range(self.size) if ranks is None else ranks
        options = NewGroupOptions(timeout, on_failure, retryable, verify, allow_pickle)
        group = await asyncio.to_thread(
            self._world.new_group, chosen, tag, use_local_synchronization, options
        )
        return None if isinstance(group, NonMember) else AsyncGroup(group)

    def abort(self, reason: str) -> None:
        """End all groups on all ranks: calls raise `GroupAborted` from then on."""
        self._world.abort(reason)
