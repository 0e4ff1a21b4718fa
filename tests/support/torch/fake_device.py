"""A fictitious device: PyTorch lets a backend in Python stand for a device.

The memory of its tensors is reached by the device's own copies alone, and the processor computes
there. One device per process: PyTorch forgets none.
"""

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "emulated"
_PYTHON = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor of the fictitious device; `raw` is its memory."""

    raw: torch.Tensor

    @staticmethod
    def of(raw: torch.Tensor) -> "DeviceTensor":
        raw = raw.contiguous()  # as PyTorch is told: no view of it has other strides
        made: Any = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
        made.__class__ = DeviceTensor
        made.raw = _RAW[_place(made)] = raw
        found: DeviceTensor = made
        return found


_RAW: dict[int, torch.Tensor] = {}
"""Memory by the storage that stands for it: C++ makes other tensors of one, which have it too."""


def _place(one: torch.Tensor) -> int:
    place: int = one.untyped_storage()._cdata
    return place


def raw(one: Any) -> Any:
    """Return the memory of a device tensor; an ordinary tensor unchanged."""
    if one.device.type != DEVICE:
        return one
    return one.raw if hasattr(one, "raw") else _RAW[_place(one)]


class SparseDeviceTensor(torch.Tensor):  # type: ignore[misc]
    """A sparse tensor of the device, with the methods in use."""

    raw: torch.Tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_PYTHON):
            return op(*given, **(named or {}))

    @staticmethod
    def of(raw: torch.Tensor) -> "SparseDeviceTensor":
        made: Any = torch.Tensor._make_wrapper_subclass(
            SparseDeviceTensor,
            raw.shape,
            dtype=raw.dtype,
            layout=torch.sparse_coo,
            device=torch.device(DEVICE),
        )
        made.raw = raw
        found: SparseDeviceTensor = made
        return found

    def _indices(self) -> Any:
        return DeviceTensor.of(self.raw._indices())

    def _values(self) -> Any:
        return DeviceTensor.of(self.raw._values())

    def detach(self) -> Any:
        return self

    def cpu(self) -> Any:
        return self.raw.clone()

    def copy_(self, other: Any, non_blocking: bool = False) -> Any:
        self.raw = other.raw.clone()
        return self


def make_device(copies: list[str]) -> Any:
    """Register the device with PyTorch while the returned object is held.

    `copies` hears of what goes there and back.
    """
    _setup_privateuseone_for_python_backend(DEVICE)

    def copy(source: Any, target: Any, non_blocking: bool = False) -> Any:
        near = raw(source)
        if target.device.type == DEVICE:
            copies.append("there")
            raw(target).copy_(near)
        else:
            copies.append("back")
            torch.Tensor.copy_(target, near)
        return target

    def empty(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> DeviceTensor:
        return DeviceTensor.of(torch.empty_strided(size, stride, dtype=dtype))

    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    library.impl("_copy_from", copy)
    library.impl("empty_strided", empty)
    library.impl("detach", lambda one: DeviceTensor.of(raw(one).detach()))
    sparse = torch.library.Library("aten", "IMPL", "SparsePrivateUse1")
    sparse.impl("_sparse_coo_tensor_with_dims_and_tensors", _sparse)
    # PyTorch would make their outputs first, of no size, and have them resized.
    structured = "CompositeExplicitAutogradNonFunctional"
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(structured):
        if name.startswith("aten::"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name.removeprefix("aten::"), partial(_computed, operation))
    others = torch.library.Library("_", "IMPL")
    others.fallback(_computed, "PrivateUse1")
    return library, sparse, others


def to_device(values: Any) -> Any:
    """Return a tensor of the device with these values."""
    return torch.as_tensor(values).to(DEVICE)


def _sparse(
    sparse_dim: int, dense_dim: int, size: Any, indices: Any, values: Any, **named: Any
) -> SparseDeviceTensor:
    return SparseDeviceTensor.of(
        torch.sparse_coo_tensor(
            raw(indices), raw(values), size, is_coalesced=named.get("is_coalesced")
        )
    )


def _computed(operation: Any, *given: Any, **named: Any) -> Any:
    """Compute an operation in the device's memory."""
    known: dict[int, Any] = {}

    def near(one: Any) -> Any:
        if isinstance(one, torch.Tensor) and one.device.type == DEVICE:
            known[id(raw(one))] = one
            return raw(one)
        is_there = isinstance(one, torch.device) and one.type == DEVICE
        return torch.device("cpu") if is_there else one

    def there(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return known[id(one)] if id(one) in known else DeviceTensor.of(one)

    return tree_map(there, operation(*tree_map(near, given), **tree_map(near, named)))
