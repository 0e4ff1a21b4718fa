"""Areas of a group in the segments of the ranks of one host."""

import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allhands._native import HostBoard, Segment, ShmComm, ShmP2P

logger = logging.getLogger(__name__)

PAGE = 1 << 12


_SLOTS_BYTES = 32 << 10
"""From the beginning of an area: what each call uses."""
_STEP_BYTES = 256 << 10
_GROUP_BYTES = 24 << 20
"""Of a group's areas together, up to which they are touched ahead: up to four ranks by default."""
_PROCESS_BYTES = 64 << 20
"""Of a process's own areas."""


class PrefaultBudget:
    """Memory that the groups of a process may take before their calls need it."""

    def __init__(self) -> None:
        self._left = _PROCESS_BYTES

    def take(self, size: int, nbytes: int) -> bool:
        """Take the share of a group of `size` ranks with areas of `nbytes` each, if it fits."""
        fits = size * nbytes <= _GROUP_BYTES and nbytes <= self._left
        if fits:
            self._left -= nbytes
        return fits

    def give_back(self, nbytes: int) -> None:
        """Return what a group took."""
        self._left += nbytes


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
        prefault_budget: PrefaultBudget,
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
        self._prefault_budget = prefault_budget
        self._has_budget = False

    def prefault_slots(self) -> bool:
        """Touch the memory that all calls use; False: the system cannot do so before they do."""
        return all(self._prefault_part(rank, 0, _SLOTS_BYTES) for rank in self._list_own_first())

    def prefault(self) -> Iterator[None]:
        """Touch the memory of large and of many calls, if there is budget, in steps of 0.2 ms.

        The system takes 2 to 5 us for the first touch of each page of 4 KiB, so that a first call
        would take ten times as long as the next.
        """
        self._has_budget = self._prefault_budget.take(len(self._ranks), self._nbytes)
        if not self._has_budget:
            return
        for rank in self._list_own_first():
            for first in range(_SLOTS_BYTES, self._nbytes, _STEP_BYTES):
                self._prefault_part(rank, first, min(_STEP_BYTES, self._nbytes - first))
                yield

    def _prefault_part(self, rank: int, first: int, nbytes: int) -> bool:
        segment = self._segments[rank]
        entry = segment.find(self._group)
        return entry is not None and segment.prefault(entry[0] + first, nbytes)

    def _list_own_first(self) -> list[int]:
        """Return the ranks; pages of the others are there by the time that they are mapped."""
        return sorted(range(len(self._ranks)), key=lambda rank: self._segments[rank].fd < 0)

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
        if self._has_budget:
            self._prefault_budget.give_back(self._nbytes)
            self._has_budget = False
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
