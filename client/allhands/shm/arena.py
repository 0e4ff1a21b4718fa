"""Arena: shared memory of this process, and the mapped segments of local ranks.

Every process makes one segment before it joins, and announces it with its membership. Anonymous
memory, reached through /proc/PID/fd of the process that made it: the kernel lets in who may look at
that process anyway, a nonce tells it from any other, and nothing is left behind whoever dies how.

Whether a group may use it, its ranks find out without a message: each enters in its own segment
where its area for the group lies, or that it does without. All see the same entries.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from allhands.config import Limits, hash_limits
from allhands.shm.areas import PAGE, GroupAreas, PrefaultBudget
from allhands.shm.heap import Heap
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.versions import PEERS

if TYPE_CHECKING:
    from allhands._native import Segment

logger = logging.getLogger(__name__)

_AREAS_BYTES = 1 << 38
"""Address space for the areas of all groups; only what is touched takes memory."""


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """Address of a shared-memory segment for processes of the same host."""

    host: str
    fd: int
    nbytes: int
    nonce: bytes

    def __str__(self) -> str:
        return f"{self.host}/{self.fd}/{self.nbytes}/{self.nonce.hex()}/{PEERS.newest}"

    @classmethod
    def parse(cls, text: str) -> "SegmentAddress | None":
        """Parse an address; None for a format unknown to this version."""
        parts = text.split("/")
        try:
            host, fd, nbytes, nonce, version = parts
            if int(version) != PEERS.newest:  # what is in the segment is laid out otherwise
                return None
            return cls(host, int(fd), int(nbytes), bytes.fromhex(nonce))
        except ValueError:
            return None


def compute_host_key() -> str:
    """Return a key equal for processes of one user and host that can read each other's memory.

    Raises:
        OSError: the system does not provide the key's parts.
    """
    with open("/proc/sys/kernel/random/boot_id") as boot:
        spaces = (os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))
        parts = (boot.read().strip(), str(os.getuid()), *spaces)
    return hashlib.blake2b("/".join(parts).encode(), digest_size=8).hexdigest()


class Arena:
    """The segments of this host's ranks; not for several threads at once."""

    def __init__(self, core: ModuleType, limits: Limits) -> None:
        """Make this process's segment.

        Raises:
            OSError: the system does not give shared memory.
        """
        self._core = core
        self.limits = limits
        # Twice what the host has: nothing that fits into memory is refused by the address space.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._heap_offset = core.HEAD_BYTES + _AREAS_BYTES
        self._heap_bytes = -(-2 * memory // PAGE) * PAGE
        nonce = os.urandom(16)
        self._own_segment: Segment = core.Segment.create(
            self._heap_offset + self._heap_bytes, nonce
        )
        self.segment_address = SegmentAddress(
            compute_host_key(), self._own_segment.fd, self._own_segment.nbytes, nonce
        )
        self.heap = Heap(core, self._own_segment, self._heap_offset, self._heap_bytes)
        self._next_offset = core.HEAD_BYTES
        self._segments: dict[int, Segment] = {}
        self._pids: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        """Open groups with each rank that was in one."""
        self._gone: set[int] = set()
        """Ranks that have left the world, or are lost."""
        self._prefault_budget = PrefaultBudget()

    def map(self, rank: int, members: Mapping[int, tuple[int, str]]) -> None:
        """Map the segments of this host's ranks.

        `members` has the process id and the announcement of every rank, `rank` is this process.
        """
        for peer, (pid, text) in members.items():
            if peer == rank:
                self._segments[peer], self._pids[peer] = self._own_segment, os.getpid()
                continue
            told = SegmentAddress.parse(text)
            if told is None or told.host != self.segment_address.host:
                continue
            path = f"/proc/{pid}/fd/{told.fd}"
            try:
                if told.nbytes != self._own_segment.nbytes:
                    raise OSError(f"{told.nbytes} bytes there, {self._own_segment.nbytes} here")
                self._segments[peer] = self._core.Segment.open(path, told.nbytes, told.nonce)
                self._pids[peer] = pid
            except OSError as error:
                logger.warning("no shared memory with rank %d of this host: %s", peer, error)

    def begin_use(self, ranks: Iterable[int]) -> None:
        """Keep the segments of these ranks mapped for a group that opens."""
        for rank in ranks:
            self._uses[rank] = self._uses.get(rank, 0) + 1

    def end_use(self, ranks: Iterable[int]) -> None:
        """Unmap the segments of those ranks of a closed group that are gone and in no other."""
        for rank in ranks:
            self._uses[rank] -= 1
            self._unmap_unused(rank)

    def mark_gone(self, rank: int) -> None:
        """Unmap the segment of a rank that is gone, once no group has it any more. Idempotent.

        One that no group has had yet stays: all must say alike whether a first one is possible.
        """
        self._gone.add(rank)
        self._unmap_unused(rank)

    def _unmap_unused(self, rank: int) -> None:
        if rank in self._gone and self._uses.get(rank) == 0:
            self._segments.pop(rank, None)
            self._pids.pop(rank, None)

    def is_mapped(self, rank: int) -> bool:
        """Say whether the memory of a rank of the world is mapped here."""
        return rank in self._segments

    def open(
        self, group: int, ranks: Sequence[int], capacity: int | None = None
    ) -> GroupAreas | None:
        """Take part in a group with this process's share of it; None: not over shared memory.

        Ranks are those of the world, this process's among them; `group` is its hash. Either way
        the others learn of it. With `capacity` the areas are for a board with posts of so many
        bytes, else for a communicator and messages.
        """
        nbytes, limits = 0, (0, 0, 0)
        if all(rank in self._segments for rank in ranks) and len(ranks) <= self._core.MAX_RANKS:
            if capacity is None:
                limits = self.limits.resolve(self._core.default_limits(len(ranks)))
                area = self._core.area_bytes(len(ranks), limits)
            else:
                limits, area = (capacity, 0, 0), self._core.board_bytes(capacity)
            nbytes = -(-area // PAGE) * PAGE
        if not nbytes or self._next_offset + nbytes > self._heap_offset:
            self._own_segment.publish(group, 0, 0)
            return None
        offset = self._next_offset
        if not self._own_segment.publish(group, offset, hash_limits(limits)):
            return None
        self._next_offset += nbytes
        where = {
            "pids": tuple(self._pids[rank] for rank in ranks),
            "heap_offset": self._heap_offset,
            "heap_bytes": self._heap_bytes,
            "limits": limits,
        }
        return GroupAreas(
            group=group,
            segments=tuple(self._segments[rank] for rank in ranks),
            ranks=tuple(ranks),
            own_segment=self._own_segment,
            nbytes=nbytes,
            limits_hash=hash_limits(limits),
            new_comm=partial(self._core.ShmComm, **where),
            new_p2p=partial(self._core.ShmP2P, **where),
            new_board=self._core.HostBoard,
            prefault_budget=self._prefault_budget,
        )
