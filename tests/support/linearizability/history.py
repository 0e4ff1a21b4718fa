"""Histories: the calls of concurrent clients, each with its begin, its end and its result."""

import itertools
import reprlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

UNKNOWN_END = 1 << 62
"""End of a call without an outcome: it may take effect at any later time, or never."""

_LINE = reprlib.Repr()


class Unknown:
    """Result of a call whose outcome nobody knows."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client."""

    client: int
    begin: int
    """Instant before the call, in steps of the history's clock."""
    end: int
    """Instant after the call; `UNKNOWN_END` for an unknown outcome."""
    verb: str
    arguments: tuple[Any, ...]
    result: Any

    @property
    def is_known(self) -> bool:
        """Whether the outcome is known."""
        return self.end != UNKNOWN_END

    def __str__(self) -> str:
        end = f"{self.end}" if self.is_known else "?"
        asked = ", ".join(map(_LINE.repr, self.arguments))
        found = _LINE.repr(self.result)
        return f"[{self.begin}, {end}] client {self.client}: {self.verb}({asked}) = {found}"


class History:
    """Operations of all clients, by the part of the state that they are about.

    Parts share nothing, so that a history is linearizable if the history of each part is.
    """

    def __init__(self) -> None:
        self._clock = itertools.count()  # one step of it is atomic
        self._lock = threading.Lock()
        self._parts: dict[str, list[Operation]] = defaultdict(list)

    def read_clock(self) -> int:
        """Return a new instant, after all instants before."""
        return next(self._clock)

    def record(self, part: str, operation: Operation) -> None:
        """Add an operation on a part of the state."""
        with self._lock:
            self._parts[part].append(operation)

    @property
    def parts(self) -> dict[str, list[Operation]]:
        """The operations by part."""
        return dict(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __iter__(self) -> Iterator[Operation]:
        return itertools.chain.from_iterable(self._parts.values())
