"""Profiler events of calls that end on another thread."""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import _get_comm_profiling_name, _set_comm_profiling_name

from allhands.torch.error_text import append_gloo_text
from allhands.torch.work import Work

Method = Callable[..., Work]

_END_SECONDS = 1.0
"""What an event of a call that has ended may still take: a turn of a thread."""


def record_event(name: str, parameter: str) -> Callable[[Method], Method]:
    """Decorate a call of a process group to appear as an event while a profiler runs.

    The event's shapes are those of the tensors in the parameter named `parameter`.
    """

    def decorate(method: Method) -> Method:
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
                work = method(self, *args, **named)
            except BaseException as error:
                if event is not None:
                    event.end()
                append_gloo_text(
                    error
                )  # where the call was made on this thread, nobody waits for it later
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

    return decorate


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
        """Wait until the event is recorded, so that a profiler that stops next has it."""
        self._ended.wait(_END_SECONDS)


def _flatten(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, list | tuple):
        for one in tensors:
            yield from _flatten(one)
