"""Groups of one process: open, close, change; shared memory and layout over hosts."""

import contextlib
import logging
import os
from collections import deque
from collections.abc import Sequence

from allhands.collectives.hierarchical_plan import HostLayout, group_by_host
from allhands.collectives.signature import hash_group
from allhands.collectives.two_level_plan import get_limit
from allhands.config import BACKENDS
from allhands.coordinator.world_member import WorldMember, read_member
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.group_engine import EngineConfig, GroupEngine
from allhands.engine.result_check import count_digest_bytes
from allhands.errors import (
    AllhandsError,
    PeerFailed,
)
from allhands.membership.link_probe import measure_links
from allhands.membership.member_directory import MemberDirectory
from allhands.membership.reform import GroupChange, GroupChangeRequest
from allhands.runtime.exit_notice import (
    send_cause_notice,
)
from allhands.shm.areas import GroupAreas
from allhands.shm.arena import SegmentAddress
from allhands.transport.handshake import Identity
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

_MAX_CLOSED_GROUPS = 256
"""Closed groups of which a rank that leaves says what it completed there, the latest ones."""


class WorkerGroups(MemberDirectory):
    """Engines of the groups open in this process."""

    async def open_group(
        self,
        name: str,
        ranks: Sequence[int],
        timeout: float | None = None,
        caller_ranks: Sequence[int] | None = None,
        verify: bool | None = None,
    ) -> GroupEngine:
        """Make the engine of a group that this rank belongs to; `GroupEngine` has `named`.

        `verify` None: as the world has it.
        """
        ranks = tuple(ranks)
        layout = self._compute_layout(ranks)
        grounds = self._open_areas(name, ranks)
        verifies = self.config.verify if verify is None else verify
        board_areas: GroupAreas | None = None
        digest_areas: GroupAreas | None = None
        if layout is not None:
            neighbours = [ranks[rank] for rank in layout.local_ranks]
            grounds = self._open_areas(f"{name}/island", neighbours)
            if len(neighbours) > 1:
                board_areas = self._open_areas(f"{name}/board", neighbours, get_limit(layout))
                if verifies:
                    digest_areas = self._open_areas(
                        f"{name}/digests", neighbours, count_digest_bytes(len(ranks))
                    )
        if (grounds is None or layout is not None) and not BACKENDS[self.config.backend].has_links:
            raise AllhandsError(
                f"group {name!r} has ranks that cannot share memory with this one, and "
                "backend='shm' allows nothing else: use backend='auto'"
            )
        engine = GroupEngine(
            name,
            ranks,
            ranks.index(self.rank),
            self._mesh,
            self,
            self._threads,
            EngineConfig(
                timeout=timeout or self.config.timeout,
                deterministic=self.config.deterministic,
                areas=grounds,
                layout=layout,
                board_areas=board_areas,
                digest_areas=digest_areas,
                allocate=self._allocate_scratch,
                caller_ranks=caller_ranks,
                recorder_size=self.config.recorder_size,
                verify=verifies,
                open_composite_areas=lambda: self._open_areas(f"{name}/steps", ranks),
            ),
        )
        engine.link_cost = self._link_cost
        engine.recorder.on_failure = self._dumper.dump_failure
        self._engines[name] = engine
        if self._arena is not None:
            self._arena.begin_use(ranks)
        self._closed_positions.pop(name, None)
        for tell in self._world_events:
            tell(engine)
        early, self._early_messages = (
            self._early_messages,
            deque(maxlen=self._early_messages.maxlen),
        )
        for group, peer, tell in early:
            self._notify_group(peer, group, tell)
        await self._session.open_group(name, ranks)
        await engine.settle()
        return engine

    def is_open(self, name: str) -> bool:
        """Say whether there is a group of this name here; any thread."""
        return name in self._engines

    def get_groups(self) -> dict[str, tuple[int, ...]]:
        """Return the job's ranks in each group that is open here; any thread."""
        return {name: tuple(engine.ranks) for name, engine in list(self._engines.items())}

    def allocate(self, nbytes: int) -> "memoryview | bytearray":
        """Return zeroed memory, shared by the host's ranks where possible."""
        if self._arena is None:
            return bytearray(nbytes)
        return memoryview(self._arena.heap.allocate(nbytes))[:nbytes]

    def _allocate_scratch(self, nbytes: int) -> "memoryview | bytearray":
        """Return memory as `allocate` does, private if shared memory is used up."""
        try:
            return self.allocate(nbytes)
        except MemoryError:
            return bytearray(nbytes)

    def _open_areas(
        self, name: str, ranks: Sequence[int], capacity: int | None = None
    ) -> GroupAreas | None:
        """Return the shared-memory areas of a group; None: no shared memory."""
        return None if self._arena is None else self._arena.open(hash_group(name), ranks, capacity)

    async def get_failure(self, name: str) -> AllhandsError | None:
        """Return why calls on a group fail from now on; None: nothing is known."""
        engine = self._engines.get(name)
        return (
            _make_destroyed_error(f"a call of group {name!r}")
            if engine is None
            else engine.get_next_error()
        )

    async def close_group(self, name: str, failure: ErrorFactory | None = None) -> None:
        """Close a group after its calls have ended; later calls raise `failure`."""
        engine = self._engines.get(name)
        if engine is not None:
            await engine.wait_idle()
            self._closed_positions[name] = engine.progress, engine.recorder.read_totals()
            while len(self._closed_positions) > _MAX_CLOSED_GROUPS:
                del self._closed_positions[next(iter(self._closed_positions))]
            engine.replace_failure(failure) if failure is not None else engine.shut_down(
                _make_destroyed_error
            )
            engine.close(self._lost | self._left)
            del self._engines[name]
            if self._arena is not None:
                self._arena.end_use(engine.ranks)
            await self._session.close_group(name)

    async def decide_group_change(
        self, group: str, request: GroupChangeRequest, timeout: float
    ) -> GroupChange:
        """Decide on a change with the present ranks of a group; errors as in the session."""
        told = await self._session.request_group_change(
            wire.GroupChangeRequest(
                group=group,
                kind=request.kind,
                flag=request.flag,
                wanted=request.wanted,
                returned=request.returned,
                computed=request.computed,
            ),
            timeout,
        )
        members = tuple(map(read_member, told.members))
        newcomers = [one for one in members if one.rank not in self.members]
        if newcomers:
            self._add_members(newcomers)
        ranks = tuple(one.rank for one in members)
        return GroupChange(
            told.flag, told.epoch, told.group, ranks, told.committed, bool(newcomers)
        )

    async def apply_group_change(self, change: GroupChange, timeout: float) -> GroupEngine:
        """Return the engine of the changed group."""
        self._first_failure_state = None
        named = range(len(change.ranks))
        engine = await self.open_group(change.group, change.ranks, timeout, named)
        if self._has_told_cause:
            self._has_told_cause = False
            send_cause_notice(os.environ, None)
        if change.has_newcomers:
            # They have measured nothing yet, and all must choose alike.
            engine.link_cost = None
            with contextlib.suppress(PeerFailed):  # its first call will say so
                await self._measure_links(engine)
        return engine

    def _add_members(self, newcomers: Sequence[WorldMember]) -> None:
        """Admit ranks that joined the running world."""
        self.members.update((one.rank, one) for one in newcomers)
        self._ports.add_peers(self._make_identity(), newcomers)
        if self._arena is not None:
            told = {one.rank: (one.pid, one.memory) for one in newcomers}
            self._arena.map(self.rank, told)

    def _make_identity(self) -> Identity:
        joined = self._session.joined
        return Identity(
            job=self.config.job,
            incarnation=joined.incarnation,
            secret=joined.secret,
            member=joined.member_id,
            rank=joined.rank,
            world_size=max(self.members) + 1,
        )

    async def _measure_links(self, group: GroupEngine) -> None:
        """Measure the links of a world on several hosts; on one host thresholds are known."""
        hosts = [self.members[rank].host for rank in group.ranks]
        if len(set(hosts)) > 1:
            local_ranks = hosts.count(self.members[self.rank].host)
            name = f"{group.name}/links"
            engine = await self.open_group(name, group.ranks, verify=False)
            try:
                self._link_cost = group.link_cost = await measure_links(engine, local_ranks)
            finally:
                await self.close_group(name)
            logger.info("links of job %s: %s", self.config.job, self._link_cost)

    def _compute_layout(self, ranks: Sequence[int]) -> HostLayout | None:
        """Return a hierarchical group's layout over hosts, equal on all ranks; else None."""
        if self.config.deterministic:
            return None
        told = [SegmentAddress.parse(self.members[rank].memory) for rank in ranks]
        hosts = ["" if one is None else one.host for one in told]
        layout = HostLayout(group_by_host(hosts), ranks.index(self.rank))
        return layout if layout.is_hierarchical else None

    async def _wait_idle(self) -> None:
        for engine in self._engines.values():
            await engine.wait_idle()


def _make_destroyed_error(what: str) -> AllhandsError:
    return AllhandsError(f"{what} cannot run: the group was destroyed")
