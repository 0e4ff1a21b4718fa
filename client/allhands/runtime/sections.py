"""Sections: named stretches of a program, so that time outside of calls has a name.

The present section of a rank is the latest one that its main thread has entered and not left; where
that thread is in none, the latest one of another thread. Diagnoses, statuses and verdicts show it,
and traces show the latest sections. Sections are the process's own, as its threads are: a world
that is joined within one knows it.
"""

import functools
import inspect
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from allhands_proto.quick_dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

MAX_NAME = 64
"""Characters of one section's name."""
MAX_PATH = 128
"""Characters of a name with those of the sections around; the coordinator refuses more."""
KEPT_SECTIONS = 1024
"""Ended sections of a process that are kept for traces, the latest ones."""
_CUT = "…"


@dataclass(frozen=True, slots=True)
class SectionRecord:
    """A section of a rank's program; times are monotonic nanoseconds."""

    name: str
    """With the sections around it: `epoch/load`."""
    thread: str
    """Name of the thread."""
    thread_id: int
    """As `threading.get_ident` has it; 0: of another process."""
    started: int
    finished: int
    """0: not yet."""


@dataclass(frozen=True, slots=True)
class SectionPosition:
    """A section that a program is in."""

    name: str
    """With the sections around it: `epoch/load`."""
    elapsed: float
    """Seconds since it was entered."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenSection:
    """A section between entering and leaving."""

    number: int
    path: str
    parent: "OpenSection | None"
    """The section around, in this thread or task, or the one that started it."""
    thread_id: int
    thread: str
    started: int
    """Monotonic nanoseconds."""


class SectionLog:
    """Open and ended sections of a process; safe from any thread."""

    def __init__(self, kept: int = KEPT_SECTIONS) -> None:
        self._open: dict[int, OpenSection] = {}
        """By number: in the order in which they were entered."""
        self._ended: deque[SectionRecord] = deque(maxlen=kept)
        self._numbers = itertools.count()

    def enter(self, name: str, parent: OpenSection | None) -> OpenSection:
        path = name if parent is None else f"{parent.path}/{name}"
        if len(path) > MAX_PATH:
            path = _CUT + path[1 - MAX_PATH :]
        thread = threading.current_thread()
        entered = OpenSection(
            next(self._numbers),
            path,
            parent,
            threading.get_ident(),
            thread.name,
            time.monotonic_ns(),
        )
        self._open[entered.number] = entered
        return entered

    def leave(self, section: OpenSection) -> None:
        if self._open.pop(section.number, None) is not None:
            self._ended.append(_make_record(section, time.monotonic_ns()))

    def find_current(self, thread_id: int | None) -> SectionPosition | None:
        """Return the present section of a thread; None: of the process."""
        opened = list(self._open.values())
        wanted = threading.main_thread().ident if thread_id is None else thread_id
        mine = [one for one in opened if one.thread_id == wanted]
        if thread_id is None:
            mine = mine or opened
        if not mine:
            return None
        elapsed = (time.monotonic_ns() - mine[-1].started) / 1e9
        return SectionPosition(mine[-1].path, elapsed)

    def list_records(self, thread_id: int | None) -> list[SectionRecord]:
        """Return the ended sections in the order of their ends, then the open ones."""
        opened = [_make_record(one, 0) for one in list(self._open.values())]
        return [
            one
            for one in (*list(self._ended), *opened)
            if thread_id is None or one.thread_id == thread_id
        ]


@dataclass(frozen=True, slots=True)
class SectionReader:
    """The sections of one rank: of a thread that is a rank, else of the process."""

    log: SectionLog
    thread_id: int | None = None

    def find_current(self) -> SectionPosition | None:
        return self.log.find_current(self.thread_id)

    def list_records(self) -> list[SectionRecord]:
        return self.log.list_records(self.thread_id)


process_log: Final = SectionLog()
"""Sections of this process. It is not the world's: a program may be in one before it joins."""
_innermost: ContextVar[OpenSection | None] = ContextVar("allhands_section", default=None)


class section:
    """Name what the program does in the block, for diagnoses, statuses, verdicts and traces.

    For `with`, also within coroutines, and as a decorator of functions and coroutine functions.
    Sections nest: `load` within `epoch` is shown as `epoch/load`. May be entered again and again.
    """

    def __init__(self, name: str) -> None:
        """Take a name of 1 to 64 printable characters.

        Raises:
            TypeError: the name is no str.
            ValueError: it is empty, too long, or it would garble a terminal.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a section must be a str, not {type(name).__name__}")
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError(
                f"the name of a section has 1 to {MAX_NAME} printable characters: {name[:80]!r}"
            )
        self.name = name

    def __enter__(self) -> None:
        _innermost.set(process_log.enter(self.name, _innermost.get()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (mine := _innermost.get()) is not None:
            process_log.leave(mine)
            _innermost.set(mine.parent)

    def __call__(self, function: F) -> F:
        name = self.name
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: Any, **keywords: Any) -> Any:
                with section(name):
                    return await function(*arguments, **keywords)

            return cast(F, call_async)

        @functools.wraps(function)
        def call_sync(*arguments: Any, **keywords: Any) -> Any:
            with section(name):
                return function(*arguments, **keywords)

        return cast(F, call_sync)


def _make_record(section: OpenSection, finished: int) -> SectionRecord:
    return SectionRecord(section.path, section.thread, section.thread_id, section.started, finished)
