"""Models of the coordinator's store: some keys of a job, and one queue."""

from dataclasses import dataclass, field
from typing import Any

from support.linearizability.history import UNKNOWN, Operation

ABSENT = "absent"
"""Result of a call that found nothing."""


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key."""

    value: bytes
    version: int
    """Number of changes since the key was created."""
    revision: int | None
    """Of the last change; None: no answer has told."""


@dataclass(frozen=True, slots=True)
class KeysState:
    """Keys, sorted, and the least revision that the store can have."""

    keys: tuple[tuple[str, KeyState], ...] = ()
    revision: int = 0

    def get(self, key: str) -> KeyState | None:
        return dict(self.keys).get(key)

    def get_value(self, key: str) -> bytes | None:
        return None if (held := self.get(key)) is None else held.value

    def change(self, *pairs: tuple[str, bytes | None], revision: int | None = None) -> "KeysState":
        """Return the state after one change of all pairs; None deletes a key."""
        keys = dict(self.keys)
        for key, value in pairs:
            if value is None:
                keys.pop(key, None)
            else:
                version = keys[key].version if key in keys else 0
                keys[key] = KeyState(value, version + 1, revision)
        return KeysState(tuple(sorted(keys.items(), key=lambda pair: pair[0])), self.revision + 1)


Step = tuple[KeysState, bool]
"""The state after a call, and whether its result is possible."""


class KeysModel:
    """Keys that are used together."""

    def make_state(self) -> KeysState:
        """See `Model`."""
        return KeysState()

    def apply(self, state: KeysState, operation: Operation) -> KeysState | None:
        """See `Model`."""
        if operation.verb in _CHANGES_WITH_REVISION:
            after, is_possible = _CHANGES_WITH_REVISION[operation.verb](state, operation)
        else:
            after, result = _call(state, operation)
            is_possible = operation.result == result
        return after if is_possible or operation.result is UNKNOWN else None


def _call(state: KeysState, operation: Operation) -> tuple[KeysState, Any]:
    """Return the state after a call, and its result."""
    match operation.verb, operation.arguments:
        case "get", (key,):
            found = state.get_value(key)
            return state, ABSENT if found is None else found
        case "multi_get", keys:
            values = tuple(map(state.get_value, keys))
            return state, ABSENT if None in values else values
        case "add", (key, amount):
            total = int(state.get_value(key) or b"0") + amount
            return state.change((key, b"%d" % total)), total
        case "append", (key, value):
            whole = (state.get_value(key) or b"") + value
            return state.change((key, whole)), len(whole)
        case "cas", (key, expected, desired):
            held = state.get_value(key)
            if (held or b"") != expected:
                return state, (False, held)
            return state.change((key, desired)), (True, desired)
        case "delete", (key,):
            if state.get(key) is None:
                return state, False
            return state.change((key, None)), True
        case "list", (prefix,):
            return state, tuple(key for key, _ in state.keys if key.startswith(prefix))
    raise ValueError(f"the model has no {operation}")


# ---------------------------------------------------------------- calls that tell revisions


def _make_change(
    state: KeysState, revision: Any, *pairs: tuple[str, bytes | None]
) -> tuple[KeysState, bool]:
    """Change keys at the revision in an answer: no key of the job has a later one by then."""
    if not isinstance(revision, int):
        return state.change(*pairs), False
    after = state.change(*pairs, revision=revision)
    return KeysState(after.keys, revision), revision >= after.revision


def _put(state: KeysState, operation: Operation) -> Step:
    return _make_change(state, operation.result, operation.arguments)


def _multi_put(state: KeysState, operation: Operation) -> Step:
    return _make_change(state, operation.result, *operation.arguments)


def _compare_and_set(state: KeysState, operation: Operation) -> Step:
    """Set a key if its revision is the one given; the result is the new one, or None.

    The caller has the revision from an answer before: where no answer has told of the key's, it is
    another one.
    """
    key, expected, value = operation.arguments
    held = state.get(key)
    if (0 if held is None else held.revision) != expected:
        return state, operation.result is None
    return _make_change(state, operation.result, (key, value))


def _get_record(state: KeysState, operation: Operation) -> Step:
    """Look at a key: value, version, revision."""
    (key,) = operation.arguments
    held = state.get(key)
    if held is None or operation.result in (UNKNOWN, ABSENT):
        return state, held is None and operation.result == ABSENT
    value, version, revision = operation.result
    is_possible = (value, version) == (held.value, held.version)
    if held.revision is not None:
        return state, is_possible and revision == held.revision
    keys = dict(state.keys)
    keys[key] = KeyState(held.value, held.version, revision)
    latest = max(state.revision, revision)
    return KeysState(tuple(sorted(keys.items(), key=lambda pair: pair[0])), latest), is_possible


def _exchange(state: KeysState, operation: Operation) -> Step:
    """Transaction: where `a` has a value, put `a` and `b` and delete `n`; else get `a`."""
    expected, value = operation.arguments
    if state.get_value("a") == expected:
        pairs = (("a", value), ("b", value), ("n", None))
        if operation.result is UNKNOWN:
            return state.change(*pairs), True
        has_succeeded, revision, _ = operation.result
        after, is_later = _make_change(state, revision, *pairs)
        return after, has_succeeded and is_later
    if operation.result is UNKNOWN:
        return state, True
    has_succeeded, revision, found = operation.result
    held = state.get_value("a")
    is_right = found == (ABSENT if held is None else held)
    return state, not has_succeeded and is_right and revision >= state.revision


_CHANGES_WITH_REVISION = {
    "put": _put,
    "multi_put": _multi_put,
    "compare_and_set": _compare_and_set,
    "get_record": _get_record,
    "exchange": _exchange,
}


@dataclass(frozen=True, slots=True)
class QueueModel:
    """A queue: values leave in the order in which they came, each once."""

    initial: tuple[bytes, ...] = field(default=())

    def make_state(self) -> tuple[bytes, ...]:
        """See `Model`."""
        return self.initial

    def apply(self, state: tuple[bytes, ...], operation: Operation) -> tuple[bytes, ...] | None:
        """See `Model`."""
        result: Any
        match operation.verb, operation.arguments:
            case "push", (value,):
                after: tuple[bytes, ...] = (*state, value)
                result = len(after)
            case "pop", ():
                after, result = state[1:], state[0] if state else ABSENT
            case "length", ():
                after, result = state, len(state)
            case _:
                raise ValueError(f"the model has no {operation}")
        return after if operation.result in (UNKNOWN, result) else None
