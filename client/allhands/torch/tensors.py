"""Tensors as arrays: the same memory where that can be, else a copy that goes back at the end."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch

from allhands.engine.arguments import AnyArray
from allhands.sparse import SparseArray
from allhands.torch.memory import shared

_VIEWED: Final[Mapping[Any, tuple[Any, Any]]] = MappingProxyType(
    {
        torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
        torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    }
)
"""Types that `Tensor.numpy` does not know: as what it is taken through, and what they are."""


class Lent:
    """The tensors of one call, lent to it as arrays; not safe from several threads."""

    def __init__(self) -> None:
        self._staged: list[tuple[Any, Any]] = []
        self._sparse: list[tuple[Any, SparseArray]] = []

    def read(self, tensor: Any) -> Any:
        """Return an array of what a tensor holds, to be read alone."""
        if not isinstance(tensor, torch.Tensor):
            return tensor  # to be refused with all that is wrong
        if tensor.layout is torch.sparse_coo:
            return self._sparsely(tensor)
        own = tensor.detach().resolve_conj().resolve_neg()
        return _array(own.cpu().contiguous())

    def written(self, tensor: Any) -> Any:
        """Return an array that stands for a tensor, to be read and written."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.layout is torch.sparse_coo:
            return self._sparsely(tensor)
        if _is_plain(tensor):
            return _array(tensor.detach())
        stage = _stage(tensor)
        self._staged.append((tensor, stage))
        return _array(stage)

    def all_read(self, tensors: Any) -> Any:
        return [self.read(one) for one in tensors] if _is_list(tensors) else tensors

    def all_written(self, tensors: Any) -> Any:
        return [self.written(one) for one in tensors] if _is_list(tensors) else tensors

    @property
    def gives_back(self) -> bool:
        """Whether there is anything to do when the call has ended."""
        return bool(self._staged or self._sparse)

    def give_back(self) -> None:
        """Write to the tensors what the call has left in their copies."""
        with torch.no_grad():
            for tensor, stage in self._staged:
                tensor.copy_(stage)
            for tensor, array in self._sparse:
                tensor.copy_(_sparse_tensor(tensor, array))
        self._staged.clear()
        self._sparse.clear()

    def _sparsely(self, tensor: Any) -> SparseArray:
        own = tensor.detach()
        values = own._values().cpu().contiguous()
        array = SparseArray(shared(own._indices().cpu().contiguous()), _array(values), tensor.shape)
        self._sparse.append((tensor, array))
        return array


def _is_list(tensors: Any) -> bool:
    return isinstance(tensors, list | tuple)


def _is_plain(tensor: Any) -> bool:
    """Say whether the memory of a tensor is that of an array."""
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _array(tensor: Any) -> AnyArray:
    """Return the memory of a plain tensor without history."""
    if (viewed := _VIEWED.get(tensor.dtype)) is None:
        return shared(tensor)
    through, dtype = viewed
    same: AnyArray = shared(tensor.view(through)).view(np.dtype(dtype))
    return same


def _stage(tensor: Any) -> Any:
    """Return a contiguous copy in host memory."""
    stage = torch.empty(
        tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda"
    )
    stage.copy_(tensor.detach())
    return stage


def _tensor(array: AnyArray) -> Any:
    for dtype, (through, known) in _VIEWED.items():
        if array.dtype == np.dtype(known):
            width = np.dtype(f"i{array.itemsize}") if through is torch.int16 else np.dtype("u1")
            return torch.from_numpy(array.view(width)).view(dtype)
    return torch.from_numpy(array)


def _sparse_tensor(like: Any, array: SparseArray) -> Any:
    return torch.sparse_coo_tensor(
        torch.from_numpy(array.indices),
        _tensor(array.values),
        like.shape,
        device=like.device,
        check_invariants=False,
    )


def flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    """Return what several lists hold, end to end."""
    return [one for some in lists for one in some]
