"""Kernels that serve groups of ours, in front of PyTorch's own, which go on serving all others."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

DENSE: Final = ("CPU", "CUDA")
SPARSE: Final = ("SparseCPU", "SparseCUDA")

Act = Callable[[Any, Mapping[str, Any]], Any]
"""Given the group and all arguments by name, it returns what the operator does."""


def serve(library: Any, name: str, act: Act, cls: type, keys: tuple[str, ...] = DENSE) -> None:
    """Let `act` do what an operator does for groups of a class, while the library lives."""
    operator = getattr(getattr(torch.ops, library.ns), name).default
    with warnings.catch_warnings():
        # That a kernel is put before another is meant, and the other is not lost.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for key in keys:
            library.impl(name, _kernel(operator, act, cls, key), key, with_keyset=True)


def _kernel(operator: Any, act: Act, cls: type, key: str) -> Callable[..., Any]:
    before = torch.library.get_kernel(operator, key)
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
        said = dict(zip(names, arguments, strict=False)) | named
        group = _group(said.get("process_group", said.get("group_name")))
        if not isinstance(group, cls):
            return before.call_boxed(keys, *arguments, **named)
        return act(group, said)

    return kernel


def _group(given: Any) -> Any:
    """Return the group that an operator was given, by its name or boxed."""
    if isinstance(given, str):
        return _resolve_process_group(given)
    return dist.ProcessGroup.unbox(given)
