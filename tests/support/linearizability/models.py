"""Models of the coordinator's store: some keys of a job, and one queue."""

from dataclasses import dataclass, field, replace
from typing import Any

from support.linearizability.history import UNKNOWN, Operation

ABSENT = "absent"
"""Result of a get, multi_get or pop that found nothing."""
Values = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class KeysState:
    """Keys with values, sorted, and the least revision that the store can have."""

    values: Values = ()
    revision: int = 0

    def get(self, key: str) -> bytes | None:
        return dict(self.values).get(key)

    def change(self, *pairs: tuple[str, bytes | None], revision: int | None = None) -> "KeysState":
        """Return the state after one change of all pairs; None deletes a key."""
        values: dict[str, bytes] = dict(self.values)
        for key, value in pairs:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        return KeysState(
            tuple(sorted(values.items())), self.revision + 1 if revision is None else revision
        )


class KeysModel:
    """Keys that are used together."""

    def make_state(self) -> KeysState:
        """See `Model`."""
        return KeysState()

    def apply(self, state: KeysState, operation: Operation) -> KeysState | None:
        """See `Model`."""
        after, result, least = _call(state, operation)
        found = operation.result
        if found is UNKNOWN:
            return after
        if least is None:
            return after if found == result else None
        # The answer is the revision, of all keys of the job: of these no later one is lower.
        return replace(after, revision=found) if found >= least else None


def _call(state: KeysState, operation: Operation) -> tuple[KeysState, Any, int | None]:
    """Return the state after a call, its result, or the least revision that it can return."""
    following = state.revision + 1
    match operation.verb, operation.arguments:
        case "put", (key, value):
            return state.change((key, value)), None, following
        case "multi_put", pairs:
            return state.change(*pairs), None, following
        case "get", (key,):
            found = state.get(key)
            return state, ABSENT if found is None else found, None
        case "multi_get", keys:
            values = tuple(map(state.get, keys))
            return state, ABSENT if None in values else values, None
        case "add", (key, amount):
            total = int(state.get(key) or b"0") + amount
            return state.change((key, b"%d" % total)), total, None
        case "append", (key, value):
            whole = (state.get(key) or b"") + value
            return state.change((key, whole)), len(whole), None
        case "cas", (key, expected, desired):
            held = state.get(key)
            if (held or b"") != expected:
                return state, (False, held), None
            return state.change((key, desired)), (True, desired), None
        case "delete", (key,):
            if state.get(key) is None:
                return state, False, None
            return state.change((key, None)), True, None
        case "list", (prefix,):
            return state, tuple(key for key, _ in state.values if key.startswith(prefix)), None
    raise ValueError(f"the model has no {operation}")


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
