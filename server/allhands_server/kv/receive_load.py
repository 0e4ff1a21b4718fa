"""Room for bytes that are being received, for all key-value connections together.

A frame of more than some KiB is read when there is room for it. While frames wait for room, peers
that hold room and are slow, in sending or in taking in replies, are dropped, the slowest first.
"""

import asyncio
from enum import Enum
from typing import Protocol

from allhands_proto import framing
from allhands_server.machine.fair_order import FairOrder
from allhands_server.resource_limits import WITHOUT_LIMIT, ResourceLimits

FREE_NBYTES = 4096
"""Of an incomplete frame, on every connection, without room."""
GRACE_SECONDS = 2.0
"""For which a slow peer holds room that others wait for."""
PAUSE_SECONDS = 0.5
"""Without a byte, of a peer that holds room that others wait for."""
_LOOK_SECONDS = 0.25
SILENCE_SECONDS = 30.0
"""Without a byte of a large frame that is not complete, until its connection is dropped."""
_PART = 32
"""One of so many bytes of the coordinator's memory may be received and not carried out."""


class Room(Enum):
    """Answer to a request for room."""

    TAKEN = "taken"
    AWAITED = "awaited"
    REFUSED = "refused"
    """Too many bytes have come of the frames that wait."""


class Receiver(Protocol):
    """A connection that receives a large frame."""

    def on_room(self) -> None:
        """Read on: the room that was asked for is taken."""

    def drop(self, why: str) -> None:
        """Drop the connection."""


class ReceiveLoad:
    """Room of all connections, in bytes; on the running loop."""

    def __init__(self, limits: ResourceLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self.most = max((limits.memory or WITHOUT_LIMIT) // _PART, framing.LARGEST_FRAME)
        self.nbytes = 0
        """Of frames that have room, and of calls that are not carried out."""
        self._order: FairOrder[Receiver] = FairOrder()
        self._awaited: dict[Receiver, tuple[int, int]] = {}  # bytes wanted, bytes that have come
        self._waiting_nbytes = 0
        self._slow: dict[Receiver, float] = {}  # since when, the longest first
        self._timer: asyncio.TimerHandle | None = None
        self._heard: dict[Receiver, float] = {}  # when its last bytes came, the oldest first
        self._silence_timer: asyncio.TimerHandle | None = None

    def request(self, receiver: Receiver, party: str, nbytes: int, held: int) -> Room:
        """Take room for a frame, or wait for room in turns of the parties.

        Args:
            receiver: whose `on_room` is called if room is awaited; with one frame at a time.
            party: who takes turns; see `FairOrder`.
            nbytes: of the whole frame.
            held: of the frame, bytes that have come.
        """
        if self.nbytes < self.most and not self._order:
            self._take(receiver, nbytes)
            return Room.TAKEN
        if self._waiting_nbytes + held > self.most:
            return Room.REFUSED
        self._order.add(receiver, party)
        self._awaited[receiver] = nbytes, held
        self._waiting_nbytes += held
        self._watch()
        return Room.AWAITED

    def add(self, nbytes: int) -> None:
        """Count received calls."""
        self.nbytes += nbytes

    def release(self, nbytes: int) -> None:
        """Give room back: of a frame that is whole, of calls that were carried out."""
        self.nbytes -= nbytes
        while self._order and self.nbytes < self.most:
            receiver = self._order.take()
            wanted, held = self._awaited.pop(receiver)
            self._waiting_nbytes -= held
            self._take(receiver, wanted)
            receiver.on_room()

    def note_bytes(self, receiver: Receiver) -> None:
        """Note that bytes of a frame with room have come, and that it is not complete."""
        self._heard.pop(receiver, None)
        self._heard[receiver] = self._loop.time()
        if self._silence_timer is None:
            self._silence_timer = self._loop.call_later(SILENCE_SECONDS, self._drop_silent)

    def note_slow(self, receiver: Receiver) -> None:
        """Note that bytes are held up by a peer, from now on if not before."""
        self._slow.setdefault(receiver, self._loop.time())
        if self._order:
            self._watch()

    def note_prompt(self, receiver: Receiver) -> None:
        """Note that nothing is held up by a peer. Idempotent."""
        self._slow.pop(receiver, None)
        self._heard.pop(receiver, None)

    def discard(self, receiver: Receiver) -> None:
        """Forget a connection that is over; it gives its room back itself. Idempotent."""
        self.note_prompt(receiver)
        self._order.discard(receiver)
        self._waiting_nbytes -= self._awaited.pop(receiver, (0, 0))[1]

    def _take(self, receiver: Receiver, nbytes: int) -> None:
        self.nbytes += nbytes
        self.note_slow(receiver)
        self.note_bytes(receiver)

    def _watch(self) -> None:
        """Look for slow peers soon, and as long as frames wait."""
        if self._timer is None and self._slow:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._drop_slow)

    def _drop_slow(self) -> None:
        """Drop the slowest peer, and any that pauses, until no frame waits."""
        self._timer = None
        now = self._loop.time()
        slow = [one for one, heard in self._heard.items() if heard <= now - PAUSE_SECONDS]
        slow += [one for one, since in list(self._slow.items())[:1] if since <= now - GRACE_SECONDS]
        for receiver in slow:
            if self._order:
                self.note_prompt(receiver)
                receiver.drop(
                    f"it is slow, and others wait for the {self.most:,} bytes that may be received "
                    f"at a time: 1/{_PART} of the daemon's memory "
                    "(`allhands serve --limit memory=SIZE`)"
                )
        if self._order:
            self._watch()

    def _drop_silent(self) -> None:
        self._silence_timer = None
        latest = self._loop.time() - SILENCE_SECONDS + 0.001
        for receiver in [one for one, heard in self._heard.items() if heard <= latest]:
            self.note_prompt(receiver)
            receiver.drop(f"nothing of its frame has come for {SILENCE_SECONDS:g} s")
        if self._heard:
            due = min(self._heard.values()) + SILENCE_SECONDS
            self._silence_timer = self._loop.call_at(due, self._drop_silent)
