"""Areas of a group in the segments of the ranks of one host."""

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allhands._native import HostBoard, Segment, ShmComm, ShmP2P

logger = logging.getLogger(__name__)

PAGE = 1 << 12


class GroupAreas:
    """A group's areas in the segments of all member ranks, by group rank."""

    def __init__(
        self,
        *,
        group: int,
        segments: "tuple[Segment, ...]",
        ranks: tuple[int, ...],
        own_segment: "Segment",
        nbytes: int,
        limits_hash: int,
        new_comm: "Callable[..., ShmComm]",
        new_p2p: "Callable[..., ShmP2P]",
        new_board: "Callable[..., HostBoard]",
    ) -> None:
        self._group = group
        self._segments = segments
        self._ranks = ranks
        self._own_segment = own_segment
        self._nbytes = nbytes
        self._limits_hash = limits_hash
        self._new_comm = new_comm
        self._new_p2p = new_p2p
        self._new_board = new_board

    def list_missing(self) -> list[int]:
        """Return the ranks with no decision yet on shared memory."""
        return [
            rank for rank, segment in enumerate(self._segments) if segment.find(self._group) is None
        ]

    def wait_entry(self, rank: int, seconds: float) -> None:
        """Block until a rank may have said more, for that long at most; any thread."""
        self._segments[rank].await_entry(self._group, seconds)

    def get_refusal(self) -> str:
        """Return why the group goes without shared memory once all decided; "" if it does not."""
        for rank, segment in enumerate(self._segments):
            entry = segment.find(self._group)
            if entry is None or entry[0] == 0:
                return f"rank {rank} of it cannot share memory with all others"
            if entry[1] != self._limits_hash:
                return f"rank {rank} of it was given other limits (ALLHANDS_ARENA_*) than this one"
        return ""

    def make_comm(self, **how: Any) -> "ShmComm":
        """Make the communicator of this rank; requires the participation of all ranks."""
        return self._new_comm(segments=self._segments, offsets=self._find_offsets(), **how)

    def make_p2p(self, **how: Any) -> "ShmP2P":
        """Make the ShmP2P of this rank; requires the participation of all ranks."""
        return self._new_p2p(segments=self._segments, offsets=self._find_offsets(), **how)

    def make_board(self, *, rank: int, capacity: int) -> "HostBoard":
        """Make this rank's face of the board; requires the participation of all ranks."""
        offsets = self._find_offsets()
        return self._new_board(
            rank=rank, segments=self._segments, offsets=offsets, capacity=capacity
        )

    def close(self, lost_ranks: Collection[int] = ()) -> None:
        """Leave the group; the last rank to leave frees the memory.

        `lost_ranks`, ranks of the world, need not leave. They may only have been stopped: then the
        heads of the areas stay, from which a resumed rank learns that the group is over.
        """
        self._own_segment.retire(self._group)
        left = zip(self._ranks, self._segments, strict=True)
        if not all(rank in lost_ranks or segment.is_retired(self._group) for rank, segment in left):
            return
        missed = bool(set(self._ranks).intersection(lost_ranks))
        head = PAGE if missed else 0
        for rank, segment in zip(self._ranks, self._segments, strict=True):
            entry = segment.find(self._group)
            if rank not in lost_ranks and entry is not None and entry[0]:
                segment.clear(entry[0] + head, self._nbytes - head)

    def _find_offsets(self) -> tuple[int, ...]:
        entries = [segment.find(self._group) for segment in self._segments]
        return tuple(entry[0] for entry in entries if entry is not None)
