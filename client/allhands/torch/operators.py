"""Functional operators that reach for what only a group of PyTorch's own has: kernels for ours."""

import functools
import threading
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch._C._distributed_c10d import PythonCallbackWork, _register_work

from allhands.torch import kernels
from allhands.torch.process_group import ProcessGroup

_AT_A_TIME: Final = threading.Lock()


def install() -> None:
    """Let the operators serve groups of ours too. Idempotent; safe from any thread."""
    with _AT_A_TIME:
        _library()


@functools.cache
def _library() -> Any:
    """Return what has to live as long as its kernels."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    kernels.serve(library, "all_gather_into_tensor_out", _all_gather_out, ProcessGroup)
    kernels.serve(library, "batch_p2p_ops", _batch_p2p_ops, ProcessGroup)
    return library


def _all_gather_out(group: Any, said: Mapping[str, Any]) -> Any:
    work = group.all_gather_single(said["out"], said["input"])
    return _awaited(said["out"], work)


def _batch_p2p_ops(group: Any, said: Mapping[str, Any]) -> list[Any]:
    columns = (said[name] for name in ("op_list", "peer_list", "tag_list", "tensors"))
    results = []
    for kind, peer, tag, tensor in zip(*columns, strict=True):
        if kind == "isend":
            # What comes out is not what is sent: nothing says when that has been read.
            results.append(_awaited(tensor.new_empty(0), group.send([tensor], peer, tag)))
        elif kind == "irecv":
            results.append(_awaited(tensor, group.recv([tensor], peer, tag)))
        else:
            raise ValueError(f"batch_p2p_ops: {kind!r} is no message: isend or irecv")
    return results


def _awaited(tensor: Any, work: Any) -> Any:
    """Return the tensor, on which `wait_tensor` waits for the work."""
    # PyTorch's registry holds works in C++, where one of Python's does not live on.
    _register_work(tensor, PythonCallbackWork(work.wait))
    return tensor
