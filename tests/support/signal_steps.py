"""Signals at chosen steps of the interpreter: what threads other than the main one never see."""

import dis
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_TRACED = (
    "allhands.engine.",
    "allhands.futures",
    "allhands.runtime.",
    "asyncio.",
    "concurrent.",
    "threading",
)
"""Modules in whose functions the signal comes; not in what happens to be freed meanwhile."""
_LOOKS = ("CALL", "JUMP_BACKWARD", "RESUME")
"""Instructions at whose ends the interpreter looks for signals."""


class Rang(BaseException):
    """Raised by the handler."""


class _Tracer:
    """Has a signal come at one step of the traced functions: where the interpreter looks for it."""

    def __init__(self, step: int) -> None:
        self._left = step
        self.has_rung = False

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith(_TRACED):
            return None
        frame.f_trace_opcodes = True
        code = frame.f_code.co_code
        before = "RESUME"

        def trace_opcode(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal before
            if event == "opcode":
                if before.startswith(_LOOKS):
                    self._take_step()
                before = dis.opname[code[frame.f_lasti]]
            return trace_opcode

        return trace_opcode

    def _take_step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_rung = True
            sys.settrace(None)
            signal.raise_signal(signal.SIGUSR2)


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
