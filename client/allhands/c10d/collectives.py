"""Collectives of c10d: lists of arrays, several a rank, with options."""

from collections.abc import Sequence

import numpy as np

from allhands.c10d import argument_forms, checks, multi_tensor
from allhands.c10d.argument_forms import Arrays
from allhands.c10d.fixed_result import FixedResultCollectives
from allhands.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    Options,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    merge_options,
)
from allhands.collectives import arguments, vector
from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.signature import Result
from allhands.data.sparse_array import SparseArray
from allhands.deadlines import Timeout
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.work import Work
from allhands.group.group import Group


class Collectives:
    """Collective calls of a process group; errors are listed at `process_group`."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def rank(self) -> int:
        """Return this process's place in the group."""
        return self.group.rank

    def size(self) -> int:
        return self.group.size

    # ------------------------------------------------------------ whole arrays

    def broadcast(
        self,
        tensors: AnyArray | Arrays,
        opts: BroadcastOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite all arrays on all ranks with the root's array at `rootTensor`.

        All arrays have the same shape and dtype. A single array, with `root`, counts as a list of
        one.
        """
        opts, root = argument_forms.split_root(opts, root)
        options = merge_options(BroadcastOptions, opts, rootRank=root, timeout=timeout)
        given = argument_forms.to_list(tensors)
        if len(given) == 1 and options.rootTensor == 0:
            ended = self._try_inline(options, list(given), "broadcast", given[0], options.rootRank)
            if ended is not None:
                return ended
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
        tensors: AnyArray | SparseArray | Sequence[AnyArray | SparseArray],
        opts: AllreduceOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite all arrays on all ranks with the reduction of all arrays.

        All arrays have the same shape and dtype, and are all dense or all sparse; sparse arrays get
        new indices and values. AVG divides by the number of arrays on all ranks together.
        """
        opts, op = argument_forms.split_op(opts, op)
        options = merge_options(AllreduceOptions, opts, reduceOp=op, timeout=timeout)
        given = argument_forms.to_list(tensors)
        if len(given) == 1:
            ended = self._try_inline(options, list(given), "all_reduce", given[0], options.reduceOp)
            if ended is not None:
                return ended
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
        tensors: Arrays,
        opts: AllreduceCoalescedOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite each array with the reduction of all ranks' arrays at its index.

        Shapes may differ by index; the dtype may not.
        """
        opts, op = argument_forms.split_op(opts, op)
        options = merge_options(AllreduceCoalescedOptions, opts, reduceOp=op, timeout=timeout)
        arrays = checks.check_allreduce_coalesced(tensors, options.reduceOp)
        return self._select_group(options).all_reduce_coalesced(
            arrays, options.reduceOp, timeout=options.seconds, label=options.label
        )

    def reduce(
        self,
        tensors: AnyArray | Arrays,
        opts: ReduceOptions | int | None = None,
        op: ReduceOp | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite the root's single array with the reduction; inputs are only read."""
        opts, root = argument_forms.split_root(opts, root)
        options = merge_options(ReduceOptions, opts, rootRank=root, reduceOp=op, timeout=timeout)
        given = argument_forms.to_list(tensors)
        if len(given) == 1 and options.rootTensor == 0:
            ended = self._try_inline(
                options, list(given), "reduce", given[0], options.rootRank, options.reduceOp
            )
            if ended is not None:
                return ended
        array = checks.check_reduce(
            given,
            options.reduceOp,
            options.rootRank,
            options.rootTensor,
            self.size(),
        )
        return self._bind_result(options, [array]).reduce(
            array,
            options.rootRank,
            options.reduceOp,
            timeout=options.seconds,
            label=options.label,
        )

    # ------------------------------------------------------------ blocks

    def allgather(
        self,
        output_tensors: Arrays | Sequence[Arrays],
        input_tensors: AnyArray | Arrays,
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Fill each of n lists with all arrays of all ranks, n arrays a rank.

        All arrays have the same shape and dtype. The result is the list itself if n is 1, else all
        lists. A single array is given with a single list of arrays.
        """
        options = merge_options(AllgatherOptions, opts, timeout=timeout)
        given, into = argument_forms.nest_lists(input_tensors, output_tensors)
        lists, inputs = checks.check_allgather(into, given, self.size())
        if len(lists) == 1:
            return self._bind_result(options, lists[0]).all_gather(
                lists[0], inputs[0], timeout=options.seconds, label=options.label
            )
        everywhere = [array for one in lists for array in one]
        views = arguments.check_targets(everywhere, "output_tensors", len(everywhere))
        read = arguments.check_sources(inputs, "input_tensors", len(inputs), views)
        return self._start_composite(options, multi_tensor.all_gather(views, read, inputs, lists))

    def all_gather_single(
        self,
        output: AnyArray,
        x: AnyArray,
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Fill `output`, `size` times as long as `x`, with every rank's `x`, by rank."""
        options = merge_options(AllgatherOptions, opts, timeout=timeout)
        ended = self._try_inline(options, [output], "all_gather_into_tensor", output, x)
        if ended is not None:
            return ended
        checks.check_sizes("_allgather_base", [output], [x], self.size(), ("output", "input"))
        return self._bind_result(options, [output]).all_gather_into_tensor(
            output, x, timeout=options.seconds, label=options.label
        )

    _allgather_base = all_gather_single

    def allgather_coalesced(
        self,
        output_tensor_lists: Sequence[Arrays],
        input_tensor_list: Arrays,
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Fill each rank's list with the arrays of that rank, of any shapes, dtypes."""
        options = merge_options(AllgatherOptions, opts, timeout=timeout)
        lists, inputs = checks.check_allgather_coalesced(
            output_tensor_lists, input_tensor_list, self.size()
        )
        return self._select_group(options).all_gather_coalesced(
            lists, inputs, timeout=options.seconds, label=options.label
        )

    def all_gather_single_coalesced(
        self,
        outputs: Arrays,
        inputs: Arrays,
        opts: AllgatherOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Fill each output, `size` times its input's length, with all ranks' inputs."""
        options = merge_options(AllgatherOptions, opts, timeout=timeout)
        name = "allgather_into_tensor_coalesced"
        filled, given = checks.check_sizes(
            name, outputs, inputs, self.size(), ("outputs", "inputs")
        )
        return self._select_group(options).all_gather_into_tensor_coalesced(
            filled, given, timeout=options.seconds, label=options.label
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_tensors: Arrays | Sequence[Arrays] | None,
        input_tensors: AnyArray | Arrays,
        opts: GatherOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Fill the root's list with every rank's array; elsewhere no list is given.

        A single array is given with the root's list of arrays.
        """
        opts, root = argument_forms.split_root(opts, root)
        options = merge_options(GatherOptions, opts, rootRank=root, timeout=timeout)
        given, into = argument_forms.nest_lists(input_tensors, output_tensors)
        filled, array = checks.check_gather(into, given, options.rootRank, self.rank(), self.size())
        return self._bind_result(options, filled).gather(
            array, filled, options.rootRank, timeout=options.seconds, label=options.label
        )

    def scatter(
        self,
        output_tensors: AnyArray | Arrays,
        input_tensors: Arrays | Sequence[Arrays] | None,
        opts: ScatterOptions | int | None = None,
        *,
        root: int | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite the output with this rank's array of the root's list.

        A single array is given with the root's list of arrays.
        """
        opts, root = argument_forms.split_root(opts, root)
        options = merge_options(ScatterOptions, opts, rootRank=root, timeout=timeout)
        into, given = argument_forms.nest_lists(output_tensors, input_tensors)
        array, read = checks.check_scatter(into, given, options.rootRank, self.rank(), self.size())
        return self._bind_result(options, [array]).scatter(
            array, read, options.rootRank, timeout=options.seconds, label=options.label
        )

    def reduce_scatter(
        self,
        output_tensors: AnyArray | Arrays,
        input_tensors: Arrays | Sequence[Arrays],
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite the output with the reduction of all ranks' arrays for this rank.

        A single array is given with a list of arrays, one for each rank. Shapes may differ by
        index, and must be the same on all ranks.
        """
        opts, op = argument_forms.split_op(opts, op)
        options = merge_options(ReduceScatterOptions, opts, reduceOp=op, timeout=timeout)
        into, given = argument_forms.nest_lists(output_tensors, input_tensors)
        array, read = checks.check_reduce_scatter(
            into, given, options.reduceOp, self.rank(), self.size()
        )
        if any(one.shape != array.shape for one in read):
            blocks = [np.ascontiguousarray(one).reshape(one.shape) for one in read]
            arguments.check_target(array, "output_tensors[0]")
            return self._start_composite(
                options, vector.reduce_scatter(blocks, options.reduceOp, array)
            )
        return self._bind_result(options, [array]).reduce_scatter(
            array, read, options.reduceOp, timeout=options.seconds, label=options.label
        )

    def reduce_scatter_single(
        self,
        output: AnyArray,
        x: AnyArray,
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite `output` with this rank's block of the reduction of `x`."""
        opts, op = argument_forms.split_op(opts, op)
        options = merge_options(ReduceScatterOptions, opts, reduceOp=op, timeout=timeout)
        ended = self._try_inline(
            options, [output], "reduce_scatter_tensor", output, x, options.reduceOp
        )
        if ended is not None:
            return ended
        checks.check_sizes("_reduce_scatter_base", [x], [output], self.size(), ("input", "output"))
        checks.check_reducible("_reduce_scatter_base", options.reduceOp, output)
        return self._bind_result(options, [output]).reduce_scatter_tensor(
            output, x, options.reduceOp, timeout=options.seconds, label=options.label
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Arrays,
        inputs: Arrays,
        opts: ReduceScatterOptions | ReduceOp | None = None,
        *,
        op: ReduceOp | None = None,
        timeout: Timeout | None = None,
    ) -> Work:
        """Overwrite each output with this rank's block of its inputs' reduction."""
        opts, op = argument_forms.split_op(opts, op)
        options = merge_options(ReduceScatterOptions, opts, reduceOp=op, timeout=timeout)
        name = "reduce_scatter_tensor_coalesced"
        given, filled = checks.check_sizes(
            name, inputs, outputs, self.size(), ("inputs", "outputs")
        )
        for array in filled:
            checks.check_reducible(name, options.reduceOp, array)
        return self._select_group(options).reduce_scatter_tensor_coalesced(
            filled, given, options.reduceOp, timeout=options.seconds, label=options.label
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(
        self,
        output_tensors: Arrays,
        input_tensors: Arrays,
        opts: AllToAllOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Send each rank its input and receive in its output; sizes may differ."""
        options = merge_options(AllToAllOptions, opts, timeout=timeout)
        outputs = checks.check_dense_list("alltoall", output_tensors, "output_tensors")
        inputs = checks.check_dense_list("alltoall", input_tensors, "input_tensors")
        return self._bind_result(options, outputs).all_to_all(
            outputs, inputs, timeout=options.seconds, label=options.label
        )

    def all_to_all_single(
        self,
        output: AnyArray,
        x: AnyArray,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: AllToAllOptions | None = None,
        *,
        timeout: Timeout | None = None,
    ) -> Work:
        """Send rank j its rows of `x`, receive rows in `output`; no sizes: equal."""
        options = merge_options(AllToAllOptions, opts, timeout=timeout)
        recv, send = (
            argument_forms.normalize_sizes(output_split_sizes),
            argument_forms.normalize_sizes(input_split_sizes),
        )
        if recv is None and send is None:
            ended = self._try_inline(options, [output], "all_to_all_single", output, x)
            if ended is not None:
                return ended
        return self._bind_result(options, [output]).all_to_all_single(
            output,
            x,
            recv,
            send,
            timeout=options.seconds,
            label=options.label,
        )

    alltoall_base = all_to_all_single

    def _select_group(self, options: Options) -> Group:
        """Return the group to call on, or the group collecting its calls."""
        group = self.group
        if group.coalescer is not None and (instead := group.coalescer.redirect()) is not None:
            return instead
        return group if options.asyncOp else group.here

    def _try_inline(
        self, options: Options, result: Result, name: str, *arguments: object
    ) -> Work | None:
        """Make a blocking call on the caller's thread; None: not started.

        What goes by it is looked at there; what does not is checked, and told what is wrong.
        """
        group = self.group
        if options.asyncOp or group.coalescer is not None or (comm := group.order.comm) is None:
            return None
        if not getattr(comm, name)(*arguments, options.seconds, options.label):
            return None
        return CompletedWork.from_comm(comm, options.label, group.name, result)

    def _bind_result(self, options: Options, result: Result) -> FixedResultCollectives:
        return FixedResultCollectives(self._select_group(options), result)

    def _start_composite(self, options: Options, composite: CompositeCall) -> Work:
        return self._select_group(options).submitter.start_composite(
            composite, options.seconds, options.label
        )
