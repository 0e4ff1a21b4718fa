"""Composite collectives of a group: calls made of several collectives; see `composite_call`.

They return new arrays or objects, or write the caller's arrays at the very end: a failed call
leaves its arguments as they were.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Unpack

import numpy as np

from allhands.collectives import arguments, coalesced, object_calls, scans, sparse, vector
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout, T_co, get_block_shape
from allhands.collectives.reduction import ReduceOp, check
from allhands.collectives.signature import Shape
from allhands.data.serializer import ObjectSerializer
from allhands.data.sparse_array import SparseArray
from allhands.options import CallOptions, check_options, read_options

BROADCAST_BYTES = 256 << 20
"""Of a bucket of arrays that are broadcast together, if nobody says otherwise."""


class Composed(ABC, Generic[T_co]):
    """Checks the arguments of each of them and begins it."""

    objects: ObjectSerializer
    """How objects travel."""

    @property
    @abstractmethod
    def rank(self) -> int: ...

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def _start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> T_co: ...

    @abstractmethod
    def _check_root(self, rank: int, name: str) -> int: ...

    @abstractmethod
    def _check_whole(self, long: Array, long_name: str, short: Array, short_name: str) -> None: ...

    # ------------------------------------------------------------ sizes that others do not know

    def all_gather_v(self, x: AnyArray, **options: Unpack[CallOptions]) -> T_co:
        """Give the arrays of all ranks, of any shapes and one dtype, as a list of new arrays."""
        return self._begin_composite(vector.all_gather(_check_source(x, "x")), options)

    def gather_v(self, x: AnyArray, dst: int, **options: Unpack[CallOptions]) -> T_co:
        """Give the arrays of all ranks, of any shapes and one dtype, to `dst`; None elsewhere."""
        root = self._check_root(dst, "dst")
        return self._begin_composite(vector.gather(_check_source(x, "x"), root), options)

    def scatter_v(
        self, scatter_list: Sequence[AnyArray] | None, src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Give each rank its array of those on `src`, of any shapes and one dtype; others: None."""
        root = self._check_root(src, "src")
        arrays = self._check_root_list(root, scatter_list, "scatter_list")
        blocks = None if arrays is None else self._check_blocks_v(arrays, "scatter_list")
        return self._begin_composite(vector.scatter(blocks, root), options)

    def all_to_all_v(self, inputs: Sequence[AnyArray], **options: Unpack[CallOptions]) -> T_co:
        """Give `inputs[j]` to rank j, and a list of what all ranks give; shapes may differ."""
        return self._begin_composite(
            vector.all_to_all(self._check_blocks_v(inputs, "inputs")), options
        )

    def reduce_scatter_v(
        self,
        inputs: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Give the combination of what all ranks have in `inputs[rank]`, in the order of ranks.

        Each of the inputs may have another shape, the same on all ranks.
        """
        blocks = self._check_blocks_v(inputs, "inputs")
        check(op, blocks[0].dtype)
        return self._begin_composite(vector.reduce_scatter(blocks, op), options)

    # ------------------------------------------------------------ prefixes

    def scan(
        self, x: AnyArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite `x` with the combination of ranks 0 to this one, in their order."""
        array = arguments.check_target(x, "x")
        return self._begin_composite(scans.scan(array, op, exclusive=False, result=x), options)

    def exscan(
        self, x: AnyArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite `x` with the combination of the ranks before this one; rank 0 keeps its own."""
        array = arguments.check_target(x, "x")
        return self._begin_composite(scans.scan(array, op, exclusive=True, result=x), options)

    # ------------------------------------------------------------ many arrays at once

    def all_reduce_coalesced(
        self,
        arrays: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each of the arrays, of any dtypes, with the combination of all ranks'."""
        found = coalesced.check_targets(arrays, "arrays", in_place=True)
        return self._begin_composite(
            coalesced.all_reduce(found, _get_shapes(arrays), op, arrays), options
        )

    def broadcast_coalesced(
        self,
        arrays: Sequence[AnyArray],
        src: int,
        buffer_size: int = BROADCAST_BYTES,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each of the arrays, of any dtypes, with that of rank `src`.

        They travel in buckets of one dtype and `buffer_size` bytes, an array that is longer alone.
        """
        root = self._check_root(src, "src")
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least one byte, not {buffer_size}")
        found = coalesced.check_targets(arrays, "arrays", in_place=True)
        chain = coalesced.broadcast(found, _get_shapes(arrays), root, buffer_size, arrays)
        return self._begin_composite(chain, options)

    def all_gather_coalesced(
        self,
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Fill `output_lists[j]`, arrays like the inputs, with those that rank j gives."""
        places = [
            coalesced.check_list(one, f"output_lists[{rank}]")
            for rank, one in enumerate(
                arguments.check_list(output_lists, "output_lists", self.size)
            )
        ]
        for rank, one in enumerate(places):
            _check_count(one, f"output_lists[{rank}]", inputs)
        flat = coalesced.check_targets([place for one in places for place in one], "output_lists")
        sources = _check_sources(inputs, "inputs", flat)
        outputs = [flat[at :: len(sources)] for at in range(len(sources))]
        for at, (blocks, source) in enumerate(zip(outputs, sources, strict=True)):
            names = [f"inputs[{at}]", *(f"output_lists[{to}][{at}]" for to in range(self.size))]
            arguments.check_alike([source, *blocks], names)
        name = "all_gather_coalesced"
        chain = coalesced.all_gather(outputs, sources, _get_shapes(inputs), name, output_lists)
        return self._begin_composite(chain, options)

    def all_gather_into_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Fill each of `outputs`, `size` times as long as its input, with every rank's, by rank."""
        targets = coalesced.check_targets(outputs, "outputs")
        _check_count(targets, "outputs", inputs)
        sources = _check_sources(inputs, "inputs", targets)
        for at, (target, source) in enumerate(zip(targets, sources, strict=True)):
            self._check_whole(target, f"outputs[{at}]", source, f"inputs[{at}]")
        blocks = [list(target.reshape(self.size, -1)) for target in targets]
        name = "all_gather_into_tensor_coalesced"
        chain = coalesced.all_gather(blocks, sources, _get_shapes(inputs), name, outputs)
        return self._begin_composite(chain, options)

    def reduce_scatter_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        op: ReduceOp = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each of `outputs` with this rank's share of the combination of its input."""
        targets = coalesced.check_targets(outputs, "outputs")
        _check_count(targets, "outputs", inputs)
        sources = _check_sources(inputs, "inputs", targets)
        for at, (target, source) in enumerate(zip(targets, sources, strict=True)):
            self._check_whole(source, f"inputs[{at}]", target, f"outputs[{at}]")
        blocks = [list(source.reshape(self.size, -1)) for source in sources]
        shapes = [get_block_shape(one, self.size) for one in inputs]
        chain = coalesced.reduce_scatter(targets, blocks, shapes, op, outputs)
        return self._begin_composite(chain, options)

    # ------------------------------------------------------------ sparse arrays

    def all_reduce_sparse(
        self, x: SparseArray, op: ReduceOp = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Let `x` hold the combination of all ranks', as if they were dense; equal shapes.

        It has new `indices`, each once and in order, and new `values` then.
        """
        check_options("all_reduce_sparse", options)
        return self._begin_composite(sparse.all_reduce(x, op), options)

    # ------------------------------------------------------------ objects

    def all_gather_object(self, value: object, **options: Unpack[CallOptions]) -> T_co:
        """Give a list of every rank's object; `objects` says which there may be."""
        data = self.objects.encode(value)
        return self._begin_composite(object_calls.all_gather(data, self.objects), options)

    def gather_object(self, value: object, dst: int, **options: Unpack[CallOptions]) -> T_co:
        """Give a list of every rank's object to rank `dst`; None elsewhere."""
        root = self._check_root(dst, "dst")
        data = self.objects.encode(value)
        return self._begin_composite(object_calls.gather(data, root, self.objects), options)

    def scatter_object(
        self, values: Sequence[object] | None, src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Give each rank its object of the list on `src`; None elsewhere."""
        root = self._check_root(src, "src")
        given = self._check_root_list(root, values, "the list of objects")
        data = None if given is None else [self.objects.encode(one) for one in given]
        return self._begin_composite(object_calls.scatter(data, root, self.objects), options)

    def broadcast_object_list(
        self, values: list[Any], src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite the items of the list with those that rank `src` has; equal lengths."""
        root = self._check_root(src, "src")
        if not isinstance(values, list) or not values:
            raise ValueError(f"the list of objects must be a list that is not empty: {values!r}")
        data = self.objects.encode(values) if self.rank == root else None
        return self._begin_composite(
            object_calls.broadcast(data, root, values, self.objects), options
        )

    # ------------------------------------------------------------ inside

    def _begin_composite(self, composite: CompositeCall, options: CallOptions) -> T_co:
        return self._start_composite(composite, *read_options(composite.call.operation, options))

    def _check_root_list(
        self, root: int, items: Sequence[Any] | None, name: str
    ) -> list[Any] | None:
        if root != self.rank:
            if items:
                raise ValueError(f"{name} is for rank {root} alone: pass None on rank {self.rank}")
            return None
        if items is None:
            raise ValueError(f"{name} is needed on rank {root}, where it is used")
        return list(arguments.check_list(items, name, self.size))

    def _check_blocks_v(self, arrays: object, name: str) -> list[AnyArray]:
        found = [
            _check_source(one, f"{name}[{at}]")
            for at, one in enumerate(arguments.check_list(arrays, name, self.size))
        ]
        for at, one in enumerate(found):
            arguments.check_same_dtype(found[0], f"{name}[0]", one, f"{name}[{at}]")
        return found


def _check_source(x: object, name: str) -> AnyArray:
    """Return an array to read, contiguous, in its shape."""
    found = arguments.check_array(x, name)
    return np.ascontiguousarray(found).reshape(found.shape)  # 0-d stays so


def _check_sources(arrays: object, name: str, written: Sequence[Array]) -> list[Array]:
    found = coalesced.check_list(arrays, name)
    return arguments.check_sources(found, name, len(found), written)


def _get_shapes(arrays: Sequence[AnyArray]) -> list[Shape]:
    return [np.shape(one) for one in arrays]


def _check_count(outputs: Sequence[object], name: str, inputs: Sequence[object]) -> None:
    if len(coalesced.check_list(inputs, "inputs")) != len(outputs):
        raise ValueError(f"there are {len(inputs)} inputs and {len(outputs)} of {name}")
