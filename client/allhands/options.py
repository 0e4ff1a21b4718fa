"""Options of calls: the keyword arguments of every collective and message, declared once.

A function takes them as `**options: Unpack[CallOptions]` and hands them on as they are. A fast path
names them, because a dict costs time. `Default` says the default of an option that is not None.
"""

from dataclasses import dataclass
from typing import Any, TypedDict, get_type_hints


@dataclass(frozen=True, slots=True)
class Default:
    """Default of an option, in `Annotated`; without it None."""

    value: Any


class CallOptions(TypedDict, total=False):
    """Keyword arguments of collectives and messages; None by default."""

    timeout: float | None
    """Seconds until the call fails with `CollectiveTimeout`; None: the `timeout` of the group."""
    label: str | None
    """Name of the call in logs, traces and errors."""


_CALL_OPTIONS = frozenset(CallOptions.__annotations__)


def read_options(call: str, options: CallOptions) -> tuple[float | None, str | None]:
    """Return `timeout` and `label`; raise TypeError for other keywords given to `call`."""
    if not options:
        return None, None
    check_options(call, options)
    return options.get("timeout"), options.get("label")


def check_options(call: str, options: CallOptions) -> None:
    """Raise TypeError for keywords that no call has, naming `call` as Python would."""
    if not options.keys() <= _CALL_OPTIONS:
        raise build_keyword_error(call, options.keys() - _CALL_OPTIONS)


def build_keyword_error(call: str, unknown: set[str]) -> TypeError:
    """Build the error that Python raises for a keyword that a function does not have."""
    return TypeError(f"{call}() got an unexpected keyword argument {min(unknown)!r}")


def read_defaults(options: Any) -> dict[str, Any]:
    """Return the default of each option of a `TypedDict`, in the order of their declaration."""
    return {
        name: next(
            (one.value for one in getattr(hint, "__metadata__", ()) if type(one) is Default), None
        )
        for name, hint in get_type_hints(options, include_extras=True).items()
    }
