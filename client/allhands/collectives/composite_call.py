"""Composite calls: several collectives, with later steps that depend on earlier results.

The steps are a generator: it yields one collective after another, on arrays of its own, computes
between them, and returns the result of the call; it runs on a thread beside the loop. All steps are
one call of the group and have its number. The first is made as if it was the whole call, so that
ranks in another call are detected; from then on all ranks are in the same composite call.

The caller's arrays are written after all steps have ended, and at no other time: a failed
composite call leaves its outputs as they were.

A reduction with an operation unknown to the native core is such a call: every rank receives a block
of all ranks' arrays, folds it in the order of ranks, and sends the result to the ranks that need
it: as much traffic as any all_reduce. A PREMUL_SUM of numbers that are not widened on the way is a
SUM of the products.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from allhands.collectives import plan
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.core_call import CoreCall, Exchange
from allhands.collectives.packed_exchange import exchange_packed
from allhands.collectives.part import Part
from allhands.collectives.primitive import CallTimeout, Collectives
from allhands.collectives.primitive_call import BuildParts, PrimitiveCall
from allhands.collectives.reduction import PremulSum, ReduceOp, fold, is_narrow, scale
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.staging import Staging
from allhands.data.blocks import copy_into
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """A collective that is one step of a composite call."""

    request: CollectiveRequest
    build: BuildParts
    substeps: "SubstepGenerator | None" = None
    """What it is made of, where that is several."""


StepGenerator: TypeAlias = Generator[Step, None, Result]
SubstepGenerator: TypeAlias = Generator[Step, None, None]
"""Movements after which something is written."""


class StepBuilder(Collectives[Step]):
    """Builder of a composite call's steps: the collectives of its group, to be yielded."""

    def __init__(
        self, name: str, rank: int, size: int, deterministic: bool, link_cost: LinkCost | None
    ) -> None:
        self._name = name
        self._rank = rank
        self._size = size
        self._measured = link_cost
        self.deterministic = deterministic

    @property
    def name(self) -> str:
        return self._name

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    @property
    def _link_cost(self) -> LinkCost | None:
        return self._measured

    def gather_blocks(self, blocks: Array, block: Array) -> Step:
        """Return an `all_gather_into_tensor` of 1-D arrays of bytes, which nobody checks."""
        request = CollectiveRequest(
            "all_gather_into_tensor", block.dtype, block.size, [block], [blocks]
        )
        return Step(
            request, lambda rank, size: plan.all_gather(rank, size, block, [blocks], self._measured)
        )

    def broadcast_block(self, block: Array, root: int) -> Step:
        """Return a `broadcast` of a 1-D array of bytes likewise."""
        request = CollectiveRequest(
            "broadcast", block.dtype, block.size, targets=[block], root=root
        )
        return Step(
            request, lambda rank, size: plan.broadcast(rank, size, block, root, self._measured)
        )

    def exchange_blocks(self, taken: Sequence[Array], given: Sequence[Array]) -> Step:
        """Return an `all_to_all` of 1-D arrays of bytes likewise."""
        send, recv = [len(block) for block in given], [len(block) for block in taken]
        dtype = np.dtype(np.uint8)
        request = CollectiveRequest("all_to_all", dtype, 0, given, taken, send=send, recv=recv)
        return Step(
            request,
            lambda rank, size: plan.all_to_all(rank, size, given, taken, send, recv, dtype),
        )

    def _start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Step:
        return Step(call.request, call.build)

    def _start_custom_reduction(
        self, call: PrimitiveCall, timeout: CallTimeout, label: str | None
    ) -> Step:
        return Step(call.request, _build_no_parts, _foreign_steps(self, call.request))


class CompositeCall(NamedTuple):
    """A call and its generator of steps; as a tuple it is made in a third of the time."""

    call: CallSignature
    """Text sent to the other ranks about it."""
    generate_steps: Callable[[StepBuilder], StepGenerator]
    """Makes them, for a group as it is."""
    targets: Sequence[Array] = ()
    """What it writes of its caller's, at its end."""
    has_blocks: bool = False
    """Whether an argument has an item for each rank."""
    core_call: CoreCall | None = None
    """The same as one call of the native core; None: there is none."""
    staging: Staging | None = None
    """Copies in the place of what it writes of its caller's; None: that is written directly."""
    sources: Sequence[AnyArray] = ()
    """What it reads of its caller's, where that is arrays; for call hooks."""
    object_bytes: int = 0
    """Of objects that it reads of its caller's."""
    read: Callable[[Any], Result] | None = None
    """Makes the result of what the steps give; may run code of users. None: that is the result."""
    pack: Callable[[], Exchange] | None = None
    """Returns its messages, which go in the steps of a packed exchange where there are such steps;
    None: it has none."""


class CompositeState:
    """The steps of a composite call under way."""

    def __init__(self, composite: CompositeCall, builder: StepBuilder) -> None:
        self.call = composite.call
        self.core_call = composite.core_call
        self._steps = self._generate_steps(composite, builder)
        self._substeps: SubstepGenerator | None = None
        self._read = composite.read
        self._first: Step | None = None
        self._next: Step | None = None
        self._found: Result = None
        self.is_over = False
        """Whether it has come to its end, and written what the caller gave."""

    def get_first(self) -> Step:
        """Return the first step, which `advance` does not return any more."""
        if self._first is None:
            self._first = self.advance()
        assert self._first is not None, "a composite call has a step"
        return self._first

    def has_more(self) -> bool:
        """Say whether there is a step after the one that has ended, which `advance` returns."""
        if self._next is None:
            self._next = self._generate_next()
        return self._next is not None

    def finish(self) -> Result:
        """Return the result of the call, after the last step; may run code of users."""
        result = self._found if self._read is None else self._read(self._found)
        self.is_over = True
        return result

    def advance(self) -> Step | None:
        """Return the next step, after the end of the one before; None after the last."""
        step, self._next = self._next, None
        return self._generate_next() if step is None else step

    def _generate_steps(self, composite: CompositeCall, builder: StepBuilder) -> StepGenerator:
        if composite.pack is not None:
            exchange = composite.pack()
            has_each = composite.has_blocks
            received = yield from exchange_packed(builder, exchange, has_each=has_each)
            if received is not None:
                self._read = exchange.read
                return received
        return (yield from composite.generate_steps(builder))

    def _generate_next(self) -> Step | None:
        while True:
            if self._substeps is not None:
                if (step := next(self._substeps, None)) is not None:
                    return step
                self._substeps = None
            try:
                step = next(self._steps)
            except StopIteration as end:
                self._found = end.value
                self.is_over = self._read is None
                return None
            if step.substeps is None:
                return step
            self._substeps = step.substeps


def make_custom_reduction(call: PrimitiveCall) -> CompositeCall:
    """Return the composite call of a reduction unknown to the native core."""
    request, result = call.request, call.result

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        yield from _foreign_steps(builder, request)
        return result

    sources = request.targets if request.primitive.is_in_place else request.sources
    return CompositeCall(
        request.call,
        generate_steps,
        request.targets,
        request.primitive.has_blocks,
        staging=call.staging,
        sources=sources,
    )


def _build_no_parts(rank: int, size: int) -> list[Part]:
    return []


def _foreign_steps(moves: StepBuilder, native: CollectiveRequest) -> SubstepGenerator:
    """Yield the steps of a checked reduction unknown to the native core."""
    assert native.op is not None
    match native.primitive.algorithm:
        case "all_reduce":
            yield from _all_reduce(moves, native.targets[0], native.op)
        case "reduce":
            target = native.targets[0] if native.targets else None
            yield from _reduce(moves, native.sources[0], target, native.root, native.op)
        case "reduce_scatter":
            yield from _reduce_scatter(moves, native.sources, native.targets[0], native.op)
        case unknown:
            raise ValueError(f"no steps are known for {unknown} with a custom operation")


def _all_reduce(builder: StepBuilder, array: Array, op: ReduceOp) -> SubstepGenerator:
    if (factor := _get_factor(op, array.dtype)) is not None:
        found = scale(factor, array)
        yield builder.all_reduce(found)
    else:
        found = np.empty_like(array)
        block, parts = _allocate_blocks(builder, array)
        yield builder.all_to_all(parts, np.array_split(array, builder.size))
        fold(op, parts, block, builder.size)
        yield builder.all_to_all(np.array_split(found, builder.size), [block] * builder.size)
    copy_into(array, found)


def _reduce(
    builder: StepBuilder, source: Array, target: Array | None, root: int, op: ReduceOp
) -> SubstepGenerator:
    if (factor := _get_factor(op, source.dtype)) is not None:
        found = scale(factor, source)
        yield builder.reduce(found, root)
    else:
        found = np.empty_like(source if target is not None else source[:0])
        block, parts = _allocate_blocks(builder, source)
        yield builder.all_to_all(parts, np.array_split(source, builder.size))
        fold(op, parts, block, builder.size)
        nothing = block[:0]
        given = [block if rank == root else nothing for rank in range(builder.size)]
        yield builder.all_to_all(np.array_split(found, builder.size), given)
    if target is not None:
        copy_into(target, found)


def _reduce_scatter(
    builder: StepBuilder, sources: Sequence[Array], target: Array, op: ReduceOp
) -> SubstepGenerator:
    found = np.empty_like(target)
    if (factor := _get_factor(op, target.dtype)) is not None:
        yield builder.reduce_scatter(found, [scale(factor, source) for source in sources])
    else:
        parts = [np.empty_like(target) for _ in sources]
        yield builder.all_to_all(parts, list(sources))
        fold(op, parts, found, builder.size)
    copy_into(target, found)


def _get_factor(op: ReduceOp, dtype: "np.dtype[np.generic]") -> int | float | None:
    """Return the factor of contributions to multiply before the sum; None: widened on the way."""
    return op.value.factor if isinstance(op.value, PremulSum) and not is_narrow(dtype) else None


def _allocate_blocks(builder: StepBuilder, array: Array) -> tuple[Array, list[Array]]:
    """Return memory for this rank's block of the result, and of all ranks' arrays."""
    length = np.array_split(array, builder.size)[builder.rank].size
    block, *parts = (np.empty(length, array.dtype) for _ in range(1 + builder.size))
    return block, parts
