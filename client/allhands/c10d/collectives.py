"""Collectives of c10d: lists of buffers, several a rank, with options.

Written once for all array libraries: a `BufferAdapter` translates arguments and results.
"""

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np

from allhands.c10d import checks, multi_tensor
from allhands.c10d.buffer_adapter import AnyBuffer, Buffer, BufferAdapter, CallWork
from allhands.c10d.group_calls import GroupCalls
from allhands.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from allhands.collectives import arguments, vector
from allhands.collectives.reduction import ReduceOp
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import Timeout
from allhands.engine.work.work import Work


class Collectives(GroupCalls[CallWork], Generic[Buffer, AnyBuffer, CallWork]):
    """Collective calls of a process group; errors are listed at `process_group`."""

    # ------------------------------------------------------------ whole arrays

    def broadcast(
        self,
        tensors: Buffer | Sequence[Buffer],
        opts: BroadcastOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite all arrays on all ranks with the root's array at `rootTensor`.

        All arrays have the same shape and dtype. A single array, with `root`, counts as a list of
        one.
        """
        options = self.adapter.make_rooted_options(BroadcastOptions, opts, root, timeout)
        buffers = _to_list(tensors)
        views = self.adapter.open_views("broadcast")
        given = views.view_inouts(buffers)
        work = None
        if len(given) == 1 and options.rootTensor == 0:
            work = self._try_inline(options, list(given), "broadcast", given[0], options.rootRank)
        if work is None:
            work = self._start_broadcast(options, given)
        return self.adapter.to_work(work, views, buffers)

    def _start_broadcast(self, options: BroadcastOptions, given: Sequence[object]) -> Work:
        arrays = checks.check_broadcast(given, options.rootRank, options.rootTensor, self.size())
        views = arguments.check_targets(arrays, "tensors", len(arrays), in_place=True)
        if len(views) > 1:
            chain = multi_tensor.broadcast(views, options.rootRank, options.rootTensor, arrays)
            return self._start_composite(options, chain)
        return self._bind_result(options, arrays).broadcast(
            arrays[0], options.rootRank, timeout=options.seconds, label=options.label
        )

    def allreduce(
        self,
        tensors: AnyBuffer | Sequence[AnyBuffer],
        opts: AllreduceOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite all arrays on all ranks with the reduction of all arrays.

        All arrays have the same shape and dtype, and are all dense or all sparse; sparse arrays get
        new indices and values. AVG divides by the number of arrays on all ranks together.
        """
        options = self.adapter.make_reduction_options(AllreduceOptions, opts, op, timeout)
        buffers = _to_list(tensors)
        views = self.adapter.open_views("allreduce")
        given = views.view_inouts(buffers)
        work = None
        if len(given) == 1:
            work = self._try_inline(options, list(given), "all_reduce", given[0], options.reduceOp)
        if work is None:
            views.check_reduction(options.reduceOp)
            work = self._start_allreduce(options, given)
        return self.adapter.to_work(work, views, buffers)

    def _start_allreduce(self, options: AllreduceOptions, given: Sequence[object]) -> Work:
        arrays = checks.check_allreduce(given, options.reduceOp)
        if isinstance(arrays[0], SparseArray):
            sparse = [array for array in arrays if isinstance(array, SparseArray)]
            return self._start_composite(
                options, multi_tensor.all_reduce_sparse(sparse, options.reduceOp)
            )
        views = arguments.check_targets(arrays, "tensors", len(arrays), in_place=True)
        if len(views) > 1:
            return self._start_composite(
                options, multi_tensor.all_reduce(views, options.reduceOp, arrays)
            )
        return self._bind_result(options, arrays).all_reduce(
            arrays[0], options.reduceOp, timeout=options.seconds, label=options.label
        )

    def allreduce_coalesced(
        self,
        tensors: Sequence[Buffer],
        opts: AllreduceCoalescedOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite each array with the reduction of all ranks' arrays at its index.

        Shapes may differ by index; the dtype may not.
        """
        options = self.adapter.make_reduction_options(AllreduceCoalescedOptions, opts, op, timeout)
        views = self.adapter.open_views("allreduce_coalesced")
        arrays = checks.check_allreduce_coalesced(views.view_inouts(tensors), options.reduceOp)
        work = self._select_group(options).all_reduce_coalesced(
            arrays, options.reduceOp, timeout=options.seconds, label=options.label
        )
        return self.adapter.to_work(work, views, tensors)

    def reduce(
        self,
        tensors: Buffer | Sequence[Buffer],
        opts: ReduceOptions | int | None = None,
        op: ReduceOp | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite the root's single array with the reduction; inputs are only read."""
        options = self.adapter.make_rooted_options(ReduceOptions, opts, root, timeout, op)
        buffers = _to_list(tensors)
        views = self.adapter.open_views("reduce")
        is_root = options.rootRank == self.rank()
        given = views.view_inouts(buffers) if is_root else views.view_inputs(buffers)
        work = None
        if len(given) == 1 and options.rootTensor == 0:
            work = self._try_inline(
                options, list(given), "reduce", given[0], options.rootRank, options.reduceOp
            )
        if work is None:
            work = self._start_reduce(options, given)
        return self.adapter.to_work(work, views, buffers)

    def _start_reduce(self, options: ReduceOptions, given: Sequence[object]) -> Work:
        root, op = options.rootRank, options.reduceOp
        array = checks.check_reduce(given, op, root, options.rootTensor, self.size())
        return self._bind_result(options, [array]).reduce(
            array, root, op, timeout=options.seconds, label=options.label
        )

    # ------------------------------------------------------------ blocks

    def allgather(
        self,
        output_tensors: Sequence[Buffer] | Sequence[Sequence[Buffer]],
        input_tensors: Buffer | Sequence[Buffer],
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Fill each of n lists with all arrays of all ranks, n arrays a rank.

        All arrays have the same shape and dtype. The result is the list itself if n is 1, else all
        lists. A single array is given with a single list of arrays.
        """
        options = self.adapter.make_options(AllgatherOptions, opts, timeout)
        read, filled = _nest_lists(self.adapter, input_tensors, output_tensors)
        views = self.adapter.open_views("allgather")
        given, brought = views.view_output_lists(filled), views.view_inputs(read)
        result = _unwrap_single(given)
        work = self._try_inline_lists(options, result, "all_gather", given, brought)
        if work is None:
            work = self._start_allgather(options, given, brought)
        return self.adapter.to_work(work, views, _unwrap_single(filled))

    def _start_allgather(self, options: AllgatherOptions, given: object, brought: object) -> Work:
        lists, inputs = checks.check_allgather(given, brought, self.size())
        if len(lists) == 1:
            return self._bind_result(options, lists[0]).all_gather(
                lists[0], inputs[0], timeout=options.seconds, label=options.label
            )
        everywhere = [array for one in lists for array in one]
        flat = arguments.check_targets(everywhere, "output_tensors", len(everywhere))
        sources = arguments.check_sources(inputs, "input_tensors", len(inputs), flat)
        return self._start_composite(options, multi_tensor.all_gather(flat, sources, inputs, lists))

    def all_gather_single(
        self,
        output: Buffer,
        x: Buffer,
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Fill `output`, `size` times as long as `x`, with every rank's `x`, by rank."""
        options = self.adapter.make_options(AllgatherOptions, opts, timeout)
        views = self.adapter.open_views("all_gather_single")
        filled, read = views.view_inout(output), views.view_input(x)
        work = self._try_inline(options, [filled], "all_gather_into_tensor", filled, read)
        if work is None:
            names = "output", "input"
            checks.check_sizes("_allgather_base", [filled], [read], self.size(), names)
            work = self._bind_result(options, [filled]).all_gather_into_tensor(
                filled, read, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, [output])

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self,
        output_tensor_lists: Sequence[Sequence[Buffer]],
        input_tensor_list: Sequence[Buffer],
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Fill each rank's list with the arrays of that rank, of any shapes, dtypes."""
        options = self.adapter.make_options(AllgatherOptions, opts, timeout)
        views = self.adapter.open_views("allgather_coalesced")
        given = views.view_output_lists(output_tensor_lists)
        lists, inputs = checks.check_allgather_coalesced(
            given, views.view_inputs(input_tensor_list), self.size()
        )
        work = self._select_group(options).all_gather_coalesced(
            lists, inputs, timeout=options.seconds, label=options.label
        )
        return self.adapter.to_work(work, views, _unwrap_single(output_tensor_lists))

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[Buffer],
        inputs: Sequence[Buffer],
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Fill each output, `size` times its input's length, with all ranks' inputs."""
        options = self.adapter.make_options(AllgatherOptions, opts, timeout)
        views = self.adapter.open_views("all_gather_single_coalesced")
        filled, given = checks.check_sizes(
            "allgather_into_tensor_coalesced",
            views.view_outputs(outputs),
            views.view_inputs(inputs),
            self.size(),
            ("outputs", "inputs"),
        )
        work = self._select_group(options).all_gather_into_tensor_coalesced(
            filled, given, timeout=options.seconds, label=options.label
        )
        return self.adapter.to_work(work, views, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_tensors: Sequence[Buffer] | Sequence[Sequence[Buffer]] | None,
        input_tensors: Buffer | Sequence[Buffer],
        opts: GatherOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Fill the root's list with every rank's array; elsewhere no list is given.

        A single array is given with the root's list of arrays.
        """
        options = self.adapter.make_rooted_options(GatherOptions, opts, root, timeout)
        read, filled = _nest_lists(self.adapter, input_tensors, output_tensors)
        views = self.adapter.open_views("gather")
        given, brought = views.view_output_lists(filled), views.view_inputs(read)
        at, result = options.rootRank, _unwrap_single(given)
        work = self._try_inline_lists(options, result, "gather", brought, given, at)
        if work is None:
            arrays, array = checks.check_gather(given, brought, at, self.rank(), self.size())
            work = self._bind_result(options, arrays).gather(
                array, arrays, at, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, _unwrap_single(filled))

    def scatter(
        self,
        output_tensors: Buffer | Sequence[Buffer],
        input_tensors: Sequence[Buffer] | Sequence[Sequence[Buffer]] | None,
        opts: ScatterOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite the output with this rank's array of the root's list.

        A single array is given with the root's list of arrays.
        """
        options = self.adapter.make_rooted_options(ScatterOptions, opts, root, timeout)
        filled, read = _nest_lists(self.adapter, output_tensors, input_tensors)
        views = self.adapter.open_views("scatter")
        given, brought = views.view_inouts(filled), views.view_input_lists(read)
        at = options.rootRank
        work = self._try_inline_lists(options, given, "scatter", given, brought, at)
        if work is None:
            array, arrays = checks.check_scatter(given, brought, at, self.rank(), self.size())
            work = self._bind_result(options, [array]).scatter(
                array, arrays, at, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, filled)

    def reduce_scatter(
        self,
        output_tensors: Buffer | Sequence[Buffer],
        input_tensors: Sequence[Buffer] | Sequence[Sequence[Buffer]],
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite the output with the reduction of all ranks' arrays for this rank.

        A single array is given with a list of arrays, one for each rank. Shapes may differ by
        index, and must be the same on all ranks.
        """
        options = self.adapter.make_reduction_options(ReduceScatterOptions, opts, op, timeout)
        filled, read = _nest_lists(self.adapter, output_tensors, input_tensors)
        views = self.adapter.open_views("reduce_scatter")
        given, brought = views.view_inouts(filled), views.view_input_lists(read)
        op = options.reduceOp
        work = self._try_inline_lists(options, given, "reduce_scatter", given, brought, op)
        if work is None:
            work = self._start_reduce_scatter(options, given, brought)
        return self.adapter.to_work(work, views, filled)

    def _start_reduce_scatter(
        self, options: ReduceScatterOptions, given: object, brought: object
    ) -> Work:
        op = options.reduceOp
        array, arrays = checks.check_reduce_scatter(given, brought, op, self.rank(), self.size())
        if any(one.shape != array.shape for one in arrays):
            blocks = [np.ascontiguousarray(one).reshape(one.shape) for one in arrays]
            arguments.check_target(array, "output_tensors[0]")
            return self._start_composite(options, vector.reduce_scatter(blocks, op, array))
        return self._bind_result(options, [array]).reduce_scatter(
            array, arrays, op, timeout=options.seconds, label=options.label
        )

    def reduce_scatter_single(
        self,
        output: Buffer,
        x: Buffer,
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite `output` with this rank's block of the reduction of `x`."""
        options = self.adapter.make_reduction_options(ReduceScatterOptions, opts, op, timeout)
        views = self.adapter.open_views("reduce_scatter_single")
        filled, read, op = views.view_inout(output), views.view_input(x), options.reduceOp
        work = self._try_inline(options, [filled], "reduce_scatter_tensor", filled, read, op)
        if work is None:
            names = "input", "output"
            checks.check_sizes("_reduce_scatter_base", [read], [filled], self.size(), names)
            checks.check_reducible("_reduce_scatter_base", op, filled)
            work = self._bind_result(options, [filled]).reduce_scatter_tensor(
                filled, read, op, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[Buffer],
        inputs: Sequence[Buffer],
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Overwrite each output with this rank's block of its inputs' reduction."""
        options = self.adapter.make_reduction_options(ReduceScatterOptions, opts, op, timeout)
        views = self.adapter.open_views("reduce_scatter_single_coalesced")
        name, given = "reduce_scatter_tensor_coalesced", views.view_outputs(outputs)
        arrays, filled = checks.check_sizes(
            name, views.view_inputs(inputs), given, self.size(), ("inputs", "outputs")
        )
        for array in filled:
            checks.check_reducible(name, options.reduceOp, array)
        work = self._select_group(options).reduce_scatter_tensor_coalesced(
            filled, arrays, options.reduceOp, timeout=options.seconds, label=options.label
        )
        return self.adapter.to_work(work, views, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self,
        output_tensors: Sequence[Buffer],
        input_tensors: Sequence[Buffer],
        opts: AllToAllOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Send each rank its input and receive in its output; sizes may differ."""
        options = self.adapter.make_options(AllToAllOptions, opts, timeout)
        views = self.adapter.open_views("alltoall")
        filled, read = views.view_outputs(output_tensors), views.view_inputs(input_tensors)
        work = self._try_inline(options, filled, "all_to_all", filled, read)
        if work is None:
            outputs = checks.check_dense_list("alltoall", filled, "output_tensors")
            inputs = checks.check_dense_list("alltoall", read, "input_tensors")
            work = self._bind_result(options, outputs).all_to_all(
                outputs, inputs, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, output_tensors)

    def all_to_all_single(
        self,
        output: Buffer,
        x: Buffer,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: AllToAllOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> CallWork:
        """Send rank j its rows of `x`, receive rows in `output`; no sizes: equal."""
        options = self.adapter.make_options(AllToAllOptions, opts, timeout)
        views = self.adapter.open_views("all_to_all_single")
        views.check_rows(output, x)
        filled, read = views.view_inout(output), views.view_input(x)
        recv, send = _normalize_sizes(output_split_sizes), _normalize_sizes(input_split_sizes)
        work = None
        if recv is None and send is None:
            work = self._try_inline(options, [filled], "all_to_all_single", filled, read)
        if work is None:
            work = self._bind_result(options, [filled]).all_to_all_single(
                filled, read, recv, send, timeout=options.seconds, label=options.label
            )
        return self.adapter.to_work(work, views, [output])

    alltoall_base = all_to_all_single

    # ------------------------------------------------------------ barriers

    def barrier(
        self, opts: BarrierOptions | None = None, *, timeout: Timeout | None = None
    ) -> CallWork:
        """End when every rank has called `barrier`; earlier calls have ended by then."""
        options = self.adapter.make_options(BarrierOptions, opts, timeout)
        work = self._try_inline(options, None, "barrier")
        if work is None:
            work = self._select_group(options).barrier(timeout=options.seconds, label=options.label)
        return self.adapter.to_work(work, self.adapter.open_views("barrier"), None)


def _to_list(buffers: Any) -> list[Any] | tuple[Any, ...]:
    """Return a list, also for a single buffer."""
    return buffers if isinstance(buffers, list | tuple) else [buffers]


def _nest_lists(
    adapter: BufferAdapter[Any, CallWork], single: Any, per_rank: Any
) -> tuple[Any, Any]:
    """Return nested lists, also for a single buffer with a list for the ranks."""
    if not adapter.is_buffer(single):
        return single, [] if per_rank is None else per_rank
    has_none = per_rank is None or (isinstance(per_rank, list | tuple) and not per_rank)
    return [single], [] if has_none else [per_rank]


def _unwrap_single(lists: Any) -> Any:
    """Return the only list of buffers, or all lists if there are several."""
    return lists[0] if isinstance(lists, list | tuple) and len(lists) == 1 else lists


def _normalize_sizes(split_sizes: Sequence[int] | None) -> Sequence[int] | None:
    """Return split sizes; None for an empty list, meaning equal shares."""
    return None if split_sizes is None or len(split_sizes) == 0 else split_sizes
