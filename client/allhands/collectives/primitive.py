"""Primitive collectives: methods that check their arguments and begin a request.

Arrays are `numpy.ndarray`s of any shape and layout, or of another library; see `to_input` and
`to_output` of `arguments`. What is only read is copied first if it is not contiguous or shares
memory with a written array. Written arrays that are not C-contiguous are staged; see `staging`.
Until a call has ended its arrays belong to the call. Ranks are ranks of the group.

Every rank's contribution to a call has the same shape, not only the same number of elements; the
arrays of one rank need only fit in size. all_to_all takes any shapes: there each pair of ranks
agrees on the number of elements in either direction.

In exchanges between all ranks, real arrays may stand beside complex arrays of twice their item
size: all ranks then treat all arrays as real numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar, Unpack

import numpy as np

from allhands.collectives import arguments, plan
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.faces import faces
from allhands.collectives.primitive_call import BuildParts, PrimitiveCall
from allhands.collectives.reduction import OPS, ReduceOp, check, parse_op
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import Result, Shape, join_shapes
from allhands.collectives.staging import Outputs, Staging
from allhands.errors import InvalidArgument
from allhands.options import CallOptions, read_options

T_co = TypeVar("T_co", covariant=True)
CallTimeout = float | None


class Collectives(ABC, Generic[T_co]):
    """Primitive collectives: each method checks its arguments and begins the call."""

    deterministic: bool
    """Whether reductions over links give the bits that they give over shared memory."""
    _stages_outputs: bool = True
    """Whether outputs of any layout are taken; False: they must be C-contiguous, as in c10d."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process's place in the group."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def _link_cost(self) -> LinkCost | None:
        """The measured cost of the links; None: not measured."""

    @abstractmethod
    def _start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> T_co:
        """Begin a checked call."""

    @abstractmethod
    def _start_custom_reduction(
        self, call: PrimitiveCall, timeout: CallTimeout, label: str | None
    ) -> T_co:
        """Begin a checked reduction with an operation that the native core does not know."""

    @faces(plain="collectives", functional=True)
    def broadcast(self, x: AnyArray, src: int, **options: Unpack[CallOptions]) -> T_co:
        """Overwrite `x` on every rank with the `x` of rank `src`.

        Args:
            x: array of any shape and plain dtype; same on all ranks. On `src` only read,
                elsewhere writeable.
            src: rank in the group.
        """
        root, outputs = self._check_root(src, "src"), Outputs(self._stages_outputs)
        is_root = root == self.rank
        found = arguments.to_input(x, "x") if is_root else arguments.to_output(x, "x")
        array = outputs.check_root(found, "x", is_root=is_root)
        native = CollectiveRequest(
            "broadcast", array.dtype, array.size, targets=[array], root=root, shape=found.shape
        )
        return self._begin_call(
            native,
            lambda rank, size: plan.broadcast(rank, size, array, root, self._link_cost),
            x,
            options,
            outputs.staging,
        )

    @faces(plain="collectives", functional=True)
    def all_reduce(
        self, x: AnyArray, op: ReduceOp | str = ReduceOp.SUM, **options: Unpack[CallOptions]
    ) -> T_co:
        """Overwrite `x` on every rank with the reduction of all ranks' `x`.

        All ranks get the same bits.

        Args:
            x: array of any shape and numeric dtype, writeable; same shape and
                dtype on all ranks. A sparse array receives new indices and values.
            op: SUM, AVG, MIN, MAX or another of `ReduceOp`, or its name, such as "sum".
        """
        outputs = Outputs(self._stages_outputs)
        found = arguments.to_output(x, "x")
        array = outputs.check(found, "x")
        op = parse_op(op)
        check(op, array.dtype)
        native = CollectiveRequest(
            "all_reduce", array.dtype, array.size, targets=[array], op=op, shape=found.shape
        )
        ordered = native.is_ordered(self.size, self.deterministic)
        return self._begin_call(
            native,
            lambda rank, size: plan.all_reduce(rank, size, array, ordered, self._link_cost),
            x,
            options,
            outputs.staging,
        )

    @faces(plain="collectives")
    def reduce(
        self,
        x: AnyArray,
        dst: int,
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite `x` on rank `dst` with the reduction of all ranks' `x`.

        Args:
            x: array of any shape and numeric dtype, same on all ranks. writeable
                on `dst`; elsewhere only read.
            dst: rank in the group.
        """
        root = self._check_root(dst, "dst")
        is_root, outputs = root == self.rank, Outputs(self._stages_outputs)
        found = arguments.to_output(x, "x") if is_root else arguments.to_input(x, "x")
        array = outputs.check(found, "x") if is_root else arguments.check_source(found, "x")
        op = parse_op(op)
        check(op, array.dtype)
        target = array if is_root else None
        targets = [array] if is_root else []
        native = CollectiveRequest(
            "reduce", array.dtype, array.size, [array], targets, op, root, shape=found.shape
        )
        ordered = native.is_ordered(self.size, self.deterministic)
        return self._begin_call(
            native,
            lambda rank, size: plan.reduce(rank, size, array, target, root, ordered),
            x if is_root else None,
            options,
            outputs.staging,
        )

    @faces(plain="collectives")
    def gather(
        self,
        x: AnyArray,
        gather_list: list[AnyArray] | None,
        dst: int,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Fill `gather_list` on rank `dst` with every rank's `x`, in rank order.

        Args:
            x: array of any shape and dtype, same on all ranks; only read.
            gather_list: on `dst` one writeable array like `x` for each rank; None elsewhere.
            dst: rank in the group.
        """
        root, outputs = self._check_root(dst, "dst"), Outputs(self._stages_outputs)
        found = arguments.to_input(x, "x")
        targets = self._check_root_arrays(
            root,
            gather_list,
            "gather_list",
            found,
            lambda given, name, size: outputs.check_list(
                arguments.to_outputs(given, name, size), name, size
            ),
        )
        source = arguments.check_source(found, "x", targets)
        self._check_blocks(targets, "gather_list", source, "x")
        native = CollectiveRequest(
            "gather", source.dtype, source.size, [source], targets, root=root, shape=found.shape
        )
        return self._begin_call(
            native,
            lambda rank, size: plan.gather(rank, size, source, targets, root),
            gather_list,
            options,
            outputs.staging,
        )

    @faces(plain="collectives")
    def scatter(
        self,
        x: AnyArray,
        scatter_list: list[AnyArray] | None,
        src: int,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite `x` with this rank's array of `scatter_list` on rank `src`.

        Args:
            x: writeable array of any shape and dtype, same on all ranks.
            scatter_list: on `src` one array like `x` for each rank, only read; None elsewhere.
            src: rank in the group.
        """
        root, outputs = self._check_root(src, "src"), Outputs(self._stages_outputs)
        found = arguments.to_output(x, "x")
        target = outputs.check(found, "x")
        sources = self._check_root_arrays(
            root,
            scatter_list,
            "scatter_list",
            found,
            lambda given, name, size: arguments.check_sources(
                arguments.to_inputs(given, name, size), name, size, [target]
            ),
        )
        self._check_blocks(sources, "scatter_list", target, "x")
        native = CollectiveRequest(
            "scatter", target.dtype, target.size, sources, [target], root=root, shape=found.shape
        )
        return self._begin_call(
            native,
            lambda rank, size: plan.scatter(rank, size, sources, target, root),
            x,
            options,
            outputs.staging,
        )

    @faces(plain="collectives")
    def all_gather(
        self, outputs: list[AnyArray], x: AnyArray, **options: Unpack[CallOptions]
    ) -> T_co:
        """Fill `outputs` with every rank's `x`, in rank order.

        Args:
            outputs: one writeable array of the size and dtype of `x` for each rank.
            x: array of any shape and dtype, same on all ranks; only read.
        """
        written, found = Outputs(self._stages_outputs), arguments.to_input(x, "x")
        targets = written.check_list(
            arguments.to_outputs(outputs, "outputs", self.size), "outputs", self.size
        )
        source, *targets = arguments.unify_dtypes(
            [arguments.check_source(found, "x", targets), *targets]
        )
        self._check_blocks(targets, "outputs", source, "x")
        shape = _get_shape(found, source)
        native = CollectiveRequest(
            "all_gather", source.dtype, source.size, [source], targets, shape=shape
        )
        return self._begin_call(
            native,
            lambda rank, size: plan.all_gather(rank, size, source, targets, self._link_cost),
            outputs,
            options,
            written.staging,
        )

    @faces(plain="collectives")
    def all_gather_into_tensor(
        self, output: AnyArray, x: AnyArray, **options: Unpack[CallOptions]
    ) -> T_co:
        """Fill `output` with every rank's `x`, concatenated in rank order.

        Args:
            output: writeable array of group size times `x.size` elements.
            x: array of any shape and dtype, same on all ranks; only read.
        """
        written, found = Outputs(self._stages_outputs), arguments.to_input(x, "x")
        target = written.check(arguments.to_output(output, "output"), "output")
        source, target = arguments.unify_dtypes(
            [arguments.check_source(found, "x", [target]), target]
        )
        self._check_whole(target, "output", source, "x")
        native = CollectiveRequest(
            "all_gather_into_tensor",
            source.dtype,
            source.size,
            [source],
            [target],
            shape=_get_shape(found, source),
        )
        return self._begin_call(
            native,
            lambda rank, size: plan.all_gather(rank, size, source, [target], self._link_cost),
            output,
            options,
            written.staging,
        )

    @faces(plain="collectives")
    def reduce_scatter(
        self,
        output: AnyArray,
        inputs: list[AnyArray],
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite `output` with the reduction of all ranks' `inputs[rank]`.

        Args:
            output: writeable array of any shape and numeric dtype, same on all ranks.
            inputs: one array of the size of `output` for each rank; only read.
        """
        written = Outputs(self._stages_outputs)
        target = written.check(arguments.to_output(output, "output"), "output")
        given = arguments.to_inputs(inputs, "inputs", self.size)
        sources = arguments.check_sources(given, "inputs", self.size, [target])
        self._check_blocks(sources, "inputs", target, "output")
        native = CollectiveRequest(
            "reduce_scatter",
            target.dtype,
            target.size,
            sources,
            [target],
            parse_op(op),
            shape=join_shapes([one.shape for one in given]),
        )
        return self._reduce_scatter(native, output, options, written.staging)

    @faces(plain="collectives")
    def reduce_scatter_tensor(
        self,
        output: AnyArray,
        x: AnyArray,
        op: ReduceOp | str = ReduceOp.SUM,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Overwrite `output` with this rank's block of the reduction of `x`.

        Args:
            output: writeable array of any shape and numeric dtype, same on all ranks.
            x: array of `output.size` times the group's size elements; block j is for rank j. Only
                read.
        """
        written, found = Outputs(self._stages_outputs), arguments.to_input(x, "x")
        target = written.check(arguments.to_output(output, "output"), "output")
        source = arguments.check_source(found, "x", [target])
        self._check_whole(source, "x", target, "output")
        sources = [source[at * target.size : (at + 1) * target.size] for at in range(self.size)]
        native = CollectiveRequest(
            "reduce_scatter_tensor",
            target.dtype,
            target.size,
            sources,
            [target],
            parse_op(op),
            shape=get_block_shape(found, self.size),
        )
        return self._reduce_scatter(native, output, options, written.staging)

    @faces(plain="collectives")
    def all_to_all(
        self, outputs: list[AnyArray], inputs: list[AnyArray], **options: Unpack[CallOptions]
    ) -> T_co:
        """Send `inputs[j]` to rank j and receive rank j's block in `outputs[j]`.

        Args:
            outputs: one writeable array for each rank, of the size that the rank
                sends.
            inputs: one array for each rank, of any sizes and one dtype; only read.
        """
        written = Outputs(self._stages_outputs)
        targets = written.check_list(
            arguments.to_outputs(outputs, "outputs", self.size), "outputs", self.size
        )
        given = arguments.to_inputs(inputs, "inputs", self.size)
        sources = arguments.check_sources(given, "inputs", self.size, targets)
        both = arguments.unify_dtypes([*targets, *sources])
        targets, sources = both[: self.size], both[self.size :]
        for at, array in enumerate([*targets, *sources]):
            name = f"outputs[{at}]" if at < self.size else f"inputs[{at - self.size}]"
            arguments.check_same_dtype(targets[0], "outputs[0]", array, name)
        self._check_own_block(targets, sources)
        send, recv = [array.size for array in sources], [array.size for array in targets]
        return self._all_to_all(
            "all_to_all", outputs, sources, targets, send, recv, options, written.staging
        )

    @faces(plain="collectives")
    def all_to_all_single(
        self,
        output: AnyArray,
        x: AnyArray,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> T_co:
        """Send each rank its rows of `x` and receive its rows in `output`.

        Args:
            output: writeable array; rows are along dimension 0.
            x: array of the same dtype; only read.
            output_split_sizes: rows received from each rank; None: equal shares.
            input_split_sizes: rows sent to each rank; None: equal shares.
        """
        written, rows = Outputs(self._stages_outputs), arguments.to_output(output, "output")
        found = arguments.to_input(x, "x")
        if not (found.flags.c_contiguous or self._stages_outputs):
            raise InvalidArgument("Tensors must be contiguous: x is not C-contiguous")
        target = written.check(rows, "output")
        source = arguments.check_source(found, "x", [target])
        arguments.check_same_dtype(target, "output", source, "x")
        recv = arguments.count_elements(rows, output_split_sizes, "output_split_sizes", self.size)
        send = arguments.count_elements(found, input_split_sizes, "input_split_sizes", self.size)
        if send[self.rank] != recv[self.rank]:
            raise ValueError(
                f"this rank gives itself {send[self.rank]} elements and expects {recv[self.rank]}"
            )
        return self._all_to_all(
            "all_to_all_single", output, [source], [target], send, recv, options, written.staging
        )

    @faces(plain="collectives")
    def barrier(self, **options: Unpack[CallOptions]) -> T_co:
        """Return when every rank of the group has called `barrier`.

        Earlier calls on the group have ended by then. Arguments and errors are as for `all_reduce`.
        """
        return self._begin_call(CollectiveRequest("barrier"), plan.barrier, None, options)

    def _begin_call(
        self,
        request: CollectiveRequest,
        build: BuildParts,
        result: Result,
        options: CallOptions,
        staging: Staging | None = None,
    ) -> T_co:
        """Begin a checked call; reductions unknown to the native core become composite calls."""
        timeout, label = read_options(request.kind, options)
        call = PrimitiveCall(request, build, result, staging)
        if request.op is None or request.op in OPS:
            return self._start(call, timeout, label)
        return self._start_custom_reduction(call, timeout, label)

    def _reduce_scatter(
        self,
        request: CollectiveRequest,
        output: AnyArray,
        options: CallOptions,
        staging: Staging | None,
    ) -> T_co:
        (target,), sources = request.targets, request.sources
        assert request.op is not None
        check(request.op, target.dtype)
        ordered = request.is_ordered(self.size, self.deterministic)
        return self._begin_call(
            request,
            lambda rank, size: plan.reduce_scatter(rank, size, sources, target, ordered),
            output,
            options,
            staging,
        )

    def _all_to_all(
        self,
        operation: str,
        output: Result,
        sources: Sequence[Array],
        targets: Sequence[Array],
        send: Sequence[int],
        recv: Sequence[int],
        options: CallOptions,
        staging: Staging | None,
    ) -> T_co:
        dtype = targets[0].dtype
        native = CollectiveRequest(operation, dtype, 0, sources, targets, send=send, recv=recv)
        if self.size == 2:
            here, there = send[1 - self.rank], recv[1 - self.rank]
            crossing = (here, there) if self.rank == 0 else (there, here)
            native = replace(native, crossing=crossing)
        return self._begin_call(
            native,
            lambda rank, size: plan.all_to_all(rank, size, sources, targets, send, recv, dtype),
            output,
            options,
            staging,
        )

    def _check_root(self, rank: int, name: str) -> int:
        if not 0 <= rank < self.size:
            raise InvalidArgument(
                f"invalid root rank: {name}={rank} is not in {self.name!r}, "
                f"whose ranks go from 0 to {self.size - 1}"
            )
        return rank

    def _check_root_arrays(
        self,
        root: int,
        arrays: list[AnyArray] | None,
        name: str,
        x: AnyArray,
        check_list: Callable[[object, str, int], list[Array]],
    ) -> list[Array]:
        """Check a list of arrays that only the root gives, and each rank `x`."""
        if root == self.rank:
            if arrays is None:
                raise ValueError(f"{name} is needed on rank {root}, where it is used")
            return check_list(arrays, name, self.size)
        if arrays:
            for at, one in enumerate(arrays):  # as c10d does, whichever rank it is
                other = arguments.to_input(one, f"{name}[{at}]")
                arguments.check_same_dtype(
                    arguments.check_array(x, "x"), "x", other, f"{name}[{at}]"
                )
            raise ValueError(f"{name} is for rank {root} alone: pass None on rank {self.rank}")
        return []

    def _check_blocks(
        self, many: Sequence[Array], many_name: str, one: Array, one_name: str
    ) -> None:
        """Check that every array of a list is like the single one."""
        names = [one_name, *(f"{many_name}[{at}]" for at in range(len(many)))]
        arguments.check_alike([one, *many], names)

    def _check_whole(self, long: Array, long_name: str, short: Array, short_name: str) -> None:
        arguments.check_same_dtype(long, long_name, short, short_name)
        if long.size != short.size * self.size:
            raise InvalidArgument(
                f"invalid tensor size: {long_name} has {long.size} elements; {self.size} ranks "
                f"times the {short.size} of {short_name} are {short.size * self.size}"
            )

    def _check_own_block(self, targets: Sequence[Array], sources: Sequence[Array]) -> None:
        send, recv = sources[self.rank].size, targets[self.rank].size
        if send != recv:
            raise ValueError(
                f"this rank gives itself {send} elements in inputs[{self.rank}] and expects "
                f"{recv} in outputs[{self.rank}]"
            )


def _get_shape(x: AnyArray, source: Array) -> Shape:
    """Return the shape of the data sent for `x`; complex arrays may be sent as real ones."""
    return np.shape(x) if source.dtype == x.dtype else (source.size,)


def get_block_shape(x: AnyArray, size: int) -> Shape:
    """Return the shape of a rank's share of `x`; that of `x` where dimension 0 cannot be shared."""
    shape = np.shape(x)
    return (shape[0] // size, *shape[1:]) if shape and shape[0] % size == 0 else shape
