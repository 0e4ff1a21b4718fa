"""Training state kept across losses of ranks and copied to newcomers."""

import json
from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np

from allhands.collectives.arguments import AnyArray, check_array
from allhands.collectives.reduction import ReduceOp
from allhands.errors import MembershipChanged, PeerFailed
from allhands.group.group import Group
from allhands.membership.resilient_group import ResilientGroup

Scalar = int | float | bool | str | None
T = TypeVar("T")


class State:
    """Arrays and scalars by name, read and set as attributes; equal on all ranks when committed.

        state = ah.State(weights=np.zeros(10), step=0)
        state.run(train)                  # train(state) goes on where the latest commit was

    `commit` keeps a copy, `restore` goes back to it, `sync` gives everybody that of the rank that
    has committed most. Arrays are changed in place; where a newcomer brought another shape or
    dtype it gets a new array, so take them from the state, not from where it was made.
    """

    def __init__(self, group: Group, **values: "AnyArray | Scalar") -> None:
        """Hold the initial values of a rank; arrays are not copied.

        Raises:
            ValueError: the group ends when it loses ranks.
            TypeError: a value is neither an array of plain data nor int, float, bool, str or None.
        """
        if not isinstance(group, ResilientGroup):
            raise ValueError(
                f"{group} ends when it loses ranks: make it with on_failure='shrink', 'wait', or "
                "retryable=True"
            )
        for name, value in values.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise TypeError(f"a value cannot be called {name!r}")
            _check_value(name, value)
        self._group = group
        self._values = dict(values)
        self._commits = 0
        self._save()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}") from None

    def __setattr__(self, name: str, value: "AnyArray | Scalar") -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        if name not in self._values:
            raise AttributeError(f"the state has no {name!r}; its values are named when it is made")
        _check_value(name, value)
        self._values[name] = value

    def commit(self) -> None:
        """Copy all values, and admit waiting workers; called by all ranks.

        Raises:
            PeerFailed, MembershipChanged: the copy is kept, on this rank at least; go back to what
                all have by `sync`.
        """
        self._commits += 1
        self._save()
        waiting = np.array([self._group.waiting])
        self._group.all_reduce(waiting, ReduceOp.MAX).wait()
        if waiting[0]:
            self._group.admit()
            self.sync()

    def restore(self) -> None:
        """Go back to the latest commit."""
        for name, kept in self._committed.items():
            value = self._values[name]
            if not isinstance(kept, np.ndarray):
                self._values[name] = kept
            elif isinstance(value, np.ndarray) and _is_alike(value, kept):
                np.copyto(value, kept)
            else:
                self._values[name] = kept.copy()

    def sync(self) -> None:
        """Overwrite all values with the most committed rank's; called by all ranks.

        Raises:
            PeerFailed, MembershipChanged: ranks were lost; values may be mixed: `restore`.
        """
        group = self._group
        commits = [np.zeros(1, np.int64) for _ in range(group.size)]
        group.all_gather(list(commits), np.array([self._commits])).wait()
        root = int(np.argmax(np.concatenate(commits)))
        told = json.dumps(self._describe()).encode() if group.rank == root else b""
        length = np.array([len(told)])
        group.broadcast(length, root).wait()
        text = np.frombuffer(told, np.uint8).copy() if told else np.empty(length[0], np.uint8)
        group.broadcast(text, root).wait()
        described = json.loads(text.tobytes())
        values: dict[str, Any] = dict(described["scalars"])
        for name, (dtype, shape) in described["arrays"].items():
            mine = self._values.get(name)
            fresh = np.empty(tuple(shape), np.dtype(dtype))
            is_like = isinstance(mine, np.ndarray) and _is_alike(mine, fresh)
            values[name] = mine if is_like else fresh
            group.broadcast(values[name], root).wait()
        self._values = values
        self._commits = int(described["commits"])
        self._save()

    def run(self, train: Callable[[Self], T]) -> T:
        """Return `train(state)`, restarted from the synced state when ranks are lost or come.

        Raises:
            AllhandsError: the group cannot go on, or something else went wrong.
        """
        while True:
            try:
                self.sync()
                return train(self)
            except (PeerFailed, MembershipChanged) as error:
                if error.is_final:
                    raise
                self.restore()
                self._group.shrink_if_manual()

    def _save(self) -> None:
        self._committed = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in self._values.items()
        }

    def _describe(self) -> dict[str, object]:
        arrays = {n: v for n, v in self._values.items() if isinstance(v, np.ndarray)}
        return {
            "scalars": {n: v for n, v in self._values.items() if n not in arrays},
            "arrays": {n: (v.dtype.name, v.shape) for n, v in arrays.items()},
            "commits": self._commits,
        }


def _check_value(name: str, value: object) -> None:
    if isinstance(value, np.ndarray):
        plain = check_array(value, name)
        if np.dtype(plain.dtype.name) != plain.dtype or not plain.flags.c_contiguous:
            raise TypeError(f"{name} must be a C-contiguous array of a plain dtype")
    elif not isinstance(value, Scalar):
        raise TypeError(
            f"{name} must be an array, an int, a float, a bool, a str or None, "
            f"not {type(value).__name__}"
        )


def _is_alike(value: AnyArray, array: AnyArray) -> bool:
    return value.shape == array.shape and value.dtype == array.dtype
