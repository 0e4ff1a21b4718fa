"""Tracebacks of errors as callers see them: their own frames and the call's, none of the engine."""

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import ParamSpec, TypeVar

from allhands import config

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_ENGINE = frozenset(
    {
        "allhands",
        "allhands_proto",
        "allhands_server",
        "asyncio",
        "concurrent",
        "contextlib",
        "grpc",
        "threading",
        "uvloop",
    }
)
"""Packages of frames between a call and what it has failed of."""


def trim_traceback(error: BaseException) -> None:
    """Take the engine's frames out of an error that a public call is about to raise on.

    What is left are the first frame, which is the call's, and those of functions of the user that
    the engine has called. The errors behind it keep only the latter; a context of which nothing is
    left is not shown, nor an error of gRPC, whose text is part of this one's.
    ALLHANDS_TRACEBACKS=full keeps all.
    """
    if config.keeps_full_tracebacks(os.environ):
        return
    first = error.__traceback__
    if first is not None:
        first.tb_next = _remove_engine(first.tb_next)
    _trim_behind(error)


def trim_core_error(error: BaseException) -> None:
    """Trim an error that a public call in the native core, which has no frame, is to raise on."""
    if config.keeps_full_tracebacks(os.environ):
        return
    error.__traceback__ = _remove_engine(error.__traceback__)
    _trim_behind(error)


def hide_traceback(error: BaseException) -> None:
    """Trim an error that a function which the native core calls is about to raise on.

    Unlike those of a public call that function's own frame is not kept.
    """
    trim_traceback(error)
    if error.__traceback__ is not None and not config.keeps_full_tracebacks(os.environ):
        error.__traceback__ = error.__traceback__.tb_next


def trims_tracebacks(cls: type[T]) -> type[T]:
    """Class decorator: trim the errors of the public methods that the class defines.

    It adds a call to each of them, so it is for clients of the coordinator, not for collectives.
    """
    for name, value in [*vars(cls).items()]:
        if name.startswith("_") or not inspect.isfunction(value):
            continue
        if getattr(value, "__isabstractmethod__", False) or inspect.isgeneratorfunction(value):
            continue
        if inspect.iscoroutinefunction(value):
            setattr(cls, name, _trim_awaited(value))
        elif not inspect.isasyncgenfunction(value):
            setattr(cls, name, _trim(value))
    return cls


def _trim(method: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            _trim_below(error)
            raise

    return call


def _trim_awaited(method: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except Exception as error:
            _trim_below(error)
            raise

    return call


def _trim_below(error: Exception) -> None:
    """Trim an error, and leave the method's frame instead of that of the function around it."""
    around = error.__traceback__
    if not config.keeps_full_tracebacks(os.environ) and around is not None:
        error.__traceback__ = around.tb_next or around  # it has only one for wrong arguments
    trim_traceback(error)


def _trim_behind(error: BaseException) -> None:
    """Take the engine's frames out of the errors behind an error, and hide what is empty then."""
    behind = [*_list_behind(error)]
    for one in behind:
        one.__traceback__ = _remove_engine(one.__traceback__)
    for one in (error, *behind):
        if one.__context__ is not None and one.__context__.__traceback__ is None:
            one.__suppress_context__ = True
        if type(one.__cause__).__module__.partition(".")[0] == "grpc":
            one.__cause__ = None  # its six lines would come first


def _list_behind(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that an error was raised from, or beside, at any depth."""
    seen = {id(error)}
    waiting = [error.__cause__, error.__context__]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
            yield one


def _remove_engine(first: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the engine; None: there are no others."""
    kept = []
    while first is not None:
        if first.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _ENGINE:
            kept.append(first)
        first = first.tb_next
    found: TracebackType | None = None
    for one in reversed(kept):
        one.tb_next = found
        found = one
    return found
