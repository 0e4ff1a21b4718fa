"""Composite collectives of a group: calls made of several collectives; see `composite_call`.

They return new arrays or objects, or write the caller's arrays at the very end: a failed call
leaves its arguments as they were, but for scan and exscan in shared memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Unpack

import numpy as np

from allhands.collectives import arguments, coalesced, object_calls, scans, sparse, vector
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.faces import faces
from allhands.collectives.primitive import CallTimeout, T_co, get_block_shape
from allhands.collectives.reduction import ReduceOp, check, parse_op
from allhands.collectives.signature import Shape
from allhands.collectives.staging import Outputs, Staging
from allhands.data.serializer import ObjectSerializer
from allhands.data.sparse_array import SparseArray
from allhands.options import CallOptions, check_options, read_options

BROADCAST_BYTES = 256 << 20
"""Of a bucket of arrays that are broadcast together, if nobody says otherwise."""


class Composed(ABC, Generic[T_co]):
    """Checks the arguments of each composite and begins it; raises as `Collectives` does."""

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

    @faces(plain="ragged")
    def all_gather_v(self, x: AnyArray, **options: Unpack[CallOptions]) -> T_co:
        """Return every rank's `x`, of any shapes, as a list of new arrays.

        Results are new arrays, which the caller owns.

        Args:
            x: array of any shape, contiguous or not; one dtype on all ranks.
        """
        return self._begin_composite(vector.all_gather(_check_source(x, "x")), options)

    @faces(plain="ragged")
    def gather_v(self, x: AnyArray, dst: int, **options: Unpack[CallOptions]) -> T_co:
        """Return every rank's `x`, of any shapes, on rank `dst`; None elsewhere.

        Results are new arrays, which the caller owns.

        Args:
            x: array of any shape, contiguous or not; one dtype on all ranks.
            dst: rank in the group.
        """
        root = self._check_root(dst, "dst")
        return self._begin_composite(vector.gather(_check_source(x, "x"), root), options)

    @faces(plain="ragged")
    def scatter_v(
        self, scatter_list: Sequence[AnyArray] | None, src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Return this rank's array, of any shape, of the list on rank `src`.

        Results are new arrays, which the caller owns.

        Args:
            scatter_list: on `src` one array for each rank, of any shapes and one dtype; None
                elsewhere.
            src: rank in the group.
        """
        root = self._check_root(src, "src")
        arrays = self._check_root_list(root, scatter_list, "scatter_list")
        blocks = None if arrays is None else self._check_blocks_v(arrays, "scatter_list")
        return self._begin_composite(vector.scatter(blocks, root), options)

    @faces(plain="ragged")
    def all_to_all_v(self, inputs: Sequence[AnyArray], **options: Unpack[CallOptions]) -> T_co:
        """Send `inputs[j]` to rank j; return the arrays received, by rank.

        Results are new arrays, which the caller owns.

        Args:
            inputs: one array for each rank, of any shapes and one dtype; only read.
        """
        return self._begin_composite(
            vector.all_to_all(self._check_blocks_v(inputs, "inputs")), options
        )

    @faces(plain="ragged")
    def reduce_scatter_v(
        self,
        inputs: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Return the reduction of all ranks' `inputs` at this rank's index.

        Results are new arrays, which the caller owns.

        Args:
            inputs: one array of a numeric dtype for each rank; shapes differ among items, not
                ranks.
        """
        blocks = self._check_blocks_v(inputs, "inputs")
        op = parse_op(op)
        check(op, blocks[0].dtype)
        return self._begin_composite(vector.reduce_scatter(blocks, op), options)

    # ------------------------------------------------------------ prefixes

    @faces(plain="scans")
    def scan(
        self, x: AnyArray, op: ReduceOp | str = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite `x` with the reduction of `x` of ranks 0 to this one.

        AVG is not defined. If the call fails `x` is undefined unless the error's `outputs_intact`
        is true. Errors are as for `all_reduce`.

        Args:
            x: array of a numeric dtype, writeable; same shape and dtype on all
                ranks.
        """
        return self._scan(x, parse_op(op), exclusive=False, options=options)

    @faces(plain="scans")
    def exscan(
        self, x: AnyArray, op: ReduceOp | str = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite `x` with the reduction of `x` of the ranks before this one.

        Rank 0 keeps its own `x`. AVG is not defined. If the call fails `x` is undefined unless the
        error's `outputs_intact` is true. Errors are as for `all_reduce`.

        Args:
            x: array of a numeric dtype, writeable; same shape and dtype on all
                ranks.
        """
        return self._scan(x, parse_op(op), exclusive=True, options=options)

    # ------------------------------------------------------------ many arrays at once

    def all_reduce_coalesced(
        self,
        arrays: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each array with the reduction of all ranks' arrays.

        A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

        Args:
            arrays: writeable arrays of one numeric dtype; same shapes on all ranks.
        """
        outputs, given = Outputs(), _to_outputs(arrays, "arrays")
        found = outputs.check_list(given, "arrays", len(given), in_place=True)
        chain = coalesced.all_reduce(found, _get_shapes(given), parse_op(op), arrays)
        return self._begin_composite(chain, options, outputs.staging)

    @faces(plain="coalesced")
    def broadcast_coalesced(
        self,
        arrays: Sequence[AnyArray],
        src: int,
        buffer_size: int = BROADCAST_BYTES,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each array with that of rank `src`, in few messages.

        A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

        Args:
            arrays: writeable arrays of any dtypes; same shapes and dtypes on all
                ranks.
            src: rank in the group.
            buffer_size: bytes of a bucket of one dtype; a longer array travels alone.
        """
        root = self._check_root(src, "src")
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least one byte, not {buffer_size}")
        outputs, is_root = Outputs(), root == self.rank
        given = _to_inputs(arrays, "arrays") if is_root else _to_outputs(arrays, "arrays")
        found = outputs.check_root_list(given, "arrays", len(given), is_root=is_root)
        chain = coalesced.broadcast(found, _get_shapes(given), root, buffer_size, arrays)
        return self._begin_composite(chain, options, outputs.staging)

    def all_gather_coalesced(
        self,
        output_lists: Sequence[Sequence[AnyArray]],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Fill `output_lists[j]` with the inputs of rank j.

        A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

        Args:
            output_lists: for each rank a list of writeable arrays like `inputs`.
            inputs: arrays of one dtype, same shapes on all ranks; only read.
        """
        places = [
            coalesced.check_list(one, f"output_lists[{rank}]")
            for rank, one in enumerate(
                arguments.check_list(output_lists, "output_lists", self.size)
            )
        ]
        for rank, one in enumerate(places):
            _check_count(one, f"output_lists[{rank}]", inputs)
        written = Outputs()
        flat = _check_written(written, [place for one in places for place in one], "output_lists")
        given = _to_inputs(inputs, "inputs")
        sources = arguments.check_sources(given, "inputs", len(given), flat)
        outputs = [flat[at :: len(sources)] for at in range(len(sources))]
        for at, (blocks, source) in enumerate(zip(outputs, sources, strict=True)):
            names = [f"inputs[{at}]", *(f"output_lists[{to}][{at}]" for to in range(self.size))]
            arguments.check_alike([source, *blocks], names)
        name = "all_gather_coalesced"
        chain = coalesced.all_gather(outputs, sources, _get_shapes(given), name, output_lists)
        return self._begin_composite(chain, options, written.staging)

    @faces(plain="coalesced")
    def all_gather_into_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Fill each output with every rank's input, in rank order.

        A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

        Args:
            outputs: writeable arrays, each of its input's size times the group's.
            inputs: arrays of any dtypes, same shapes and dtypes on all ranks; only read.
        """
        written = Outputs()
        targets = _check_written(written, outputs, "outputs")
        _check_count(targets, "outputs", inputs)
        given = _to_inputs(inputs, "inputs")
        sources = arguments.check_sources(given, "inputs", len(given), targets)
        for at, (target, source) in enumerate(zip(targets, sources, strict=True)):
            self._check_whole(target, f"outputs[{at}]", source, f"inputs[{at}]")
        blocks = [list(target.reshape(self.size, -1)) for target in targets]
        name = "all_gather_into_tensor_coalesced"
        chain = coalesced.all_gather(blocks, sources, _get_shapes(given), name, outputs)
        return self._begin_composite(chain, options, written.staging)

    @faces(plain="coalesced")
    def reduce_scatter_tensor_coalesced(
        self,
        outputs: Sequence[AnyArray],
        inputs: Sequence[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite each output with this rank's block of its reduction.

        A failed call leaves the arrays as they were. Errors are as for `all_reduce`.

        Args:
            outputs: writeable arrays, same shapes and dtypes on all ranks.
            inputs: arrays, each of its output's size times the group's; block j is for rank j.
        """
        written = Outputs()
        targets = _check_written(written, outputs, "outputs")
        _check_count(targets, "outputs", inputs)
        given = _to_inputs(inputs, "inputs")
        sources = arguments.check_sources(given, "inputs", len(given), targets)
        for at, (target, source) in enumerate(zip(targets, sources, strict=True)):
            self._check_whole(source, f"inputs[{at}]", target, f"outputs[{at}]")
        blocks = [list(source.reshape(self.size, -1)) for source in sources]
        shapes = [get_block_shape(one, self.size) for one in given]
        chain = coalesced.reduce_scatter(targets, blocks, shapes, parse_op(op), outputs)
        return self._begin_composite(chain, options, written.staging)

    # ------------------------------------------------------------ sparse arrays

    def all_reduce_sparse(
        self, x: SparseArray, op: ReduceOp | str = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite sparse `x` with the reduction of all ranks' `x`, as if dense.

        Its `indices` are then new, each once and in order, and its `values`; shapes are equal.
        """
        check_options("all_reduce_sparse", options)
        return self._begin_composite(sparse.all_reduce(x, parse_op(op)), options)

    # ------------------------------------------------------------ objects

    def all_gather_object(self, value: object, **options: Unpack[CallOptions]) -> T_co:
        """Return every rank's object, in rank order."""
        parts = self.objects.encode_parts(value)
        return self._begin_composite(object_calls.all_gather(parts, self.objects), options)

    def gather_object(self, value: object, dst: int, **options: Unpack[CallOptions]) -> T_co:
        """Return every rank's object on rank `dst`; None elsewhere."""
        root = self._check_root(dst, "dst")
        parts = self.objects.encode_parts(value)
        return self._begin_composite(object_calls.gather(parts, root, self.objects), options)

    def scatter_object(
        self, values: Sequence[object] | None, src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Return this rank's object of the list on rank `src`.

        `values` is None on the other ranks.
        """
        root = self._check_root(src, "src")
        given = self._check_root_list(root, values, "the list of objects")
        parts = None if given is None else [self.objects.encode_parts(one) for one in given]
        return self._begin_composite(object_calls.scatter(parts, root, self.objects), options)

    def broadcast_object_list(
        self, values: list[Any], src: int, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite the items of `values` with the items of rank `src`; return `values`."""
        root = self._check_root(src, "src")
        if not isinstance(values, list) or not values:
            raise ValueError(f"the list of objects must be a list that is not empty: {values!r}")
        parts = self.objects.encode_parts(values) if self.rank == root else None
        return self._begin_composite(
            object_calls.broadcast(parts, root, values, self.objects), options
        )

    # ------------------------------------------------------------ inside

    def _scan(self, x: AnyArray, op: ReduceOp, *, exclusive: bool, options: CallOptions) -> T_co:
        outputs, found = Outputs(), arguments.to_output(x, "x")
        array = outputs.check(found, "x")
        chain = scans.scan(array, op, found.shape, exclusive=exclusive, result=x)
        return self._begin_composite(chain, options, outputs.staging)

    def _begin_composite(
        self, composite: CompositeCall, options: CallOptions, staging: Staging | None = None
    ) -> T_co:
        if staging is not None:
            composite = composite._replace(staging=staging)
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
    found = arguments.check_input(x, name)
    return np.ascontiguousarray(found).reshape(found.shape)  # 0-d stays so


def _to_inputs(arrays: object, name: str) -> list[AnyArray]:
    found = coalesced.check_list(arrays, name)
    return arguments.to_inputs(found, name, len(found))


def _to_outputs(arrays: object, name: str) -> list[AnyArray]:
    found = coalesced.check_list(arrays, name)
    return arguments.to_outputs(found, name, len(found))


def _check_written(outputs: Outputs, arrays: object, name: str) -> list[Array]:
    found = _to_outputs(arrays, name)
    return outputs.check_list(found, name, len(found))


def _get_shapes(arrays: Sequence[AnyArray]) -> list[Shape]:
    return [np.shape(one) for one in arrays]


def _check_count(outputs: Sequence[object], name: str, inputs: Sequence[object]) -> None:
    if len(coalesced.check_list(inputs, "inputs")) != len(outputs):
        raise ValueError(f"there are {len(inputs)} inputs and {len(outputs)} of {name}")
