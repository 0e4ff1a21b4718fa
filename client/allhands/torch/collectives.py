"""The collectives of c10d on tensors: views as arrays to those of `allhands.c10d`."""

from datetime import timedelta
from typing import Any

from allhands import c10d
from allhands.c10d.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from allhands.collectives.reduction import ReduceOp
from allhands.engine.work.work import Work as NativeWork
from allhands.errors import InvalidArgument
from allhands.torch import argument_forms
from allhands.torch.options import make_options, to_reduce_op
from allhands.torch.profiler_events import record_event
from allhands.torch.tensors import TensorViews
from allhands.torch.work import StagedWorks, Work


class TorchCollectives:
    """Collectives of a process group in the argument forms of c10d."""

    @property
    def native(self) -> c10d.ProcessGroup:
        """Group that runs the calls."""
        raise NotImplementedError

    staged_works: StagedWorks
    """Its works whose tensors wait for what was copied."""

    def _make_work(self, native: NativeWork, views: TensorViews, result: Any) -> Work:
        work = Work(native, views, result)
        if views.needs_copy_back:
            self.staged_works.add(work)
        return work

    @record_event("broadcast", "tensors")
    def broadcast(
        self, tensors: Any, opts: Any = None, *, root: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = argument_forms.split_root(opts, root)
        options = make_options(BroadcastOptions, opts, timeout, **more)
        tensors = argument_forms.as_list(tensors)
        views = TensorViews("broadcast")
        return self._make_work(
            self.native.broadcast(views.view_inouts(tensors), options), views, tensors
        )

    @record_event("all_reduce", "tensors")
    def allreduce(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = argument_forms.split_reduce_op(opts, op)
        options = make_options(AllreduceOptions, opts, timeout, **more)
        tensors = argument_forms.as_list(tensors)
        views = TensorViews("allreduce")
        arrays = views.view_inouts(tensors)
        if views.has_sparse and options.reduceOp in (ReduceOp.MIN, ReduceOp.MAX):
            # PyTorch's backends leave open whether what is not stored counts as zero.
            raise InvalidArgument(
                f"allreduce: unsupported reduction operation: {options.reduceOp} of sparse "
                "tensors; use SUM or AVG, or to_dense()"
            )
        return self._make_work(self.native.allreduce(arrays, options), views, tensors)

    @record_event("all_reduce", "tensors")
    def allreduce_coalesced(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = argument_forms.split_reduce_op(opts, op)
        options = make_options(AllreduceCoalescedOptions, opts, timeout, **more)
        views = TensorViews("allreduce_coalesced")
        work = self.native.allreduce_coalesced(views.view_inouts(tensors), options)
        return self._make_work(work, views, tensors)

    @record_event("reduce", "tensors")
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_root(opts, root)
        if op is not None:
            more["reduceOp"] = to_reduce_op(op)
        options = make_options(ReduceOptions, opts, timeout, **more)
        tensors = argument_forms.as_list(tensors)
        views = TensorViews("reduce")
        is_root = options.rootRank == self.native.rank()
        arrays = views.view_inouts(tensors) if is_root else views.view_inputs(tensors)
        return self._make_work(self.native.reduce(arrays, options), views, tensors)

    @record_event("all_gather", "input_tensors")
    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = make_options(AllgatherOptions, opts, timeout)
        given, into = argument_forms.pair_lists(input_tensors, output_tensors)
        views = TensorViews("allgather")
        arrays = views.view_output_lists(into)
        work = self.native.allgather(arrays, views.view_inputs(given), options)
        return self._make_work(work, views, argument_forms.unwrap_single(into))

    @record_event("all_gather_into_tensor", "x")
    def all_gather_single(
        self, output: Any, x: Any, opts: Any = None, *, timeout: timedelta | None = None
    ) -> Work:
        options = make_options(AllgatherOptions, opts, timeout)
        views = TensorViews("all_gather_single")
        work = self.native.all_gather_single(views.view_inout(output), views.view_input(x), options)
        return self._make_work(work, views, [output])

    _allgather_base = all_gather_single

    @record_event("all_gather", "input_list")
    def allgather_coalesced(
        self,
        output_lists: Any,
        input_list: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = make_options(AllgatherOptions, opts, timeout)
        views = TensorViews("allgather_coalesced")
        arrays = views.view_output_lists(output_lists)
        work = self.native.allgather_coalesced(arrays, views.view_inputs(input_list), options)
        return self._make_work(work, views, argument_forms.unwrap_single(output_lists))

    @record_event("all_gather_into_tensor_coalesced", "inputs")
    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: timedelta | None = None
    ) -> Work:
        options = make_options(AllgatherOptions, opts, timeout)
        views = TensorViews("all_gather_single_coalesced")
        filled = views.view_outputs(outputs)
        work = self.native.all_gather_single_coalesced(filled, views.view_inputs(inputs), options)
        return self._make_work(work, views, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @record_event("gather", "input_tensors")
    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_root(opts, root)
        options = make_options(GatherOptions, opts, timeout, **more)
        given, into = argument_forms.pair_lists(input_tensors, output_tensors)
        views = TensorViews("gather")
        work = self.native.gather(views.view_output_lists(into), views.view_inputs(given), options)
        return self._make_work(work, views, argument_forms.unwrap_single(into))

    @record_event("scatter", "input_tensors")
    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_root(opts, root)
        options = make_options(ScatterOptions, opts, timeout, **more)
        into, given = argument_forms.pair_lists(output_tensors, input_tensors)
        views = TensorViews("scatter")
        filled = views.view_inouts(into)
        work = self.native.scatter(
            filled, argument_forms.map_lists(views.view_inputs, given), options
        )
        return self._make_work(work, views, into)

    @record_event("reduce_scatter", "input_tensors")
    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_reduce_op(opts, op)
        options = make_options(ReduceScatterOptions, opts, timeout, **more)
        into, given = argument_forms.pair_lists(output_tensors, input_tensors)
        views = TensorViews("reduce_scatter")
        filled = views.view_inouts(into)
        work = self.native.reduce_scatter(
            filled, argument_forms.map_lists(views.view_inputs, given), options
        )
        return self._make_work(work, views, into)

    @record_event("reduce_scatter_tensor", "x")
    def reduce_scatter_single(
        self,
        output: Any,
        x: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_reduce_op(opts, op)
        options = make_options(ReduceScatterOptions, opts, timeout, **more)
        views = TensorViews("reduce_scatter_single")
        work = self.native.reduce_scatter_single(
            views.view_inout(output), views.view_input(x), options
        )
        return self._make_work(work, views, [output])

    _reduce_scatter_base = reduce_scatter_single

    @record_event("reduce_scatter_tensor_coalesced", "inputs")
    def reduce_scatter_single_coalesced(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = argument_forms.split_reduce_op(opts, op)
        options = make_options(ReduceScatterOptions, opts, timeout, **more)
        views = TensorViews("reduce_scatter_single_coalesced")
        filled = views.view_outputs(outputs)
        work = self.native.reduce_scatter_single_coalesced(
            filled, views.view_inputs(inputs), options
        )
        return self._make_work(work, views, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @record_event("all_to_all", "input_tensors")
    def alltoall(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = make_options(AllToAllOptions, opts, timeout)
        views = TensorViews("alltoall")
        filled = views.view_outputs(output_tensors)
        work = self.native.alltoall(filled, views.view_inputs(input_tensors), options)
        return self._make_work(work, views, output_tensors)

    @record_event("all_to_all", "x")
    def all_to_all_single(
        self,
        output: Any,
        x: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = make_options(AllToAllOptions, opts, timeout)
        argument_forms.check_contiguous("all_to_all_single", output, x)
        views = TensorViews("all_to_all_single")
        work = self.native.all_to_all_single(
            views.view_inout(output),
            views.view_input(x),
            output_split_sizes,
            input_split_sizes,
            options,
        )
        return self._make_work(work, views, [output])

    alltoall_base = all_to_all_single
