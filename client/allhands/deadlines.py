"""Deadlines for whole blocks of a program: `with deadline(seconds):`, which nest.

A call ends at the least of its own `timeout`, that of its group, client or store, and every block
around it, as this thread or asyncio task sees them when the call is made. Where a block is over
already a collective is made all the same, and given up at once: its number is used up as on the
other ranks, which are told, so the group goes on. A message, or a call to the coordinator, is not
made then.
"""

import functools
import inspect
import math
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, cast

from allhands.errors import StoreTimeout

Timeout: TypeAlias = float | timedelta
"""Seconds, or a timedelta; never endless."""
F = TypeVar("F", bound=Callable[..., Any])

block_deadline: ContextVar[float | None] = ContextVar("allhands_deadline", default=None)
"""When the blocks around are over, on the monotonic clock; the native core reads it as well."""


def to_seconds(timeout: Timeout) -> float:
    """Return the timeout in seconds.

    Raises:
        ValueError: it is negative, endless, or no number.
    """
    length = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not (math.isfinite(length) and length >= 0):
        raise ValueError(f"a timeout is a number of seconds from 0 up, not {timeout!r}")
    return length


def format_timeout(seconds: float) -> str:
    """Write a timeout for people, to three digits or the second: "28.8 s", "1800 s"."""
    return f"{seconds:.3g} s" if seconds < 99.95 else f"{seconds:.0f} s"


class deadline:
    """Let every call in the block end within so many seconds from its beginning on.

    For `with`, also within coroutines, and as a decorator of functions and coroutine functions.
    May be entered again and again.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        """Take seconds, from 0 up.

        Raises:
            ValueError: it is negative, endless, or no number.
        """
        length = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if not (math.isfinite(length) and length >= 0):
            raise ValueError(f"a deadline is a number of seconds from 0 up, not {seconds!r}")
        self._seconds = length
        self._tokens: list[Token[float | None]] = []

    def __enter__(self) -> None:
        mine, around = time.monotonic() + self._seconds, block_deadline.get()
        self._tokens.append(block_deadline.set(mine if around is None else min(mine, around)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        block_deadline.reset(self._tokens.pop())

    def __call__(self, function: F) -> F:
        seconds = self._seconds  # not this object: calls may run side by side
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: Any, **keywords: Any) -> Any:
                with deadline(seconds):
                    return await function(*arguments, **keywords)

            return cast(F, call_async)

        @functools.wraps(function)
        def call_sync(*arguments: Any, **keywords: Any) -> Any:
            with deadline(seconds):
                return function(*arguments, **keywords)

        return cast(F, call_sync)


def clip_timeout(timeout: float) -> float:
    """Return the timeout in seconds, clipped by enclosing `deadline` blocks; may be negative."""
    end = block_deadline.get()
    return timeout if end is None else min(timeout, end - time.monotonic())


def clip_or_raise(describe: Callable[[], str], timeout: float) -> float:
    """Clip the timeout of a coordinator call or a store's wait; `describe` names it.

    Raises:
        StoreTimeout: the deadline of an enclosing block has passed; nothing was done.
    """
    left = clip_timeout(timeout)
    if left <= 0 < timeout:
        raise StoreTimeout(
            f"timeout: cannot {describe()}: the deadline of a block around it passed {-left:.3g} s "
            "ago, so nothing was asked"
        )
    return left
