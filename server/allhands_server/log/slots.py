"""Rules of slots that all engines share, and the iteration over slots to come."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from allhands_server.log.engine import Slot


class LogEnd:
    """The last slot of a log, and the event of its growth."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._grown = asyncio.Event()

    def move(self, index: int) -> None:
        """Note a later last slot."""
        self.index = index
        self._grown.set()

    async def wait_beyond(self, index: int) -> None:
        """Return once there is a slot after slot `index`."""
        while self.index <= index:
            self._grown.clear()
            await self._grown.wait()


async def iterate_slots(
    read: Callable[[int], Awaitable[Sequence[Slot]]], end: LogEnd, first: int
) -> AsyncIterator[Slot]:
    """Iterate over the slots from slot `first` on, waiting for those to come."""
    following = first
    while True:
        for slot in await read(following):
            following = slot.index + 1
            yield slot
        await end.wait_beyond(following - 1)


def check_next(index: int, last: int) -> None:
    """Refuse a slot that leaves a gap.

    Raises:
        ValueError: it does not follow the last slot.
    """
    if index != last + 1:
        raise ValueError(f"slot {index:,} cannot follow slot {last:,}")


def check_snapshot(index: int, first: int, last: int) -> None:
    """Refuse a snapshot of slots that the log has not had, unless the log is empty.

    Raises:
        ValueError: the log ends before slot `index`, and has slots.
    """
    if index > last and first <= last:
        raise ValueError(f"a snapshot up to slot {index:,}, and the log ends with slot {last:,}")


def check_trim(below: int, contained: int) -> None:
    """Refuse to drop slots that the snapshot, whose last slot is `contained`, does not contain.

    Raises:
        ValueError: the text names that slot.
    """
    if below > contained + 1:
        raise ValueError(
            f"slots below {below:,} cannot be dropped: the snapshot ends with slot {contained:,}"
        )
