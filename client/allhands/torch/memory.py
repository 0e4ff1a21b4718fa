"""The memory of tensors, as arrays.

Not by `Tensor.numpy`: PyTorch then takes the memory to be NumPy's, and refuses ever after to resize
it, as FSDP and PowerSGD do between their calls.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.exceptions import TooHardError

from allhands.collectives.arguments import AnyArray
from allhands.runtime import native_core

_core, _ = native_core.find()

_MAX_WORK: Final[Any] = 10_000  # NumPy's own types allow 0 and -1 alone
"""Of NumPy, to find out whether two tensors have an element in common: rows, columns and what else
programs cut take less."""


class _ArrayInterface:
    """Array interface of a tensor's memory, which keeps the memory alive."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Any, kind: str, strides: tuple[int, ...] | None = None) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tensor.shape,
            "strides": strides,
            "typestr": kind,
            "version": 3,
        }


def view_as_array(tensor: Any, dtype: "np.dtype[Any]") -> AnyArray:
    """Return an array over a contiguous host tensor, which keeps the tensor alive.

    Args:
        dtype: of the tensor's elements, or another one of their size.

    Raises:
        ValueError: the tensor has elements, and no memory.
    """
    if _core is not None:
        found: AnyArray = _core.view_memory(tensor, tensor.data_ptr(), tensor.shape, dtype)
        return found
    bare: AnyArray = np.asarray(_ArrayInterface(tensor, f"|V{dtype.itemsize}"))
    return bare.view(dtype)


def have_overlap(tensors: Sequence[Any]) -> bool:
    """Say whether two of several dense tensors have an element in common.

    Where that takes more than a little work to find out, or no memory is told of: no.
    """
    filled = [one for one in tensors if one.numel()]
    if len({id(one) for one in filled}) < len(filled):
        return True
    reached = [one for one in filled if one.data_ptr()]
    reaching: list[tuple[int, AnyArray]] = []
    for start, stop, tensor in sorted(map(_compute_extent, reached), key=lambda found: found[:2]):
        mine = _view_outline(tensor)
        reaching = [one for one in reaching if one[0] > start]
        if any(_overlap(mine, other) for _, other in reaching):
            return True
        reaching.append((stop, mine))
    return False


def _overlap(one: AnyArray, other: AnyArray) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=_MAX_WORK))
    except TooHardError:
        return False


def _compute_extent(tensor: Any) -> tuple[int, int, Any]:
    """Return the address range of a non-empty tensor's elements."""
    start = tensor.data_ptr()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in steps)
    return start, start + (last + 1) * tensor.element_size(), tensor


def _view_outline(tensor: Any) -> AnyArray:
    """Return an array over a tensor's memory regardless of dtype: not to be read."""
    nbytes = tensor.element_size()
    strides = tuple(stride * nbytes for stride in tensor.stride())
    found: AnyArray = np.asarray(_ArrayInterface(tensor, f"|V{nbytes}", strides))
    return found
