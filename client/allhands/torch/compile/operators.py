"""Kernels of functional operators that PyTorch implements only for its own groups."""

import functools
import threading
from collections.abc import Hashable, Mapping
from typing import Any, Final, cast

import torch
from torch._C._distributed_c10d import PythonCallbackWork, _register_work

from allhands.torch.compile import kernels

_INSTALL_LOCK: Final = threading.Lock()


def install(group_type: type[Any]) -> None:
    """Register the operators' kernels for groups of that type. Idempotent; from any thread."""
    with _INSTALL_LOCK:
        _open_library(cast(Hashable, group_type))


@functools.cache
def _open_library(group_type: Any) -> Any:
    """Return the library, which must live as long as the kernels."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    kernels.register_kernel(library, "all_gather_into_tensor_out", _run_all_gather_out, group_type)
    kernels.register_kernel(library, "batch_p2p_ops", _run_batch_p2p_ops, group_type)
    return library


def _run_all_gather_out(group: Any, arguments: Mapping[str, Any]) -> Any:
    work = group.all_gather_single(arguments["out"], arguments["input"])
    return _register_wait(arguments["out"], work)


def _run_batch_p2p_ops(group: Any, arguments: Mapping[str, Any]) -> list[Any]:
    columns = (arguments[name] for name in ("op_list", "peer_list", "tag_list", "tensors"))
    results = []
    for kind, peer, tag, tensor in zip(*columns, strict=True):
        if kind == "isend":
            # What comes out is not what is sent: nothing says when that has been read.
            results.append(_register_wait(tensor.new_empty(0), group.send([tensor], peer, tag)))
        elif kind == "irecv":
            results.append(_register_wait(tensor, group.recv([tensor], peer, tag)))
        else:
            raise ValueError(f"batch_p2p_ops: {kind!r} is no message: isend or irecv")
    return results


def _register_wait(tensor: Any, work: Any) -> Any:
    """Return the tensor, on which `wait_tensor` waits for the work."""
    # PyTorch's registry holds works in C++, where one of Python's does not live on.
    _register_work(tensor, PythonCallbackWork(work.wait))
    return tensor
