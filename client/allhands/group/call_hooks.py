"""Call hooks of a world: a program's functions around every call on its groups.

Where a group has hooks its calls go through a `HookedSubmitter`, and its plain functions the
checked way, as while calls are coalesced. Where it has none, nothing is in the way of its calls.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

from allhands.group.hooked import (
    CALL_LABEL,
    After,
    Before,
    CallHook,
    HookedSubmitter,
    HookState,
)
from allhands.group.interfaces import Submitter


class HookableGroup(Protocol):
    """A group as its hooks need it."""

    @property
    def name(self) -> str: ...

    submitter: Submitter
    inline_submitter: Submitter | None
    call_hooks: "CallHooks | None"

    def replace_submitters(self, submitter: Submitter, inline_submitter: Submitter | None) -> None:
        """Let later calls go by other submitters."""


class CallHookHandle(AbstractContextManager["CallHookHandle"]):
    """A registered hook; leaving the block of a `with` statement removes it."""

    def __init__(self, hooks: "CallHooks", hook: CallHook) -> None:
        self._hooks = hooks
        self._hook = hook

    def remove(self) -> None:
        """Remove the hook; calls under way still see it at their end. Idempotent."""
        self._hooks.remove(self._hook)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class CallHooks:
    """The hooks of one world, and the groups that they are for; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = HookState()
        self._groups: weakref.WeakSet[HookableGroup] = weakref.WeakSet()
        self._hooks: dict[CallHook, tuple[weakref.ref[HookableGroup], ...] | None] = {}
        """In the order of registration, with the groups they are for; None: all."""

    def attach(self, group: HookableGroup) -> None:
        """Add a group; the hooks of all groups are for it as well."""
        with self._lock:
            group.call_hooks = self
            self._groups.add(group)
            self._update(group)

    def add(
        self,
        before: Before | None,
        after: After | None,
        groups: "tuple[HookableGroup, ...] | None" = None,
    ) -> CallHookHandle:
        """Register a hook for some groups, None: for all, also those that are made later.

        Raises:
            TypeError: neither function is given, or one of them cannot be called.
        """
        if before is None and after is None:
            raise TypeError("a hook needs a function: before=, after= or both")
        for name, function in (("before", before), ("after", after)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, not {type(function).__name__}")
        return self._add(CallHook(before, after), groups)

    @contextlib.contextmanager
    def label_calls(
        self, label: str, groups: "tuple[HookableGroup, ...] | None" = None
    ) -> Iterator[None]:
        """Give the calls of this thread or task a label, those that have none of their own."""
        token = CALL_LABEL.set(label)
        try:
            with self._add(CallHook(None, None), groups):
                yield
        finally:
            CALL_LABEL.reset(token)

    def _add(self, hook: CallHook, groups: "tuple[HookableGroup, ...] | None") -> CallHookHandle:
        with self._lock:
            self._hooks[hook] = None if groups is None else tuple(map(weakref.ref, groups))
            self._update_all()
        return CallHookHandle(self, hook)

    def remove(self, hook: CallHook) -> None:
        with self._lock:
            self._hooks.pop(hook, None)
            self._update_all()

    def _update_all(self) -> None:
        for group in self._groups:
            self._update(group)

    def _update(self, group: HookableGroup) -> None:
        """Give a group's submitters the hooks that are for it, with the lock held."""
        hooks = tuple(
            hook
            for hook, groups in self._hooks.items()
            if groups is None or any(one() is group for one in groups)
        )
        submitter, inline = group.submitter, group.inline_submitter
        if hooks and not isinstance(submitter, HookedSubmitter):

            def get_name() -> str:
                return group.name

            submitter = HookedSubmitter(submitter, self._state, get_name, waits=False)
            if inline is not None:
                inline = HookedSubmitter(inline, self._state, get_name, waits=True)
            _set_hooks(submitter, inline, hooks)
            group.replace_submitters(submitter, inline)
            return
        _set_hooks(submitter, inline, hooks)
        if not hooks and isinstance(submitter, HookedSubmitter):
            group.replace_submitters(_unwrap(submitter), inline and _unwrap(inline))


def _set_hooks(
    submitter: Submitter, inline_submitter: Submitter | None, hooks: tuple[CallHook, ...]
) -> None:
    for one in (submitter, inline_submitter):
        if isinstance(one, HookedSubmitter):
            one.hooks = tuple(hook for hook in hooks if hook.before or hook.after)
            if not hooks:
                one.order.release()


def _unwrap(submitter: Submitter) -> Submitter:
    return submitter.submitter if isinstance(submitter, HookedSubmitter) else submitter
