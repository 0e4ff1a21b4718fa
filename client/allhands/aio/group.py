"""Groups with awaited collectives and messages."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar, Unpack

from allhands.aio.composite import AsyncComposed
from allhands.aio.waiting import await_then_return
from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.data.sparse_array import SparseArray
from allhands.group.group import Group
from allhands.options import CallOptions

T = TypeVar("T", bound=AnyArray | SparseArray)


class AsyncGroup(AsyncComposed):
    """A group with awaited calls. Ranks here are ranks of the group.

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
        self, x: AnyArray, src: int = 0, **options: Unpack[CallOptions]
    ) -> AnyArray:
        """Overwrite `x` on every rank with the `x` of rank `src`.

        Return `x`. Arrays and errors are as for `allhands.broadcast`.
        """
        return await await_then_return(self.group.broadcast(x, src, **options), x)

    async def all_reduce(
        self, x: T, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T:
        """Overwrite `x` on every rank with the reduction of all ranks' `x`.

        Return `x`. Arrays and errors are as for `allhands.all_reduce`.
        """
        return await await_then_return(self.group.all_reduce(x, op, **options), x)

    async def reduce(
        self, x: AnyArray, dst: int = 0, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> AnyArray | None:
        """Overwrite `x` on rank `dst` with the reduction of all ranks' `x`.

        Return `x` on `dst`, None elsewhere. Arrays and errors are as for `allhands.reduce`.
        """
        return await await_then_return(
            self.group.reduce(x, dst, op, **options),
            x if dst == self.rank else None,
        )

    async def gather(
        self,
        x: AnyArray,
        gather_list: list[AnyArray] | None = None,
        dst: int = 0,
        **options: Unpack[CallOptions],
    ) -> list[AnyArray] | None:
        """Fill `gather_list` on rank `dst` with every rank's `x`, in rank order.

        Return `gather_list`. Arrays and errors are as for `allhands.gather`.
        """
        return await await_then_return(
            self.group.gather(x, gather_list, dst, **options), gather_list
        )

    async def scatter(
        self,
        x: AnyArray,
        scatter_list: list[AnyArray] | None = None,
        src: int = 0,
        **options: Unpack[CallOptions],
    ) -> AnyArray:
        """Overwrite `x` with this rank's array of `scatter_list` on rank `src`.

        Return `x`. Arrays and errors are as for `allhands.scatter`.
        """
        return await await_then_return(self.group.scatter(x, scatter_list, src, **options), x)

    async def all_gather(
        self, outputs: list[AnyArray], x: AnyArray, **options: Unpack[CallOptions]
    ) -> list[AnyArray]:
        """Fill `outputs` with every rank's `x`, in rank order.

        Return `outputs`. Arrays and errors are as for `allhands.all_gather`.
        """
        return await await_then_return(self.group.all_gather(outputs, x, **options), outputs)

    async def all_gather_into_tensor(
        self, output: AnyArray, x: AnyArray, **options: Unpack[CallOptions]
    ) -> AnyArray:
        """Fill `output` with every rank's `x`, concatenated in rank order.

        Return `output`. Arrays and errors are as for `allhands.all_gather_into_tensor`.
        """
        return await await_then_return(
            self.group.all_gather_into_tensor(output, x, **options), output
        )

    async def reduce_scatter(
        self,
        output: AnyArray,
        inputs: list[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> AnyArray:
        """Overwrite `output` with the reduction of all ranks' `inputs[rank]`.

        Return `output`. Arrays and errors are as for `allhands.reduce_scatter`.
        """
        return await await_then_return(
            self.group.reduce_scatter(output, inputs, op, **options), output
        )

    async def reduce_scatter_tensor(
        self,
        output: AnyArray,
        x: AnyArray,
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> AnyArray:
        """Overwrite `output` with this rank's block of the reduction of `x`.

        Return `output`. Arrays and errors are as for `allhands.reduce_scatter_tensor`.
        """
        return await await_then_return(
            self.group.reduce_scatter_tensor(output, x, op, **options), output
        )

    async def all_to_all(
        self, outputs: list[AnyArray], inputs: list[AnyArray], **options: Unpack[CallOptions]
    ) -> list[AnyArray]:
        """Send `inputs[j]` to rank j and receive rank j's block in `outputs[j]`.

        Return `outputs`. Arrays and errors are as for `allhands.all_to_all`.
        """
        return await await_then_return(self.group.all_to_all(outputs, inputs, **options), outputs)

    async def all_to_all_single(
        self,
        output: AnyArray,
        x: AnyArray,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> AnyArray:
        """Send each rank its rows of `x` and receive its rows in `output`.

        Return `output`. Arrays and errors are as for `allhands.all_to_all_single`.
        """
        return await await_then_return(
            self.group.all_to_all_single(
                output, x, output_split_sizes, input_split_sizes, **options
            ),
            output,
        )

    async def barrier(self, **options: Unpack[CallOptions]) -> None:
        """Return when every rank of the group has called `barrier`.

        Arrays and errors are as for `allhands.barrier`.
        """
        await await_then_return(self.group.barrier(**options), None)

    async def monitored_barrier(
        self,
        timeout: float | None = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> None:
        """Wait for every rank, or name the missing ones on all ranks.

        Arrays and errors are as for `allhands.monitored_barrier`.
        """
        await await_then_return(
            self.group.monitored_barrier(timeout, wait_all_ranks, label=label), None
        )

    def abort(self, reason: str) -> None:
        """End the group on all ranks: current and later calls raise `GroupAborted`."""
        self.group.abort(reason)

    async def send(
        self, x: AnyArray, dst: int, tag: int = 0, **options: Unpack[CallOptions]
    ) -> None:
        """Send `x` to rank `dst`; return when `x` may be changed."""
        await await_then_return(self.group.send(x, dst, tag, **options), None)

    async def recv(
        self, x: AnyArray, src: int | None = None, tag: int = 0, **options: Unpack[CallOptions]
    ) -> int:
        """Receive into `x` from `src`, None: any rank; return the sender's rank."""
        work = self.group.recv(x, src, tag, **options)
        await await_then_return(work, None)
        return work.source_rank()

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group; see `Group.revoke`."""
        self.group.revoke(reason)

    async def agree(self, flag: bool = True, *, timeout: float | None = None) -> bool:
        """Return whether all surviving ranks gave a true flag; see `Group.agree`."""
        return await asyncio.to_thread(self.group.agree, flag, timeout=timeout)

    async def shrink(self, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of the surviving ranks; see `Group.shrink`."""
        return AsyncGroup(await asyncio.to_thread(self.group.shrink, timeout=timeout))

    async def grow(self, count: int, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of surviving and new ranks; see `Group.grow`."""
        return AsyncGroup(await asyncio.to_thread(self.group.grow, count, timeout=timeout))
