"""Registration of call hooks, on the groups of the default world or on one group."""

from contextlib import AbstractContextManager
from typing import Protocol

from allhands.api.default_world import AnyGroup, require_world
from allhands.group.call_hooks import CallHookHandle, CallHooks
from allhands.group.call_spans import CallSpans
from allhands.group.finite_check import check_inputs, check_outputs
from allhands.group.group import Group
from allhands.group.hooked import After, Before
from allhands.group.non_member import NonMember


class HasGroup(Protocol):
    """What wraps a group: a process group of `c10d` or PyTorch, or a group of `ah.aio`."""

    @property
    def group(self) -> Group: ...


def on_call(
    before: Before | None = None,
    after: After | None = None,
    *,
    group: "AnyGroup | HasGroup" = None,
) -> CallHookHandle:
    """Call functions around every call of this rank, until the returned handle is removed.

    `before(call)` runs before the call takes its number: what it raises is the caller's, and the
    call is not made on this rank. `after(call, error, seconds)` runs once the call has ended and
    its outputs are written; what it raises after a successful call is raised in place of the
    result. Functions `before` run in the order of registration, those `after` in the reverse.
    Calls that a hook itself makes are seen by none. The handle is a context manager.

    Args:
        before: function of a `CallInfo`.
        after: function of a `CallInfo`, the call's error or None, and the seconds it took.
        group: the only group whose calls are seen; None: all groups of the world, also later ones.

    Raises:
        RuntimeError: `init_process_group` has not been called, and there is no `group`.
        TypeError: there is no function, or something that cannot be called.
    """
    hooks, groups = _find_hooks(group)
    return hooks.add(before, after, groups)


def record_comm(name: str, *, group: "AnyGroup | HasGroup" = None) -> AbstractContextManager[None]:
    """Give calls a label: those made in the block, by its thread or task, without a `label=`.

    The label stands in the flight recorder, in traces, logs and errors. Of blocks in blocks the
    inner one counts. The calls go the checked way, as with hooks.

    Args:
        name: the label.
        group: the only group whose calls get it; None: all groups of the world, also later ones.

    Raises:
        RuntimeError: as of `on_call`.
        TypeError: the name is no text.
        ValueError: it is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name must be a text, not {type(name).__name__}")
    if not name:
        raise ValueError("the name of calls must not be empty")
    hooks, groups = _find_hooks(group)
    return hooks.label_calls(name, groups)


def _find_hooks(group: "AnyGroup | HasGroup") -> "tuple[CallHooks, tuple[Group, ...] | None]":
    """Return the hooks of a world, and the groups of it that are meant; None: all."""
    if group is None:
        return require_world().call_hooks, None
    found = group if isinstance(group, Group | NonMember) else group.group
    if isinstance(found, NonMember):
        return require_world().call_hooks, ()
    if found.call_hooks is None:
        raise RuntimeError(f"{found} belongs to no world: hooks are for groups of a world")
    return found.call_hooks, (found,)


def check_finite(
    *, inputs: bool = True, outputs: bool = True, group: "AnyGroup | HasGroup" = None
) -> CallHookHandle:
    """Look for NaN and infinities in the arrays of every call, by hooks.

    The first one found raises `NotFinite` with rank, operation, argument and index: in an input
    before the call is made on this rank, in an output after it has ended.

    Args:
        inputs: look at what calls read.
        outputs: look at what calls have written.
        group: as of `on_call`.

    Raises:
        RuntimeError: as of `on_call`.
        TypeError: neither inputs nor outputs are to be looked at.
    """
    return on_call(
        check_inputs if inputs else None, check_outputs if outputs else None, group=group
    )


def trace_calls(*, group: "AnyGroup | HasGroup" = None) -> CallHookHandle:
    """Make a span of OpenTelemetry of every call, `allhands.all_reduce` and so on, by hooks.

    Its parent is the caller's current span; the program's SDK samples and exports. Attributes:
    `allhands.group`, `allhands.sequence`, `allhands.bytes`, `allhands.rank` and others of
    `CallInfo`; a failed call has its exception and the status ERROR. ALLHANDS_OTEL=1 does the
    same for all groups of a world, from its beginning on.

    Args:
        group: as of `on_call`.

    Raises:
        ImportError: the API of OpenTelemetry is not installed.
        RuntimeError: as of `on_call`.
    """
    spans = CallSpans()
    return on_call(spans.begin, spans.end, group=group)
