"""Descriptions of calls for call hooks: operation, group, rank, and the arrays by argument."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Final

import numpy as np

from allhands.collectives.arguments import AnyArray
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.signature import SHAPE_SEPARATOR, CallSignature, Result, Shape
from allhands_proto.quick_dataclass import dataclass

_NAMES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "gather": ("x", "gather_list"),
        "scatter": ("scatter_list", "x"),
        "all_gather": ("x", "outputs"),
        "all_gather_into_tensor": ("x", "output"),
        "reduce_scatter": ("inputs", "output"),
        "reduce_scatter_tensor": ("x", "output"),
        "all_to_all": ("inputs", "outputs"),
        "all_to_all_single": ("x", "output"),
        "reduce_scatter_v": ("inputs", "result"),
        "scatter_v": ("arrays", "result"),
        "all_to_all_v": ("arrays", "result"),
    }
)
"""Names of the arguments that are read and written, where one of them is not `x`."""

_LISTS: Final = frozenset({"gather_list", "scatter_list", "outputs", "inputs", "arrays"})
"""Arguments that are lists, whatever their lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """An array of a call, under the name of its argument: `x`, or `outputs[2]` of a list."""

    name: str
    array: AnyArray
    """The caller's memory, or for inputs a copy; flat where its shape is not known here. Hooks
    must not write it."""
    offset: int = 0
    """Elements of the argument before this array, where it is a part."""


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A call as a hook sees it. Ranks are ranks of the group."""

    id: int
    """Number of the call among those of this process's world; the same before and after."""
    operation: str
    group: str
    """Name of the group."""
    rank: int
    """This process's rank in the group."""
    size: int
    """Ranks of the group."""
    sequence: int | None = None
    """Number of the call in its group; None before the call, and for messages."""
    nbytes: int = 0
    """Bytes of this rank's array, or block, or of all data it sends."""
    dtype: str = ""
    shapes: tuple[Shape, ...] = ()
    """Of the array, or of the blocks, as far as they are known before the call."""
    reduce_op: str = ""
    root: int | None = None
    peer: int | None = None
    """The other end of a message; None: any, or it is no message."""
    tag: int | None = None
    """Of a message."""
    label: str | None = None
    inputs: tuple[Argument, ...] = field(default=(), repr=False, compare=False)
    """Arrays that the call reads on this rank."""
    outputs: tuple[Argument, ...] = field(default=(), repr=False, compare=False)
    """Arrays that it writes or returns, after a successful call; before it those it was given."""

    def __str__(self) -> str:
        number = "" if self.sequence is None else f" #{self.sequence}"
        return f"{self.operation}{number} of group {self.group!r}"


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where calls are made: a rank of a group."""

    group: str
    rank: int
    size: int


def describe_primitive(
    number: int, place: CallPlace, call: PrimitiveCall, label: str | None
) -> CallInfo:
    """Describe a call of a primitive."""
    request, signature = call.request, call.request.call
    operation = signature.operation
    if request.primitive.is_in_place:
        reads = list(request.targets)
    else:
        reads = list(request.sources)
    shapes = _split_shape(signature.shape)
    read_name, written_name = _NAMES.get(operation, ("x", "x"))
    return CallInfo(
        id=number,
        operation=operation,
        group=place.group,
        rank=place.rank,
        size=place.size,
        nbytes=request.nbytes,
        dtype=signature.dtype,
        shapes=shapes,
        reduce_op=signature.reduce,
        root=signature.root,
        label=label,
        inputs=_name_parts(read_name, _keep_root(signature, place.rank, reads), shapes),
        outputs=list_outputs(call.result, request.targets, written_name),
    )


def describe_composite(
    number: int, place: CallPlace, call: CompositeCall, label: str | None
) -> CallInfo:
    """Describe a call made of several collectives."""
    signature = call.call
    read_name, written_name = _NAMES.get(signature.operation, ("x", "x"))
    sources = _keep_root(signature, place.rank, call.sources)
    shapes = tuple(source.shape for source in sources)
    return CallInfo(
        id=number,
        operation=signature.operation,
        group=place.group,
        rank=place.rank,
        size=place.size,
        nbytes=sum(source.nbytes for source in sources),
        dtype=signature.dtype or (str(sources[0].dtype) if sources else ""),
        shapes=_split_shape(signature.shape) or shapes,
        reduce_op=signature.reduce,
        root=signature.root,
        label=label,
        inputs=_name_list(read_name, sources),
        outputs=_name_list(written_name, call.targets),
    )


def describe_message(
    number: int,
    place: CallPlace,
    operation: str,
    array: AnyArray,
    peer: int | None,
    tag: int,
    label: str | None,
    given: Result,
) -> CallInfo:
    """Describe a message; `peer` is a rank of the group, `given` the caller's array."""
    arguments = list_outputs(given, [array], "x")
    return CallInfo(
        id=number,
        operation=operation,
        group=place.group,
        rank=place.rank,
        size=place.size,
        nbytes=array.nbytes,
        dtype=str(array.dtype),
        shapes=tuple(argument.array.shape for argument in arguments),
        peer=peer,
        tag=tag,
        label=label,
        inputs=arguments if operation == "send" else (),
        outputs=arguments if operation == "recv" else (),
    )


def list_outputs(
    result: Result, targets: Sequence[AnyArray], name: str = "result"
) -> tuple[Argument, ...]:
    """Return the arrays that a call writes or returns: in their shapes, if the result has them."""
    if isinstance(result, np.ndarray):
        return (Argument(name, result),)
    items: Sequence[object] = result if isinstance(result, list | tuple) else ()
    arrays = [one for one in items if isinstance(one, np.ndarray)]
    return _name_list(name, arrays if arrays and len(arrays) == len(items) else targets)


def _keep_root(
    signature: CallSignature, rank: int, sources: Sequence[AnyArray]
) -> Sequence[AnyArray]:
    """Return what this rank reads: in a broadcast nothing, but on the root."""
    is_root = signature.root is None or signature.root == rank
    return sources if is_root or not signature.operation.startswith("broadcast") else ()


def _name_list(name: str, arrays: Sequence[AnyArray]) -> tuple[Argument, ...]:
    if len(arrays) == 1 and name not in _LISTS:
        return (Argument(name, arrays[0]),)
    if name == "x":
        name = "arrays"
    return tuple(Argument(f"{name}[{at}]", array) for at, array in enumerate(arrays))


def _name_parts(
    name: str, arrays: Sequence[AnyArray], shapes: Sequence[Shape]
) -> tuple[Argument, ...]:
    """Name flat arrays; several under `x` are parts of it."""
    if len(arrays) > 1 and name == "x":
        offsets = [sum(array.size for array in arrays[:at]) for at in range(len(arrays))]
        return tuple(
            Argument(name, array, offset) for array, offset in zip(arrays, offsets, strict=True)
        )
    known = list(shapes) if len(shapes) == len(arrays) else list(shapes[:1]) * len(arrays)
    if len(known) != len(arrays):
        return _name_list(name, arrays)
    shaped = [
        array.reshape(shape) if math.prod(shape) == array.size else array
        for array, shape in zip(arrays, known, strict=True)
    ]
    return _name_list(name, shaped)


def _split_shape(shape: Shape | None) -> tuple[Shape, ...]:
    """Return the shapes of several arrays that were joined to one."""
    if shape is None:
        return ()
    shapes: list[list[int]] = [[]]
    for dim in shape:
        if dim == SHAPE_SEPARATOR:
            shapes.append([])
        else:
            shapes[-1].append(dim)
    return tuple(map(tuple, shapes))
