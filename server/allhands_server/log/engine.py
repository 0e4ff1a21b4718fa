"""Interface of the engines that keep the coordinator's log.

An engine keeps numbered slots of bytes and one snapshot. Its one verb for writing is "create this
slot if it is absent", so of two writers one loses and knows it. It interprets neither frames nor
snapshots.
"""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Protocol, TypeAlias

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Appended:
    """The slot is this writer's and durable."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The slot was there before; nothing was written."""

    data: bytes
    """The bytes in the slot."""


AppendResult: TypeAlias = Appended | Taken


class SlotTrimmed(ValueError):
    """An append to a slot that was there, and has been dropped."""

    def __init__(self, index: int) -> None:
        super().__init__(f"slot {index:,} has been trimmed")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State after all slots up to one."""

    index: int
    """The last slot that the state contains."""
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot and its bytes."""

    index: int
    data: bytes


class LogEngine(Protocol):
    """Durable slots of bytes; all methods are for one event loop.

    A method that raises `LogError` has named its file or service in the text. After
    `LogUnwritable` no further append is taken.
    """

    async def append(self, index: int, data: bytes) -> AppendResult:
        """Create a slot if absent; return once the slot is durable, or taken.

        Raises:
            LogFull: nothing was written.
            LogUnwritable: the outcome is unknown.
            LogUnavailable: the service is away, and the outcome unknown.
            SlotTrimmed: the slot has been dropped.
            ValueError: slot `index - 1` is neither there nor trimmed.
        """

    async def read(self, first: int, limit: int = 256) -> Sequence[Slot]:
        """Return up to `limit` slots from slot `first` on, in order; empty at the end."""

    async def get_bounds(self) -> tuple[int, int]:
        """Return the first and the last slot; (n + 1, n) where all up to n are trimmed."""

    def tail(self, first: int) -> AsyncIterator[Slot]:
        """Iterate over the slots from slot `first` on, waiting for those to come."""

    async def save_snapshot(self, index: int, chunks: AsyncIterable[bytes]) -> None:
        """Replace the snapshot by that of the state after slot `index`, whole or not at all."""

    async def load_snapshot(self) -> Snapshot | None:
        """Return the latest snapshot."""

    async def trim(self, below: int) -> None:
        """Drop the slots below `below`; those without a snapshot of their state stay.

        Raises:
            ValueError: no snapshot contains the slots.
        """

    async def close(self) -> None:
        """Let go of files and connections. Idempotent."""
