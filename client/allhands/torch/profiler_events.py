"""Profiler events of calls that end on another thread."""

import functools
import inspect
import threading
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import torch
from torch._C._distributed_c10d import _get_comm_profiling_name, _set_comm_profiling_name

from allhands.c10d.collectives import Collectives
from allhands.c10d.messages import Messages
from allhands.torch.call_table import TORCH_CALLS
from allhands.torch.error_text import append_gloo_text
from allhands.torch.work import Work

_INPUTS: Final = ("x", "inputs", "input_tensors", "input_tensor_list", "tensors")
"""Parameters whose shapes an event shows: the first of these that a method has."""

Group = TypeVar("Group")

_END_SECONDS = 1.0
"""What an event of a call that has ended may still take: a turn of a thread."""


def record_events(cls: type[Group]) -> type[Group]:
    """Decorate a class of process groups whose calls appear as events while a profiler runs."""
    names = {call.method: call.event_name for call in TORCH_CALLS}
    for method in [*_list_calls(Collectives), *_list_calls(Messages)]:
        recorded = _wrap_method(getattr(cls, method), names.get(method, method))
        for alias in [name for name in dir(cls) if getattr(cls, name) is recorded.__wrapped__]:
            setattr(cls, alias, recorded)
    return cls


def _list_calls(face: type) -> list[str]:
    """Return the names of the public methods of a face, but for former names."""
    return [
        name
        for name, method in vars(face).items()
        if inspect.isfunction(method) and method.__name__ == name and not name.startswith("_")
    ]


def _wrap_method(method: Any, name: str) -> Any:
    parameters = list(inspect.signature(method).parameters)[1:]
    inputs = next((one for one in _INPUTS if one in parameters), "")
    at = parameters.index(inputs) if inputs else len(parameters)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **named: Any) -> Work:
        event, title = None, ""
        if torch.autograd._profiler_enabled():
            title = _get_comm_profiling_name()  # of `dist.record_comm`
            tensors = args[at] if at < len(args) else named.get(inputs)
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
