"""Routing of calls through PyTorch's dispatcher for modes and tensor subclasses.

A group in Python stands in for PyTorch's own, which hands every collective to the dispatcher; a
group in Python would pass by it. So a call goes there first where a mode is on (it traces, counts,
or gives shapes alone), where a tensor is of a type that has its own ways, or is nowhere, and where
PyTorch wants to know what is in flight. From there it comes back to a kernel of ours. Every other
call is made at once. What a trace has recorded comes to the kernel too, on its own: it ends before
it returns, as nobody waits for it.
"""

import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    PythonCallbackWork,
    _allow_inflight_collective_as_graph_input,
)

from allhands.torch.call_table import TORCH_CALLS
from allhands.torch.compile import kernels

METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {call.operator: call.method for call in TORCH_CALLS if call.operator}
)
"""What the dispatcher calls an operation, and what a process group does."""

_count_modes: Final = torch._C._len_torch_dispatch_stack
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {"reduce_op": "reduceOp", "root_rank": "rootRank", "root_tensor": "rootTensor"}
)
_NOT_METHOD_ARGUMENTS: Final = frozenset(
    {*_OPTIONS, "process_group", "async_op", "timeout", "sparse_indices"}
)
"""Arguments of operations that are no arguments of methods."""


@dataclass
class _DispatchedCall:
    """One call in the dispatcher."""

    reduce_op: Any
    """The operation: the dispatcher does not hand on the factor of PREMUL_SUM."""
    work: Any = None


_CURRENT_CALL: ContextVar[_DispatchedCall | None] = ContextVar("passage", default=None)

Group = TypeVar("Group")


def add_dispatch(cls: type[Group]) -> type[Group]:
    """Decorate a class of process groups so that calls go through the dispatcher if necessary.

    `direct` of each method is the call without the dispatcher.
    """
    installed = _KernelInstaller(cls)
    for operation, method in METHODS.items():
        called = _wrap_method(operation, method, getattr(cls, method), installed)
        for name, found in [(name, getattr(cls, name)) for name in dir(cls)]:
            if found is called.direct:  # type: ignore[attr-defined]
                setattr(cls, name, called if name == method else _LegacyName(name, called))
    return cls


class _LegacyName:
    """Former name of a method, found by C++ where the new name is absent.

    While a call is on its way up the new one is hidden from C++, so this must be PyTorch's own.
    """

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self._base = getattr(dist.ProcessGroup, name)
        self._method = method

    def __get__(self, group: Any, kind: Any = None) -> Any:
        if group is None:
            return self._method
        is_on_its_way = _CURRENT_CALL.get() is not None
        return (self._base if is_on_its_way else self._method).__get__(group, kind)


def _wrap_method(
    operation: str, name: str, direct: Callable[..., Any], installed: "_KernelInstaller"
) -> Callable[..., Any]:
    base = getattr(dist.ProcessGroup, name)
    # Where the dispatcher knows no shapes of it, tensors without memory are refused as by any call.
    has_shapes = torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{operation}", "Meta")

    def call_base(self: Any, *arguments: Any, **named: Any) -> Any:
        return base(self, *arguments, **named)

    # The base calls the method of that name, which is ours, unless that is who calls it.
    call_base.__code__ = call_base.__code__.replace(co_name=name)

    @functools.wraps(direct)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        given = (*arguments, *named.values()) if named else arguments
        if _are_plain(given) and not _is_dispatch_observed():
            return direct(self, *arguments, **named)
        has_nowhere = has_shapes and bool(arguments) and _are_meta(arguments[0])
        if not (has_nowhere or _is_dispatch_observed() or _has_tensor_subclass(given)):
            return direct(self, *arguments, **named)
        installed.install()
        passage = _DispatchedCall(_find_reduce_op(given))
        before = _CURRENT_CALL.set(passage)
        try:
            made = call_base(self, *arguments, **named)
        finally:
            _CURRENT_CALL.reset(before)
        return made if passage.work is None else passage.work

    call.direct = direct  # type: ignore[attr-defined]
    return call


def _find_reduce_op(arguments: Iterable[Any]) -> Any:
    """Return the operation of a reduction; None: absent, or SUM by default."""
    for one in arguments:
        if isinstance(one, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return one
        if hasattr(one, "reduceOp"):
            return one.reduceOp
    return None


def _is_dispatch_observed() -> bool:
    return bool(_count_modes() > 0 or _allow_inflight_collective_as_graph_input())


def _are_plain(arguments: Iterable[Any]) -> bool:
    """Return whether all tensors have memory and are of no subclass; a short look at most calls."""
    for one in arguments:
        kind: Any = type(one)
        if kind in _PLAIN:
            if one.is_meta:
                return False
        elif kind is list or kind is tuple:
            if not _are_plain(one):
                return False
        elif _is_tensor_type(kind):
            return False
    return True


def _has_tensor_subclass(arguments: Iterable[Any]) -> bool:
    """Return whether an argument is a tensor subclass with own `__torch_dispatch__`."""
    for one in arguments:
        kind: Any = type(one)
        if kind in _PLAIN:
            continue
        if kind is list or kind is tuple:
            if _has_tensor_subclass(one):
                return True
        elif _is_tensor_type(kind) and torch._C._dispatch_keys(one).has(
            torch._C.DispatchKey.Python
        ):
            return True
    return False


def _are_meta(tensors: Any) -> bool:
    """Return whether all arguments are tensors without memory."""
    if isinstance(tensors, list | tuple):
        return bool(tensors) and all(map(_are_meta, tensors))
    return isinstance(tensors, torch.Tensor) and tensors.is_meta


@functools.cache
def _is_tensor_type(kind: Hashable) -> bool:
    """Return whether a type is a tensor type; cached, for the check is slow."""
    return isinstance(kind, type) and issubclass(kind, torch.Tensor)


class _KernelInstaller:
    """Installer of kernels for groups of a class; other groups keep the previous kernels."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._lock = threading.Lock()
        self._library: Any = None

    def install(self) -> None:
        """Install the kernels, once; until then PyTorch is unchanged. Safe from any thread."""
        with self._lock:
            if self._library is not None:
                return
            self._library = torch.library.Library("c10d", "IMPL")
            for operation, method in METHODS.items():
                direct = getattr(self._cls, method).direct
                kernels.register_kernel(
                    self._library, operation, _make_kernel(operation, direct), self._cls
                )


def _make_kernel(operation: str, direct: Callable[..., Any]) -> kernels.KernelFunction:
    schema = getattr(torch.ops.c10d, operation).default._schema
    has_options = any(argument.name == "async_op" for argument in schema.arguments)

    def run(group: Any, said: Mapping[str, Any]) -> Any:
        passage = _CURRENT_CALL.get()
        given = [one for name, one in said.items() if name not in _NOT_METHOD_ARGUMENTS]
        work = direct(group, *given, *[_make_options(said, passage)] * has_options)
        if passage is None:
            work.wait()
        else:
            passage.work = work
        ended = PythonCallbackWork(work.wait).boxed()
        return ended if len(schema.returns) == 1 else (given[0], ended)

    return run


def _make_options(arguments: Mapping[str, Any], call: _DispatchedCall | None) -> Any:
    options = SimpleNamespace(
        asyncOp=arguments.get("async_op", True),
        timeout=timedelta(milliseconds=arguments.get("timeout", -1)),
    )
    for name, option in _OPTIONS.items():
        if name in arguments:
            setattr(options, option, arguments[name])
    if "reduce_op" in arguments:
        known = call is not None and call.reduce_op is not None
        options.reduceOp = call.reduce_op if known and call else arguments["reduce_op"].op()
    return options
