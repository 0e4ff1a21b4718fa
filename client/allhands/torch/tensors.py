"""Tensors as arrays: shared memory where possible, else a copy written back."""

from typing import Any, Final

import torch

from allhands.collectives.arguments import AnyArray
from allhands.collectives.reduction import ReduceOp
from allhands.data.sparse_array import SparseArray
from allhands.errors import InvalidArgument, InvalidType
from allhands.torch.dtypes import find_dtype, to_tensor
from allhands.torch.memory import have_overlap, view_as_array

_DEVICES: Final = ("cpu", "cuda")
_LAYOUTS: Final = (torch.strided, torch.sparse_coo)
_OVERLAPS: Final = 1
"""What PyTorch says of a tensor of which it is sure that elements share memory."""


class TensorViews:
    """Array views of the tensors of one call; not thread-safe."""

    def __init__(self, operation: str = "") -> None:
        """Start empty; `operation` begins the text of refusals."""
        self._operation = operation
        self._staged: list[tuple[Any, Any]] = []
        self._sparse: list[tuple[Any, SparseArray]] = []

    def view_input(self, tensor: Any) -> Any:
        """Return a read-only view of a tensor's elements.

        Raises:
            InvalidArgument: its memory is out of reach, or of an unknown layout.
            InvalidType: its elements are, or it is no tensor.
        """
        if _is_plain(tensor):
            return self._view_dense(tensor.detach() if tensor.requires_grad else tensor)
        self._check(tensor)
        if tensor.layout is torch.sparse_coo:
            return self._view_sparse(tensor)
        return self._view_dense(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())

    def view_inout(self, tensor: Any) -> Any:
        """Return a writable view of a tensor.

        Raises:
            InvalidArgument: as `read`; or elements of it share their memory.
            InvalidType: as `read`.
        """
        if _is_plain(tensor):
            return self._view_dense(tensor.detach() if tensor.requires_grad else tensor)
        self._check(tensor)
        if tensor.layout is torch.sparse_coo:
            return self._view_sparse(tensor)
        if torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
            raise InvalidArgument(
                f"{self._operation}: elements of a tensor of size {list(tensor.shape)} and strides "
                f"{list(tensor.stride())} share memory: clone() it before it is written"
            )
        stage = _copy_to_staging(tensor)
        self._staged.append((tensor, stage))
        return self._view_dense(stage)

    def view_inputs(self, tensors: Any) -> Any:
        return [self.view_input(one) for one in tensors] if _is_list(tensors) else tensors

    def view_inouts(self, tensors: Any) -> Any:
        return [self.view_inout(one) for one in tensors] if _is_list(tensors) else tensors

    def view_input_lists(self, lists: Any) -> Any:
        return [self.view_inputs(one) for one in lists] if _is_list(lists) else lists

    def view_outputs(self, tensors: Any) -> Any:
        """Return array views of output tensors, which must not share memory.

        Raises:
            InvalidArgument: as `view_inout`; or a copied tensor shares memory with another one.
                Without copies, the call itself refuses shared memory.
        """
        arrays = self.view_inouts(tensors)
        self._check_disjoint(tensors)
        return arrays

    def view_output_lists(self, lists: Any) -> Any:
        """Return array views of several lists of tensors; other items stay, to be refused later."""
        if not _is_list(lists):
            return lists
        arrays = [self.view_inouts(one) for one in lists]
        self._check_disjoint([tensor for one in lists if _is_list(one) for tensor in one])
        return arrays

    def check_rows(self, *tensors: Any) -> None:
        """Check tensors of which rows are given to ranks, as PyTorch does.

        Raises:
            InvalidArgument: one is not contiguous.
        """
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
                raise InvalidArgument(
                    f"{self._operation}: Tensors must be contiguous: one of size "
                    f"{list(tensor.shape)} has strides {list(tensor.stride())}"
                )

    def check_reduction(self, op: ReduceOp) -> None:
        """Refuse operations of sparse tensors that depend on what is not stored.

        PyTorch's backends leave open whether that counts as zero.
        """
        if self._sparse and op in (ReduceOp.MIN, ReduceOp.MAX):
            raise InvalidArgument(
                f"{self._operation}: unsupported reduction operation: {op} of sparse tensors; use "
                "SUM or AVG, or to_dense()"
            )

    @property
    def needs_copy_back(self) -> bool:
        """Whether there is anything to do when the call has ended."""
        return bool(self._staged or self._sparse)

    def copy_back(self) -> None:
        """Write the results in copies back to their tensors."""
        for tensor, stage in self._staged:
            _overwrite(tensor, stage)
        for tensor, array in self._sparse:
            _overwrite(tensor, _to_sparse_tensor(tensor, array))
        self._staged.clear()
        self._sparse.clear()

    def _view_sparse(self, tensor: Any) -> SparseArray:
        own = tensor.detach()
        values = self._view_dense(own._values().cpu().contiguous())
        indices = self._view_dense(own._indices().cpu().contiguous())
        array = SparseArray(indices, values, tensor.shape)
        self._sparse.append((tensor, array))
        return array

    def _check_disjoint(self, tensors: Any) -> None:
        if not self._staged or not _is_list(tensors):
            return
        if have_overlap([one for one in tensors if one.layout is torch.strided]):
            raise InvalidArgument(
                f"{self._operation}: two tensors to be filled share memory: one would overwrite "
                "the other"
            )

    def _check(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidType(
                f"{self._operation}: Invalid function argument. A torch.Tensor is expected, "
                f"not {type(tensor).__name__}"
            )
        if tensor.device.type not in _DEVICES:
            raise InvalidArgument(
                f"{self._operation}: unsupported device type {tensor.device.type}: tensors of "
                f"{' and '.join(_DEVICES)} are taken"
            )
        if tensor.layout not in _LAYOUTS or tensor.is_nested:
            raise InvalidArgument(
                f"{self._operation}: unsupported layout {tensor.layout}"
                f"{', nested' * tensor.is_nested}: pass dense tensors, or sparse ones as "
                "to_sparse_coo() gives them"
            )

    def _view_dense(self, tensor: Any) -> AnyArray:
        """Return the memory of a plain tensor without history."""
        if (dtype := find_dtype(tensor.dtype)) is None:
            raise InvalidType(
                f"{self._operation}: no array has elements of {tensor.dtype}: "
                "view(torch.uint8) moves them as bytes"
            )
        return view_as_array(tensor, dtype)


def _is_list(tensors: Any) -> bool:
    return isinstance(tensors, list | tuple)


def _is_plain(tensor: Any) -> bool:
    """Return whether a tensor's memory can be viewed as an array."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _copy_to_staging(tensor: Any) -> Any:
    """Return a contiguous copy in host memory."""
    stage = torch.empty(
        tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda"
    )
    stage.copy_(tensor.detach())
    return stage


def _overwrite(tensor: Any, result: Any) -> None:
    """Write a result in place, also to leaves and inference tensors."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(result)


def _to_sparse_tensor(like: Any, array: SparseArray) -> Any:
    """Return a sparse tensor of an array's elements, each once, in the order of indices."""
    return torch.sparse_coo_tensor(
        torch.from_numpy(array.indices),
        to_tensor(array.values),
        like.shape,
        device=like.device,
        check_invariants=False,
        is_coalesced=True,
    )
