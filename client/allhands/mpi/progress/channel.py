"""The way of frames and data between two processes: messages of one group of allhands.

The group has all ranks of the world, so that a place in it is a rank of the world. Frames are
received from whoever sends: over shared memory on the thread that waits, else by a receive that
stays posted.
"""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, PeerFailed
from allhands.group.group import Group
from allhands.mpi.progress.frames import FRAME_BYTES, FRAME_TAG, Bytes

if TYPE_CHECKING:
    from allhands._native import ShmP2P

NOTHING = -1
_LONG_SECONDS = 1e8
"""Of a receive that stays posted: who waits for a message has a deadline of its own."""


class Channel:
    """Frames and data between this process and the others of its world."""

    def __init__(self, group: Group, ranks: Sequence[int] | None = None) -> None:
        """Make the way to ranks of the world, by their places in the group; None: all of them."""
        self.group = group
        self._order = group.order
        self.ranks = tuple(range(group.size) if ranks is None else ranks)
        self.places = {rank: place for place, rank in enumerate(self.ranks)}
        self._callers = dict(zip(group.ranks, self.ranks, strict=True))
        self.rank, self.size = self.ranks[group.rank], group.size
        self._posted: tuple[Work, Bytes] | None = None

    @property
    def shm(self) -> "ShmP2P | None":
        """The way over shared memory, where all ranks share it."""
        return self._order.p2p

    @property
    def has_posted(self) -> bool:
        """Whether a receive of a frame is posted, which the next frame ends."""
        return self._posted is not None

    def send_frame(self, frame: Bytes, rank: int) -> Work | None:
        """Send a frame; None: it has gone, and else the work of a copy."""
        shm = self.shm
        if shm is not None and shm.try_send(frame, self._find(rank), FRAME_TAG, None, None):
            return None
        return self.start_send(frame.copy(), rank, FRAME_TAG)

    def start_send(self, data: Bytes, rank: int, tag: int) -> Work:
        """Begin to send; the data belongs to the work until its end."""
        return self.group.send(data, self._find(rank), tag, timeout=_LONG_SECONDS)

    def try_send(self, data: Bytes, rank: int, tag: int) -> bool:
        """Send what can go at once; False: nothing has happened."""
        shm = self.shm
        return shm is not None and shm.try_send(data, self._find(rank), tag, None, None)

    def send(self, data: Bytes, rank: int, tag: int) -> None:
        """Send, and return when the data may be changed."""
        shm = self.shm
        caller = self.group.ranks[self._find(rank)]
        if shm is None or not shm.send(data, caller, tag, None, None):
            self.start_send(data, rank, tag).wait()

    def receive(self, target: Bytes, rank: int, tag: int) -> None:
        """Receive data that its sender has begun to send."""
        shm = self.shm
        place = self._find(rank)
        if shm is None or shm.recv(target, self.group.ranks[place], tag, None, None) < 0:
            self.group.recv(target, place, tag).wait()

    def poll(self, frame: Bytes, seconds: float) -> int:
        """Receive a frame if one comes within some time; return its sender, or NOTHING.

        Raises:
            AllhandsError: none can come any more.
        """
        shm = self.shm
        if (
            self._posted is None
            and shm is not None
            and (sender := shm.poll(frame, FRAME_TAG, seconds)) >= NOTHING
        ):
            return self._callers.get(sender, NOTHING)
        if self.size == 1:
            return NOTHING
        return self._poll_posted(frame, seconds)

    def find_loss(self, rank: int, what: str) -> AllhandsError | None:
        """Return why nothing can come from a rank any more; None: nothing is known."""
        place = self.places.get(rank)
        if place is None:
            return PeerFailed(f"{what}: rank {rank} of the world was lost before", (rank,))
        return self.group.submitter.engine.find_message_failure(place, what)

    def _find(self, rank: int) -> int:
        """Return the place of a rank of the world.

        Raises:
            PeerFailed: it was lost before this way was opened.
        """
        place = self.places.get(rank)
        if place is None:
            raise PeerFailed(f"rank {rank} of the world was lost before", (rank,))
        return place

    def close(self) -> None:
        """Withdraw the posted receive."""
        if self._posted is not None:
            self._posted[0].cancel()
            self._posted = None

    def _poll_posted(self, frame: Bytes, seconds: float) -> int:
        if self._posted is None:
            target: Bytes = np.empty(FRAME_BYTES, np.uint8)
            self._posted = self.group.recv(target, None, FRAME_TAG, timeout=_LONG_SECONDS), target
        work, target = self._posted
        if not work.is_completed():
            if seconds <= 0:
                return NOTHING
            with contextlib.suppress(AllhandsError):
                work.wait(seconds)
            if not work.is_completed():
                return NOTHING
        self._posted = None
        work.wait()
        frame[:] = target
        return self.ranks[work.source_rank()]
