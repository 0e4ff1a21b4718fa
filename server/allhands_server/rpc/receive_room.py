"""Room for messages of gRPC calls that are being received: who has it, who waits, who gives it up.

Pure: the time is passed in. gRPC takes in 64 KiB of a message until it is asked for the message,
then all of it, and does not say how much has come: so a message has room for the largest one.
"""

from collections import Counter, OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from allhands_server.machine.fair_order import FairOrder

GRACE_SECONDS = 1.0
"""For which a message that is not whole has room that others wait for."""
STREAM_GRACE_SECONDS = 5.0
"""Likewise for a message of a stream: a heartbeat window.

The message of a call leaves its host with the call. A stream is opened first, and on a busy host
much may come between that and its message.
"""


class Caller(Protocol):
    """Maker of a call."""

    @property
    def party(self) -> str:
        """Who shares room with others: a token, or a host."""

    @property
    def connection(self) -> str:
        """By which the call came; those of a party take turns."""

    @property
    def grace(self) -> float:
        """Seconds for which it has room that others wait for."""


C = TypeVar("C", bound=Caller)


class ReceiveRoom(Generic[C]):
    """Calls with room, the longest first, and calls that wait for room.

    A party takes no more room than it leaves: half of all if alone, and others find some at once.
    Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches" (1998).
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self.most = most
        """Messages that may be received at a time."""
        self.most_waiting = most_waiting
        self._since: dict[C, float] = {}
        self._counts: Counter[str] = Counter()  # of calls with room, by party
        self._waiting: OrderedDict[str, FairOrder[C]] = OrderedDict()  # in the order of turns
        self.waiting_count = 0
        """Calls that wait for room."""

    def __len__(self) -> int:
        """Return the number of calls that have room."""
        return len(self._since)

    def has_room(self, call: C) -> bool:
        """Return whether a call has room."""
        return call in self._since

    def request(self, call: C, now: float) -> bool:
        """Take room, or wait for it; return whether it was taken."""
        if call.party not in self._waiting and self._may_take(call.party):
            self._take(call, now)
            return True
        self._waiting.setdefault(call.party, FairOrder()).add(call, call.connection)
        self.waiting_count += 1
        return False

    def remove_surplus(self) -> C | None:
        """Remove a call of the party of which most wait, if too many do; None: they do not."""
        if self.waiting_count <= self.most_waiting:
            return None
        return self._remove_first(max(self._waiting, key=lambda party: len(self._waiting[party])))

    def discard(self, call: C) -> None:
        """Forget a call: its message is whole, or will not be. Idempotent."""
        party = call.party
        if self._since.pop(call, None) is not None:
            self._counts[party] -= 1
            if not self._counts[party]:
                del self._counts[party]
        elif (order := self._waiting.get(party)) is not None:
            before = len(order)
            order.discard(call)
            self.waiting_count -= before - len(order)
            if not order:
                del self._waiting[party]

    def admit(self, now: float) -> C | None:
        """Give free room to the call whose turn it is; None: no room, or none that may take it."""
        for party in self._waiting:
            if self._may_take(party):
                call = self._remove_first(party)
                self._take(call, now)
                return call
        return None

    def extend(self, seconds: float) -> None:
        """Let all calls with room have it for longer: the daemon itself was late to read."""
        for call in self._since:
            self._since[call] += seconds

    def list_slow(self, now: float) -> list[C]:
        """List who is to make room, one at most for each that waits.

        They are the slowest of the parties with most room: a flood takes no room of others.
        """
        by_party: dict[str, deque[C]] = {}
        for call, since in self._since.items():
            if since <= now - call.grace:
                by_party.setdefault(call.party, deque()).append(call)
        counts = self._counts.copy()
        slow: list[C] = []
        while by_party and len(slow) < self.waiting_count:
            party = max(by_party, key=counts.__getitem__)
            if counts[party] < max(counts.values()):
                break
            slow.append(by_party[party].popleft())
            counts[party] -= 1
            if not by_party[party]:
                del by_party[party]
        return slow

    def _may_take(self, party: str) -> bool:
        return self._counts.get(party, 0) < self.most - len(self._since)

    def _take(self, call: C, now: float) -> None:
        self._since[call] = now
        self._counts[call.party] += 1

    def _remove_first(self, party: str) -> C:
        """Remove the waiting call whose turn it is in a party, and put that behind the others."""
        order = self._waiting[party]
        call = order.take()
        self.waiting_count -= 1
        if order:
            self._waiting.move_to_end(party)
        else:
            del self._waiting[party]
        return call
