"""Stream of a session: notifications to one member, in order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from allhands_server.machine.effects import Conditions, EndSession, Notification
from allhands_server.machine.refusals import Refused
from allhands_server.machine.world.conditions import LARGEST_BATCH

_MERGED_KEPT = 16
MOST_UNREAD = 20_000
"""Notifications that a member has not taken in; for one more its session is dropped."""


class ConditionMerger:
    """Merges conditions that a member has not read yet; the same ones are merged once for all."""

    def __init__(self) -> None:
        self._merged: dict[tuple[int, int], tuple[Conditions, Conditions, Conditions]] = {}

    def merge(self, earlier: Conditions, later: Conditions) -> Conditions:
        """Return the latest condition of each rank, those of the longest silent ones dropped."""
        key = id(earlier), id(later)
        known = self._merged.get(key)
        if known is None:
            changes = {one.rank: one for one in earlier.changes}
            for one in later.changes:
                changes.pop(one.rank, None)
                changes[one.rank] = one
            kept = tuple(changes.values())[-LARGEST_BATCH:]
            dropped = len(changes) - len(kept)
            if len(self._merged) >= _MERGED_KEPT:
                del self._merged[next(iter(self._merged))]
            known = earlier, later, Conditions(kept, later.more + dropped)
            self._merged[key] = known
        return known[2]


class SessionStream:
    """Notifications to one member, in order, until the session's end."""

    def __init__(self, number: int, peer: str = "", merger: ConditionMerger | None = None) -> None:
        self.number = number
        self.peer = peer
        """The other end of its connection, as gRPC writes it."""
        self._merger = merger or ConditionMerger()
        self._unread: deque[Notification | EndSession] = deque()
        self._conditions_at: int | None = None
        """Place of unread conditions."""
        self._has_unread = asyncio.Event()
        self.on_overrun: Callable[[], None] = lambda: None
        """Called once, when the member has left too many notifications unread."""
        self._is_overrun = False

    def put(self, item: Notification | EndSession) -> None:
        """Add a notification; conditions take the place of unread earlier ones."""
        if isinstance(item, Conditions):
            if (at := self._conditions_at) is not None:
                earlier = self._unread[at]
                assert isinstance(earlier, Conditions)
                self._unread[at] = self._merger.merge(earlier, item)
                return
            self._conditions_at = len(self._unread)
        if self._is_overrun:
            return
        if len(self._unread) >= MOST_UNREAD:
            self._is_overrun = True
            self._unread.clear()
            self._conditions_at = None
            self.on_overrun()
            return
        self._unread.append(item)
        self._has_unread.set()

    async def iterate_batches(self) -> AsyncIterator[list[Notification]]:
        """Yield all pending notifications at once, as soon as any is pending.

        Waits as long as the session lives.

        Raises:
            Refused: the session ends for a reason that the member should hear.
        """
        end: EndSession | None = None
        while end is None:
            await self._has_unread.wait()
            self._has_unread.clear()
            items, self._unread, self._conditions_at = self._unread, deque(), None
            batch = []
            for item in items:
                if isinstance(item, EndSession):
                    end = item
                    break
                batch.append(item)
            if batch:
                yield batch
        if end.refusal is not None:
            raise Refused.of(end.refusal)
