"""Argument forms of PyTorch: a tensor for a list of length 1, a root in place of options."""

from typing import Any

import torch

from allhands.errors import InvalidArgument
from allhands.torch.options import to_reduce_op


def as_list(tensors: Any) -> Any:
    """Wrap a single tensor in a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def pair_lists(one: Any, each: Any) -> tuple[Any, Any]:
    """Wrap a single tensor and a list of output tensors in lists."""
    if not isinstance(one, torch.Tensor):
        return one, each
    return [one], [each] if each else []


def map_lists(view: Any, arrays: Any) -> Any:
    """View each of several tensor lists; non-lists pass unchanged and are refused later."""
    return [view(one) for one in arrays] if isinstance(arrays, list | tuple) else arrays


def unwrap_single(lists: Any) -> Any:
    """Return the only list of tensors, or all lists if there are several."""
    return lists[0] if len(lists) == 1 else lists


def check_contiguous(operation: str, *tensors: Any) -> None:
    """Check tensors of which rows are given to ranks, as PyTorch does.

    Raises:
        InvalidArgument: one is not contiguous.
    """
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
            raise InvalidArgument(
                f"{operation}: Tensors must be contiguous: one of size {list(tensor.shape)} has "
                f"strides {list(tensor.stride())}"
            )


def split_root(opts: Any, root: Any) -> tuple[Any, dict[str, Any]]:
    """Split an argument into options and root."""
    if isinstance(opts, int):
        return None, {"rootRank": opts}
    return opts, {} if root is None else {"rootRank": root}


def split_reduce_op(opts: Any, op: Any) -> tuple[Any, dict[str, Any]]:
    """Split an argument into options and reduction."""
    if op is None and opts is not None and not hasattr(opts, "reduceOp"):
        return None, {"reduceOp": to_reduce_op(opts)}
    return opts, {} if op is None else {"reduceOp": to_reduce_op(op)}
