"""Options of calls and of worlds: keyword arguments that many functions take, declared once.

A function takes them as `**options: Unpack[CallOptions]` and hands them on as they are. A fast path
names them, because a dict costs time. `Default` says the default of an option that is not None.
"""

import inspect
import re
from collections.abc import Callable, Set
from datetime import timedelta
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_type_hints

from allhands_proto.quick_dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Default:
    """Default of an option, in `Annotated`; without it None."""

    value: Any


class CallOptions(TypedDict, total=False):
    """Keyword arguments of collectives and messages; None by default.

    Args:
        timeout: seconds until the call fails with `CollectiveTimeout`; None: the `timeout` of the
            group.
        label: name of the call in logs, traces and errors.
    """

    timeout: float | None
    label: str | None


class ProcessOptions(TypedDict, total=False):
    """Rank of a process in a world, and its way there.

    Args:
        rank: rank of this process; -1: from the environment, else the coordinator assigns one.
        world_size: how many ranks; -1: from the environment, else what the others bring.
        timeout: seconds until joining fails; also the default for every call.
        job: name of the job at the coordinator; it may also stand in the URL.
        token: secret that the coordinator checks; default ALLHANDS_TOKEN, else this user's notice.
        tls: path of the authorities that vouch for the coordinator; default ALLHANDS_TLS_CA.
        insecure: do without TLS beyond loopback, where token and data can be read and changed on
            the way; default whether ALLHANDS_INSECURE is 1.
        backend: `auto`: shared memory in groups whose ranks are all on one host, else links; `shm`:
            shared memory or an error; `socket`: links alone; `grpc`: links over gRPC alone;
            `threads`: the world of the threads that `allhands.testing.run_threads` has started;
            `fake`: nobody else is there, and every call ends at once.
        label: name of this process in statuses and diagnoses.
        heartbeat_window: seconds of silence after which a rank counts as lost, even if it lives;
            the first rank of a job to join sets it. None: a rank is lost after 5 s of silence in
            which nothing shows that it lives, else at the deadline of a call.
    """

    rank: Annotated[int, Default(-1)]
    world_size: Annotated[int, Default(-1)]
    timeout: Annotated[float | timedelta, Default(DEFAULT_TIMEOUT)]
    job: str | None
    token: str | None
    tls: str | None
    insecure: Annotated[bool, Default(False)]
    backend: Annotated[str, Default("auto")]
    label: str | None
    heartbeat_window: float | None


class GroupPolicy(TypedDict, total=False):
    """How the groups of a world reduce, check, and go on after losses.

    Args:
        deterministic: give the same bits for a world size whatever the transport, the algorithm,
            the cut: contributions are added up in the order of ranks. All ranks get the same bits
            in any case. Over links it costs memory for every rank's part of a slice.
        on_failure: what the world does when ranks are lost. `raise`: calls fail with PeerFailed,
            until the survivors `shrink` it; `shrink`: it goes on with the others, and makes the
            interrupted call again; `wait`: it goes on once other processes have joined in their
            places, and calls say so by MembershipChanged, so that the program can `State.sync`.
        retryable: a call that fails leaves its arrays as they were, and is done by all ranks that
            are left or by none, as with `shrink` and `wait`. That costs a copy of what a call
            writes, a barrier, and the way through the queue: some hundred microseconds a call.
        min_size: with fewer ranks left calls fail for good.
        max_size: to how many ranks `grow` may take the world; given, or with `shrink` or `wait`,
            processes that join while it runs wait to be taken in. 0: no limit.
        abort_on_exception: when an exception ends this process, the calls of others that need it
            raise `GroupAborted` with its traceback; else `PeerFailed`, as for any rank that left.
        verify: check every frame on links by a digest under a secret of the job, and compare a
            digest of the result among the ranks: `DataCorrupted` names the link, or the ranks whose
            result differs. All ranks must say the same. Calls then take longer, small ones by a
            round over links.
        allow_pickle: let object collectives send objects of unknown types as pickles; who receives
            one runs what it says, so all ranks must be trusted.
    """

    deterministic: Annotated[bool, Default(False)]
    on_failure: Annotated[str, Default("raise")]
    retryable: Annotated[bool, Default(False)]
    min_size: Annotated[int, Default(1)]
    max_size: Annotated[int, Default(0)]
    abort_on_exception: Annotated[bool, Default(True)]
    verify: Annotated[bool, Default(False)]
    allow_pickle: Annotated[bool, Default(False)]


class WorldOptions(ProcessOptions, GroupPolicy, total=False):
    """Keyword arguments of joining a world."""


_CALL_OPTIONS = frozenset(CallOptions.__annotations__)


def read_options(call: str, options: CallOptions) -> tuple[float | None, str | None]:
    """Return `timeout` and `label`; raise TypeError for other keywords given to `call`."""
    if not options:
        return None, None
    check_options(call, options)
    return options.get("timeout"), options.get("label")


def check_options(call: str, options: CallOptions) -> None:
    """Raise TypeError for keywords that no call has, naming `call` as Python would."""
    check_keywords(call, options.keys(), _CALL_OPTIONS)


def check_keywords(call: str, given: Set[str], known: Set[str]) -> None:
    """Raise the TypeError that Python raises for keywords that `call` does not have."""
    if unknown := given - known:
        raise TypeError(f"{call}() got an unexpected keyword argument {min(unknown)!r}")


def read_defaults(options: Any) -> dict[str, Any]:
    """Return the default of each option of a `TypedDict`, in the order of their declaration."""
    return {
        name: next(
            (one.value for one in getattr(hint, "__metadata__", ()) if type(one) is Default), None
        )
        for name, hint in get_type_hints(options, include_extras=True).items()
    }


def show_options(*kinds: Any) -> Callable[[F], F]:
    """Show the options of a function in its signature and docstring, for `help` and `inspect`.

    Args:
        kinds: `TypedDict` classes of the options. The "Args:" of their docstrings replace the
            entry `options` in the function's.
    """

    def show(function: F) -> F:
        lines = "\n".join(_find_entries(kind) for kind in kinds)
        function.__doc__ = re.sub(r"(?m)^ +options: .*$", lambda _: lines, function.__doc__ or "")
        taken = inspect.signature(function)
        explicit = [one for one in taken.parameters.values() if one.kind != one.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hint)
            for kind in kinds
            for (name, value), hint in zip(
                read_defaults(kind).items(), get_type_hints(kind).values(), strict=True
            )
        ]
        shown = taken.replace(parameters=[*explicit, *options])
        setattr(function, "__signature__", shown)  # noqa: B010  # no attribute of functions to mypy
        return function

    return show


def _find_entries(kind: Any) -> str:
    _, _, entries = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    return "\n".join(f"    {line}" for line in entries.splitlines())


WORLD_DEFAULTS = cast(WorldOptions, read_defaults(WorldOptions))


def get_group_policy(options: WorldOptions) -> GroupPolicy:
    """Return those of the options that groups keep to."""
    names = GroupPolicy.__annotations__
    return cast(GroupPolicy, {name: value for name, value in options.items() if name in names})
