"""Call signatures: the facts of a call that all ranks must agree on, in comparable form."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import islice
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass

Shape: TypeAlias = tuple[int, ...]
"""The dimensions of an array; or, of several, of one after the other with BETWEEN between them."""
SHAPE_SEPARATOR = -1
Result: TypeAlias = object
"""What a call returns to its caller: an array, a list of arrays, objects, or None."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The parts of a call on which all ranks must agree."""

    operation: str
    dtype: str = ""
    count: int | None = None
    """Elements of the array, or of each of the arrays; None where ranks may differ."""
    reduce: str = ""
    root: int | None = None
    """As a rank of the group."""
    crossing: tuple[int, int] | None = None
    """Where each of two ranks says how much it gives: what rank 0 gives to rank 1, and back."""
    detail: str = field(default="", compare=False, repr=False)
    """What ranks need not agree on, for people to read."""
    layout: str = ""
    """Where there are many arrays: the dtypes and shapes of all."""
    shape: Shape | None = None
    """Of the array, or of each rank's block; None: it has none, or ranks may differ in it."""
    label: str = ""
    """What the caller named the call; "": nothing."""

    def __str__(self) -> str:
        """Describe the call without its label."""
        counted = "any" if self.count is None else str(self.count)
        shown = counted if self.shape is None else format_shape(self.shape)
        parts = [
            f"{self.dtype}[{shown}]" if self.dtype else "",
            self.layout,
            self.reduce,
            f"root {self.root}" if self.root is not None else "",
            self.detail,
        ]
        return f"{self.operation}({', '.join(part for part in parts if part)})"

    def with_label(self, label: str | None) -> "CallSignature":
        """Return the call under its caller's label.

        Raises:
            TypeError: the label is no str.
        """
        if label is not None and not isinstance(label, str):
            raise TypeError(f"label must be a str, not {type(label).__name__}")
        return replace(self, label=label) if label else self

    @property
    def signature(self) -> int:
        """64-bit hash that travels with every message of the call."""
        return _hash_signature(self)


@dataclass(frozen=True, slots=True)
class CoalescedSignature:
    """Signature of an all_reduce of several arrays, described when somebody asks."""

    dtype: str
    shapes: Sequence[Shape] | bytes
    """Or packed, as the core's collector gives them: nobody but a reader makes tuples of them."""
    reduce: str

    @property
    def operation(self) -> str:
        return "all_reduce_coalesced"

    def describe(self) -> CallSignature:
        """Return the signature as other calls have theirs."""
        shapes = _unpack_shapes(self.shapes) if isinstance(self.shapes, bytes) else self.shapes
        layout = ",".join(f"{self.dtype}[{format_shape(shape)}]" for shape in shapes)
        return CallSignature(self.operation, reduce=self.reduce, layout=layout)


def _unpack_shapes(packed: bytes) -> Iterator[Shape]:
    numbers = iter(memoryview(packed).cast("q"))
    for ndim in numbers:
        yield tuple(islice(numbers, ndim))


def join_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the common shape of several arrays, else all their shapes."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    joined = list(shapes[0])
    for shape in shapes[1:]:
        joined += (SHAPE_SEPARATOR, *shape)
    return tuple(joined)


def format_shape(shape: Shape) -> str:
    """Format a shape for people: "10,100"; of several arrays "10,100;1000"."""
    shown = ",".join(";" if dim == SHAPE_SEPARATOR else str(dim) for dim in shape)
    return shown.replace(",;", ";").replace(";,", ";")


@lru_cache(maxsize=1024)
def _hash_signature(call: CallSignature) -> int:
    # Not hash(): that differs from process to process. The text is part of the wire's format and
    # begins with "Call", whatever the class is called.
    text = "Call" + repr(call).removeprefix(type(call).__qualname__)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def hash_group(name: str) -> int:
    """Return the 64 bits under which a group's messages travel."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
