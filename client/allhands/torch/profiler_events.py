"""Profiler events of calls that end on another thread."""

import functools
import inspect
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import torch
from torch._C._distributed_c10d import _get_comm_profiling_name, _set_comm_profiling_name

from allhands.torch.error_text import append_gloo_text
from allhands.torch.work import Work

EVENTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "all_gather_single": ("all_gather_into_tensor", "x"),
        "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", "inputs"),
        "all_to_all_single": ("all_to_all", "x"),
        "allgather": ("all_gather", "input_tensors"),
        "allgather_coalesced": ("all_gather", "input_tensor_list"),
        "allreduce": ("all_reduce", "tensors"),
        "allreduce_coalesced": ("all_reduce", "tensors"),
        "alltoall": ("all_to_all", "input_tensors"),
        "barrier": ("barrier", "opts"),
        "broadcast": ("broadcast", "tensors"),
        "gather": ("gather", "input_tensors"),
        "recv": ("recv", "tensors"),
        "recv_anysource": ("recvAnySource", "tensors"),
        "reduce": ("reduce", "tensors"),
        "reduce_scatter": ("reduce_scatter", "input_tensors"),
        "reduce_scatter_single": ("reduce_scatter_tensor", "x"),
        "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", "inputs"),
        "scatter": ("scatter", "input_tensors"),
        "send": ("send", "tensors"),
    }
)
"""For each method the name of its event, and the parameter whose shapes that shows."""

Group = TypeVar("Group")

_END_SECONDS = 1.0
"""What an event of a call that has ended may still take: a turn of a thread."""


def record_events(cls: type[Group]) -> type[Group]:
    """Decorate a class of process groups whose calls appear as events while a profiler runs."""
    for method, (name, parameter) in EVENTS.items():
        recorded = _wrap_method(getattr(cls, method), name, parameter)
        for alias in [name for name in dir(cls) if getattr(cls, name) is recorded.__wrapped__]:
            setattr(cls, alias, recorded)
    return cls


def _wrap_method(method: Any, name: str, parameter: str) -> Any:
    at = list(inspect.signature(method).parameters).index(parameter) - 1

    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Work:
        event, title = None, ""
        if torch.autograd._profiler_enabled():
            title = _get_comm_profiling_name()  # of `dist.record_comm`
            tensors = args[at] if at < len(args) else named.get(parameter)
            event = _ProfilerEvent(title or f"allhands:{name}", tensors)
        try:
            if title:  # by which PyTorch would make another event, of any Work
                _set_comm_profiling_name("")
            work: Work = method(self, *args, **named)
        except BaseException as error:
            if event is not None:
                event.end()
            # Where the call was made on this thread, nobody waits for it later.
            append_gloo_text(error)
            raise
        finally:
            if title:
                _set_comm_profiling_name(title)
        if event is None:
            return work
        work.native.get_future().add_done_callback(event.end_elsewhere)
        work.before_return = event.await_end
        return work

    return call


class _ProfilerEvent:
    def __init__(self, title: str, tensors: Any) -> None:
        self._thread = threading.get_ident()
        self._ended = threading.Event()
        self._handle = torch.autograd._record_function_with_args_enter(title, *_flatten(tensors))

    def end(self) -> None:
        torch.autograd._record_function_with_args_exit(self._handle)
        self._ended.set()

    def end_elsewhere(self, _: object) -> None:
        """End the event on another thread, which marks the call as asynchronous."""
        if threading.get_ident() != self._thread:
            self.end()
        else:
            threading.Thread(target=self.end, name="end of an event").start()

    def await_end(self) -> None:
        """Return when the event is there for whoever ends the profiler next."""
        self._ended.wait(_END_SECONDS)


def _flatten(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, list | tuple):
        for one in tensors:
            yield from _flatten(one)
