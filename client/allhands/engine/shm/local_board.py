"""Local board: memory in which the ranks of a group on this host leave posts for one another."""

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from allhands.collectives.buffer import Array
from allhands.engine.shm.host_group import CallAbandoned, HostMismatch, await_areas
from allhands.runtime.job_thread import JobThread
from allhands.shm.areas import GroupAreas

if TYPE_CHECKING:
    from allhands._native import HostBoard

_WAIT_SECONDS = 0.1
"""How long the thread that waits looks for one rank's post."""
_SPIN_SECONDS = 20e-6
"""How long the loop looks for a post itself: less than another thread takes to begin."""
_ABSENT, _UNLIKE, _GIVEN_UP = 0, 2, 3


class LocalBoard:
    """The board of this host's ranks. Event loop only, but for `native`."""

    def __init__(
        self,
        ranks: Sequence[int],
        local_rank: int,
        job_thread: JobThread,
        areas: GroupAreas | None,
        capacity: int,
    ) -> None:
        self.ranks = tuple(ranks)
        """Of the group."""
        self._local_rank = local_rank
        self._job_thread = job_thread
        self._areas = areas
        self._capacity = capacity
        self.native: HostBoard | None = None
        """Once the ranks have found that they share memory."""
        self._awaited: Sequence[int] = ()

    @property
    def is_undecided(self) -> bool:
        """Whether it is yet to be found out whether the ranks share memory."""
        return self._areas is not None and self.native is None

    def list_awaited(self) -> Sequence[int]:
        """Return the group's ranks on this host that block this rank now."""
        return self._awaited

    async def negotiate(self) -> None:
        """Find out, as all ranks of this host will, whether they share memory."""
        areas = self._areas
        if areas is None or self.native is not None:
            return
        if not await await_areas(areas, self.ranks, self._job_thread, self._note_awaited):
            self._areas = None
            return
        self.native = areas.make_board(rank=self._local_rank, capacity=self._capacity)

    async def post(self, number: int, signature: int, arrays: Sequence[Array]) -> None:
        """Leave arrays for the others in a call, unless that has been done."""
        board = self.native
        assert board is not None
        nbytes = sum(array.nbytes for array in arrays)
        if board.look(self._local_rank, number, signature, nbytes) != _ABSENT:
            return
        while (place := board.full(number)) >= 0:
            await self._wait(place, number, room=True)
        board.post(number, signature, tuple(arrays))

    async def fetch(
        self, rank: int, number: int, signature: int, nbytes: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """Return what a rank of the group has left in a call, once it has.

        Raises:
            HostMismatch: that rank has made another call; nothing of it was used.
            CallAbandoned: that rank has given the call up.
        """
        board, place = self.native, self.ranks.index(rank)
        assert board is not None
        while (found := board.look(place, number, signature, nbytes)) == _ABSENT:
            await self._wait(place, number, room=False)
        if found == _UNLIKE:
            raise HostMismatch
        if found == _GIVEN_UP:
            raise CallAbandoned([rank])
        data = np.empty(nbytes, np.uint8)
        board.read(place, number, 0, data)
        return data

    def over(self, number: int) -> None:
        """Let the others know that this rank needs nothing of calls up to a number."""
        if self.native is not None:
            self.native.over(number)

    def give_up(self, number: int) -> None:
        """Let the others know that this rank does not go on with a call."""
        if self.native is not None:
            self.native.give_up(number)

    def close(self, lost_ranks: Collection[int]) -> None:
        """Release the shared memory; every call must have ended."""
        areas, self._areas, self.native = self._areas, None, None
        if areas is not None:
            areas.close(lost_ranks)

    def _note_awaited(self, ranks: Sequence[int]) -> None:
        self._awaited = ranks

    async def _wait(self, place: int, number: int, *, room: bool) -> None:
        """Wait a while for a rank to post, or to leave room; when cancelled no thread does."""
        board = self.native
        assert board is not None
        if board.wait(place, number, room, _SPIN_SECONDS, _SPIN_SECONDS):
            return
        self._awaited = (self.ranks[place],)
        waiting = self._job_thread.submit(
            partial(board.wait, place, number, room, _WAIT_SECONDS, 0.0)
        )
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            board.wake()
            await asyncio.wait([waiting])
            raise
        finally:
            self._awaited = ()
