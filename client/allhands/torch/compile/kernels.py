"""Kernels for groups of this package, in front of PyTorch's own."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group

_KEY: Final = "BackendSelect"
"""Of the dispatcher: after modes and types of tensors have had their say, before any device has."""

KernelFunction = Callable[[Any, Mapping[str, Any]], Any]
"""Given the group and all arguments by name, it returns what the operator does."""


def register_kernel(library: Any, name: str, function: KernelFunction, cls: type) -> None:
    """Register `act` as kernel of an operator for groups of a class, for the library's life."""
    operator = getattr(getattr(torch.ops, library.ns), name).default
    library.impl(name, _make_kernel(operator, function, cls), _KEY, with_keyset=True)


def _make_kernel(operator: Any, function: KernelFunction, cls: type) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
        said = dict(zip(names, arguments, strict=False)) | named
        if not keys.has(torch._C.DispatchKey.Meta):  # shapes alone are PyTorch's to tell
            group = _resolve_group(said.get("process_group", said.get("group_name")))
            if isinstance(group, cls):
                return function(group, said)
        # Not `torch.library.get_kernel`: that calls what was there with the interpreter's lock
        # held, which the threads of other backends may wait for.
        return operator.redispatch(keys & after, *arguments, **named)

    return kernel


def _resolve_group(handle: Any) -> Any:
    """Return the group of an operator's argument, a name or a boxed group."""
    if isinstance(handle, str):
        return _resolve_process_group(handle)
    return dist.ProcessGroup.unbox(handle)
