"""The collectives of c10d on tensors: lent as arrays to those of `allhands.c10d`."""

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
from allhands.torch import forms
from allhands.torch.events import recorded
from allhands.torch.options import operation, settled
from allhands.torch.tensors import Lent
from allhands.torch.work import Copied, Work


class Collectives:
    """The calls of a process group that all its ranks make, in the forms that c10d has."""

    @property
    def native(self) -> c10d.ProcessGroup:
        """What calls are made on."""
        raise NotImplementedError

    copied: Copied
    """Its works whose tensors wait for what was copied."""

    def _work(self, native: NativeWork, lent: Lent, result: Any) -> Work:
        work = Work(native, lent, result)
        if lent.gives_back:
            self.copied.add(work)
        return work

    # ------------------------------------------------------------ whole tensors

    @recorded("broadcast", "tensors")
    def broadcast(
        self, tensors: Any, opts: Any = None, *, root: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = forms.rooted(opts, root)
        options = settled(BroadcastOptions, opts, timeout, **more)
        tensors = forms.several(tensors)
        lent = Lent("broadcast")
        return self._work(self.native.broadcast(lent.all_written(tensors), options), lent, tensors)

    @recorded("all_reduce", "tensors")
    def allreduce(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = forms.combined(opts, op)
        options = settled(AllreduceOptions, opts, timeout, **more)
        tensors = forms.several(tensors)
        lent = Lent("allreduce")
        arrays = lent.all_written(tensors)
        if lent.holds_sparse and options.reduceOp in (ReduceOp.MIN, ReduceOp.MAX):
            # PyTorch's backends leave open whether what is not stored counts as zero.
            raise InvalidArgument(
                f"allreduce: unsupported reduction operation: {options.reduceOp} of sparse "
                "tensors; use SUM or AVG, or to_dense()"
            )
        return self._work(self.native.allreduce(arrays, options), lent, tensors)

    @recorded("all_reduce", "tensors")
    def allreduce_coalesced(
        self, tensors: Any, opts: Any = None, *, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        opts, more = forms.combined(opts, op)
        options = settled(AllreduceCoalescedOptions, opts, timeout, **more)
        lent = Lent("allreduce_coalesced")
        work = self.native.allreduce_coalesced(lent.all_written(tensors), options)
        return self._work(work, lent, tensors)

    @recorded("reduce", "tensors")
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.rooted(opts, root)
        if op is not None:
            more["reduceOp"] = operation(op)
        options = settled(ReduceOptions, opts, timeout, **more)
        tensors = forms.several(tensors)
        lent = Lent("reduce")
        is_root = options.rootRank == self.native.rank()
        arrays = lent.all_written(tensors) if is_root else lent.all_read(tensors)
        return self._work(self.native.reduce(arrays, options), lent, tensors)

    # ------------------------------------------------------------ blocks

    @recorded("all_gather", "input_tensors")
    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = settled(AllgatherOptions, opts, timeout)
        given, into = forms.nested(input_tensors, output_tensors)
        lent = Lent("allgather")
        arrays = lent.lists_filled(into)
        work = self.native.allgather(arrays, lent.all_read(given), options)
        return self._work(work, lent, forms.of_lists(into))

    @recorded("all_gather_into_tensor", "x")
    def all_gather_single(
        self, output: Any, x: Any, opts: Any = None, *, timeout: timedelta | None = None
    ) -> Work:
        options = settled(AllgatherOptions, opts, timeout)
        lent = Lent("all_gather_single")
        work = self.native.all_gather_single(lent.written(output), lent.read(x), options)
        return self._work(work, lent, [output])

    _allgather_base = all_gather_single

    @recorded("all_gather", "input_list")
    def allgather_coalesced(
        self,
        output_lists: Any,
        input_list: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = settled(AllgatherOptions, opts, timeout)
        lent = Lent("allgather_coalesced")
        arrays = lent.lists_filled(output_lists)
        work = self.native.allgather_coalesced(arrays, lent.all_read(input_list), options)
        return self._work(work, lent, forms.of_lists(output_lists))

    @recorded("all_gather_into_tensor_coalesced", "inputs")
    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None, *, timeout: timedelta | None = None
    ) -> Work:
        options = settled(AllgatherOptions, opts, timeout)
        lent = Lent("all_gather_single_coalesced")
        filled = lent.all_filled(outputs)
        work = self.native.all_gather_single_coalesced(filled, lent.all_read(inputs), options)
        return self._work(work, lent, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @recorded("gather", "input_tensors")
    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.rooted(opts, root)
        options = settled(GatherOptions, opts, timeout, **more)
        given, into = forms.nested(input_tensors, output_tensors)
        lent = Lent("gather")
        work = self.native.gather(lent.lists_filled(into), lent.all_read(given), options)
        return self._work(work, lent, forms.of_lists(into))

    @recorded("scatter", "input_tensors")
    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        root: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.rooted(opts, root)
        options = settled(ScatterOptions, opts, timeout, **more)
        into, given = forms.nested(output_tensors, input_tensors)
        lent = Lent("scatter")
        filled = lent.all_written(into)
        work = self.native.scatter(filled, forms.lists(lent.all_read, given), options)
        return self._work(work, lent, into)

    @recorded("reduce_scatter", "input_tensors")
    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.combined(opts, op)
        options = settled(ReduceScatterOptions, opts, timeout, **more)
        into, given = forms.nested(output_tensors, input_tensors)
        lent = Lent("reduce_scatter")
        filled = lent.all_written(into)
        work = self.native.reduce_scatter(filled, forms.lists(lent.all_read, given), options)
        return self._work(work, lent, into)

    @recorded("reduce_scatter_tensor", "x")
    def reduce_scatter_single(
        self,
        output: Any,
        x: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.combined(opts, op)
        options = settled(ReduceScatterOptions, opts, timeout, **more)
        lent = Lent("reduce_scatter_single")
        work = self.native.reduce_scatter_single(lent.written(output), lent.read(x), options)
        return self._work(work, lent, [output])

    _reduce_scatter_base = reduce_scatter_single

    @recorded("reduce_scatter_tensor_coalesced", "inputs")
    def reduce_scatter_single_coalesced(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        *,
        op: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts, more = forms.combined(opts, op)
        options = settled(ReduceScatterOptions, opts, timeout, **more)
        lent = Lent("reduce_scatter_single_coalesced")
        filled = lent.all_filled(outputs)
        work = self.native.reduce_scatter_single_coalesced(filled, lent.all_read(inputs), options)
        return self._work(work, lent, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @recorded("all_to_all", "input_tensors")
    def alltoall(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        *,
        timeout: timedelta | None = None,
    ) -> Work:
        options = settled(AllToAllOptions, opts, timeout)
        lent = Lent("alltoall")
        filled = lent.all_filled(output_tensors)
        work = self.native.alltoall(filled, lent.all_read(input_tensors), options)
        return self._work(work, lent, output_tensors)

    @recorded("all_to_all", "x")
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
        options = settled(AllToAllOptions, opts, timeout)
        forms.contiguous("all_to_all_single", output, x)
        lent = Lent("all_to_all_single")
        work = self.native.all_to_all_single(
            lent.written(output), lent.read(x), output_split_sizes, input_split_sizes, options
        )
        return self._work(work, lent, [output])

    alltoall_base = all_to_all_single
