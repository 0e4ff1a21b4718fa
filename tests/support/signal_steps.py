"""Signals at chosen steps of the interpreter: what threads other than the main one never see."""

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_TRACED = ("allhands.engine.", "allhands.runtime.", "asyncio.", "concurrent.", "threading")
"""Modules in whose functions the signal comes; not in what happens to be freed meanwhile."""


class Rang(BaseException):
    """Raised by the handler."""


class _Tracer:
    """Has a signal come at one step of the traced functions."""

    def __init__(self, step: int) -> None:
        self._left = step
        self.has_rung = False

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(_TRACED):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                self.has_rung = True
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR2)
        return self.trace


def ring_at_each_step(act: Callable[[], object]) -> Iterator[BaseException | None]:
    """Call a function again and again, each time with a signal one step later; yield its errors.

    The signal's handler raises `Rang`. It ends with the call that is over before its signal.
    """

    def ring(*_: object) -> None:
        raise Rang

    handler = signal.signal(signal.SIGUSR2, ring)
    try:
        for step in itertools.count(1):
            tracer, found = _Tracer(step), None
            before = sys.gettrace()
            sys.settrace(tracer.trace)
            try:
                act()
            except BaseException as error:
                found = error
            finally:
                sys.settrace(before)
            if not tracer.has_rung:
                return
            yield found
    finally:
        signal.signal(signal.SIGUSR2, handler)
