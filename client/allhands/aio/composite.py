"""Composite collectives of a group, awaited: coalesced, ragged, scans, sparse, objects."""

from collections.abc import Sequence
from typing import Any, Unpack

from allhands.aio.waiting import await_result
from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite import BROADCAST_BYTES
from allhands.collectives.reduction import ReduceOp
from allhands.data.sparse_array import SparseArray
from allhands.group.group import Group
from allhands.options import CallOptions


class AsyncComposed:
    """Composite collectives of a group, awaited; each returns its result."""

    group: Group

    async def all_gather_v(self, x: AnyArray, **options: Unpack[CallOptions]) -> Any:
        """Return every rank's `x`, of any shapes, as a list of new arrays.

        Arrays and errors are as for `allhands.all_gather_v`.
        """
        return await await_result(self.group.all_gather_v(x, **options))

    async def gather_v(self, x: AnyArray, dst: int = 0, **options: Unpack[CallOptions]) -> Any:
        """Return every rank's `x`, of any shapes, on rank `dst`; None elsewhere.

        Arrays and errors are as for `allhands.gather_v`.
        """
        return await await_result(self.group.gather_v(x, dst, **options))

    async def scatter_v(
        self,
        scatter_list: Sequence[AnyArray] | None = None,
        src: int = 0,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Return this rank's array, of any shape, of the list on rank `src`.

        Arrays and errors are as for `allhands.scatter_v`.
        """
        return await await_result(self.group.scatter_v(scatter_list, src, **options))

    async def all_to_all_v(self, inputs: Sequence[AnyArray], **options: Unpack[CallOptions]) -> Any:
        """Send `inputs[j]` to rank j; return the arrays received, by rank.

        Arrays and errors are as for `allhands.all_to_all_v`.
        """
        return await await_result(self.group.all_to_all_v(inputs, **options))

    async def reduce_scatter_v(
        self,
        inputs: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Return the reduction of all ranks' `inputs` at this rank's index.

        Arrays and errors are as for `allhands.reduce_scatter_v`.
        """
        return await await_result(self.group.reduce_scatter_v(inputs, op, **options))

    async def scan(
        self, x: AnyArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> Any:
        """Overwrite `x` with the reduction of `x` of ranks 0 to this one.

        Return `x`. Arrays and errors are as for `allhands.scan`.
        """
        return await await_result(self.group.scan(x, op, **options))

    async def exscan(
        self, x: AnyArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> Any:
        """Overwrite `x` with the reduction of `x` of the ranks before this one.

        Return `x`. Arrays and errors are as for `allhands.exscan`.
        """
        return await await_result(self.group.exscan(x, op, **options))

    async def all_reduce_coalesced(
        self,
        arrays: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Overwrite each array with the reduction of all ranks' arrays.

        Return `arrays`. Arrays and errors are as for `allhands.all_reduce_coalesced`.
        """
        return await await_result(self.group.all_reduce_coalesced(arrays, op, **options))

    async def broadcast_coalesced(
        self,
        arrays: Sequence[AnyArray],
        src: int = 0,
        buffer_size: int = BROADCAST_BYTES,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Overwrite each array with that of rank `src`, in few messages.

        Return `arrays`. Arrays and errors are as for `allhands.broadcast_coalesced`.
        """
        work = self.group.broadcast_coalesced(arrays, src, buffer_size, **options)
        return await await_result(work)

    async def all_gather_coalesced(
        self,
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> Any:
        """Fill `output_lists[j]` with the inputs of rank j.

        Return `output_lists`. Arrays and errors are as for `allhands.all_gather_coalesced`.
        """
        return await await_result(self.group.all_gather_coalesced(output_lists, inputs, **options))

    async def all_gather_into_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> Any:
        """Fill each output with every rank's input, in rank order.

        Return `outputs`. Arrays and errors are as for `allhands.all_gather_into_tensor_coalesced`.
        """
        return await await_result(
            self.group.all_gather_into_tensor_coalesced(outputs, inputs, **options)
        )

    async def reduce_scatter_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Overwrite each output with this rank's block of its reduction.

        Return `outputs`. Arrays and errors are as for `allhands.reduce_scatter_tensor_coalesced`.
        """
        return await await_result(
            self.group.reduce_scatter_tensor_coalesced(outputs, inputs, op, **options)
        )

    async def all_reduce_sparse(
        self, x: SparseArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> Any:
        """Overwrite sparse `x` with the reduction of all ranks' `x`, as if dense.

        Return `x`, with new `indices` and `values`. Shapes are equal on all ranks.
        """
        return await await_result(self.group.all_reduce_sparse(x, op, **options))

    async def all_gather_object(self, value: object, **options: Unpack[CallOptions]) -> Any:
        """Return every rank's object, in rank order."""
        return await await_result(self.group.all_gather_object(value, **options))

    async def gather_object(
        self, value: object, dst: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """Return every rank's object on rank `dst`; None elsewhere."""
        return await await_result(self.group.gather_object(value, dst, **options))

    async def scatter_object(
        self, values: Sequence[object] | None = None, src: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """Return this rank's object of the list on rank `src`.

        `values` is None on the other ranks.
        """
        return await await_result(self.group.scatter_object(values, src, **options))

    async def broadcast_object_list(
        self, values: list[Any], src: int = 0, **options: Unpack[CallOptions]
    ) -> Any:
        """Overwrite the items of `values` with the items of rank `src`; return `values`."""
        work = self.group.broadcast_object_list(values, src, **options)
        return await await_result(work)
