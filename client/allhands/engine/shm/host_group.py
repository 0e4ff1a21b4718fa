"""Host group: the ranks of a group on this host, over shared memory if available."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from allhands.collectives.reduction import OPS
from allhands.collectives.request import CollectiveRequest
from allhands.engine.failures.tracker import ASK_AFTER
from allhands.errors import AllhandsError
from allhands.runtime.job_thread import JobThread
from allhands.shm.areas import GroupAreas

if TYPE_CHECKING:
    from allhands._native import ShmComm
    from allhands.shm.failures import CallFailure

logger = logging.getLogger(__name__)

SUBCALL_BITS = 16
"""The communicator's calls have the number of the group's call, and in so many low bits their own.

So ranks agree on every number, although one may have given a call up where another went on.
"""
_WAIT_SECONDS = 0.1
"""How long the thread that waits for entries looks at one rank's."""
_NEAR_DEADLINE_SECONDS = 0.2
_EXTRA_SECONDS = 3600.0
"""Seconds by which a communicator outlasts the call, whose own deadline ends it."""


class CallAbandoned(Exception):
    """Other ranks gave a call up while this rank was in the call."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {list(ranks)} gave the call up")
        self.ranks = ranks
        """Of the group."""


class HostMismatch(Exception):
    """Ranks of this host have made another call; nothing of it was used."""


async def await_areas(
    areas: GroupAreas,
    ranks: Sequence[int],
    job_thread: JobThread,
    note_awaited: Callable[[Sequence[int]], None],
) -> bool:
    """Find out, as all of these ranks of one host will, whether they share memory.

    `note_awaited` is told for which of them this one waits, at the end for none.
    """
    try:
        while missing := areas.list_missing():
            note_awaited([ranks[place] for place in missing])
            await job_thread.run(partial(areas.wait_entry, missing[0], _WAIT_SECONDS))
    finally:
        note_awaited(())
    if refusal := areas.get_refusal():
        logger.warning("ranks of this host talk over links: %s", refusal)
    return not refusal


async def await_near_deadline(deadline: float) -> None:
    """Wait a little where a call's own deadline is about to end it.

    Neighbours that gave it up so soon before have come to theirs.
    """
    if deadline - time.monotonic() < _NEAR_DEADLINE_SECONDS:
        await asyncio.sleep(_NEAR_DEADLINE_SECONDS)


class HostGroup:
    """The ranks of this host. Event loop only; its communicator runs on the job thread."""

    def __init__(
        self,
        ranks: Sequence[int],
        local_rank: int,
        job_thread: JobThread,
        areas: GroupAreas | None,
        timeout: float,
    ) -> None:
        self.ranks = tuple(ranks)
        """Of the group."""
        self._local_rank = local_rank
        self._job_thread = job_thread
        self._areas = areas
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._comm: ShmComm | None = None
        self._awaited: Sequence[int] = ()

    @property
    def has_memory(self) -> bool:
        """Whether the ranks share memory, as far as is known."""
        return self._comm is not None

    def list_awaited(self) -> Sequence[int]:
        """Return the group's ranks on this host that block this rank now."""
        return self._awaited

    async def negotiate(self) -> None:
        """Find out, as all ranks of the island will, whether they share memory."""
        grounds = self._areas
        if grounds is None or self._comm is not None:
            return
        if not await await_areas(grounds, self.ranks, self._job_thread, self._note_awaited):
            self._areas = None
            return
        self._comm = grounds.make_comm(
            rank=self._local_rank,
            timeout=self._timeout,
            ops=OPS,
            on_failure=self._on_failure,
            on_slow=self._on_slow,
            last_number=0,
            queued=0,
        )

    async def run(
        self,
        request: CollectiveRequest,
        sequence: int,
        index: int,
        signature: int,
        timeout: float,
        deadline: float,
    ) -> None:
        """Run the communicator's call `index`, from 0, of the group's call.

        When this is cancelled the arrays are nobody's by the time it ends.

        Raises:
            Left, Differ: as they say.
        """
        comm = self._comm
        assert comm is not None
        first = sequence << SUBCALL_BITS

        def run() -> None:
            if index == 0:
                comm.skip(first)  # what earlier calls, or others under their numbers, left over
            number = first + 1 + index
            # Who is waited for has been told by the time that the coordinator is asked.
            patience = min(timeout, ASK_AFTER) / 2
            request.run(comm, number, patience, deadline + _EXTRA_SECONDS, None, signature)

        self._awaited = [rank for rank in self.ranks if rank != self.ranks[self._local_rank]]
        running = self._job_thread.submit(run)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            comm.interrupt(first | (1 << SUBCALL_BITS) - 1)
            await asyncio.wait([running])
            running.exception()  # that it was interrupted is no news
            raise
        finally:
            self._awaited = ()

    def close(self, lost_ranks: Collection[int]) -> None:
        """Release the shared memory; every call must have ended."""
        if self._comm is not None:
            self._comm.close()
        grounds, self._areas, self._comm = self._areas, None, None
        if grounds is not None:
            grounds.close(lost_ranks)

    # ------------------------------------------------------------ on the thread of a call

    def _on_slow(self, sequence: int, operation: str, awaited_mask: int, deadline: float) -> None:
        self._loop.call_soon_threadsafe(self._on_blocked, awaited_mask)

    def _on_failure(self, failure: "CallFailure") -> NoReturn:
        if failure.status == "mismatch":
            raise HostMismatch
        if failure.status == "abandoned":
            raise CallAbandoned(self._decode_ranks(failure.offenders))
        raise AllhandsError(
            f"{failure.operation} of this host's ranks ended early: {failure.status}"
        )

    # ------------------------------------------------------------ inside

    def _note_awaited(self, ranks: Sequence[int]) -> None:
        self._awaited = ranks

    def _on_blocked(self, awaited_mask: int) -> None:
        if self._awaited and awaited_mask:
            self._awaited = self._decode_ranks(awaited_mask)

    def _decode_ranks(self, bits: int) -> list[int]:
        return [rank for place, rank in enumerate(self.ranks) if bits >> place & 1]
