"""Members of the world, for engines: names, states, verdicts, aborts."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from allhands.collectives.signature import hash_group
from allhands.membership import local_verdict
from allhands.membership.peer_events import PeerEvents
from allhands.membership.session_events import PONG_SECONDS
from allhands.transport.frame import FrameKind, MessageKey
from allhands.verdicts import AbsentRank, CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

_MAX_PINGED = 64
"""Ranks of a group that are all pinged then; in larger ones those that are waited for."""
_VERDICT_GRACE_SECONDS = 0.6
"""After a call's deadline, until the coordinator is taken to say nothing."""


class MemberDirectory(PeerEvents):
    """The `PeerDirectory` of a worker's engines."""

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        deadline = time.monotonic() + timeout
        found = None
        try:
            async with asyncio.timeout(max(timeout, 0) + _VERDICT_GRACE_SECONDS):
                found = await self._session.judge(group, sequence, operation, waiting_on, timeout)
        except TimeoutError:
            logger.warning("the coordinator does not say who is missing in %s", operation)
        if found is not None:
            return found
        await asyncio.sleep(deadline - PONG_SECONDS - time.monotonic())
        return await self._judge_alone(group, sequence, operation, waiting_on)

    async def _judge_alone(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int]
    ) -> Verdict:
        """Return a verdict without the coordinator, after pinging the ranks concerned."""
        asked = [*waiting_on]
        engine = self._engines.get(group)
        if engine is not None and len(engine.ranks) <= _MAX_PINGED:
            asked = [rank for rank in engine.ranks if rank != self.rank]
        self._pongs.clear()
        for rank in asked:
            self._mesh.ping(rank, again=True)
        try:
            async with asyncio.timeout(PONG_SECONDS):
                while not self._pongs.keys() >= {*asked}:
                    self._pong_arrived.clear()
                    await self._pong_arrived.wait()
        except TimeoutError:
            pass  # that is an answer as well
        return local_verdict.judge_call(
            group,
            sequence,
            operation,
            [self.members[rank] for rank in asked],
            waiting_on,
            pid_namespace=self._pid_namespace,
            pongs=self._pongs,
            linked_ranks=[rank for rank in asked if not self.shares_memory(rank)],
        )

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        return await self._session.wait_monitored_barrier(group, sequence, timeout)

    def send_give_up(self, group: str, ranks: Sequence[int], sequence: int, reason: str) -> None:
        given = wire.CancelCall(group=group, sequence=sequence, reason=reason)
        self._session.send(wire.SessionRequest(cancel_call=given))
        self._send_to_peers(
            ranks, FrameKind.GIVE_UP, MessageKey(hash_group(group), sequence), reason.encode()
        )

    def abort(self, group: str, reason: str) -> None:
        by = self.describe_rank(self.rank)
        ranks = self._engines[group].ranks if group in self._engines else [*self.members]
        self.on_aborted(group, by, reason)
        self._session.send(wire.SessionRequest(abort=wire.Abort(group=group, reason=reason)))
        told = wire.Aborted(group=group, by=by, reason=reason).SerializeToString()
        self._own_aborts.append((ranks, MessageKey(hash_group(group) if group else 0, 0), told))
        self._send_to_peers(ranks, FrameKind.ABORT, *self._own_aborts[-1][1:])

    async def abort_and_flush(self, group: str, reason: str) -> None:
        """Abort, and return once the coordinator and the peers have been told."""
        self.abort(group, reason)
        await self._session.flush()

    def get_condition(self, rank: int) -> AbsentRank | None:
        return self._conditions.get(rank)

    def watch_links(self, waiting_for: Callable[[], Iterable[int]]) -> Callable[[], None]:
        def list_linked() -> list[int]:
            gone = self._lost | self._left
            ranks = [rank for rank in waiting_for() if rank not in gone]
            return [rank for rank in ranks if not self.shares_memory(rank)]

        return self._pings.watch(list_linked)

    async def are_all_present(self, ranks: Sequence[int]) -> bool:
        return await self._session.all_present(ranks)
