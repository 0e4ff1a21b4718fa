"""State of one membership, and its news to the engines of all groups."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.signature import hash_group
from allhands.config import WorldConfig
from allhands.coordinator import report_encoder
from allhands.coordinator.member_session import MemberSession
from allhands.coordinator.rendezvous import WorldRendezvous
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.group_engine import GroupEngine
from allhands.engine.links.pings import SILENT_SECONDS, PingMonitor
from allhands.engine.operation import GroupProgress
from allhands.errors import (
    AllhandsError,
)
from allhands.recorder.call_totals import CallTotals
from allhands.recorder.dump import Dumper
from allhands.recorder.record import OperationRecord, sort_by_time
from allhands.runtime import stack_dump
from allhands.runtime.exit_notice import (
    FailureCause,
    send_cause_notice,
)
from allhands.runtime.helper_threads import HelperThreads
from allhands.runtime.sections import SectionReader, process_log
from allhands.shm.arena import Arena
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands.transport.ports import Ports
from allhands.verdicts import AbsentRank, Verdict
from allhands_proto import process
from allhands_proto.v1 import coordinator_pb2 as wire

_MAX_EARLY = 256
"""Kept notices of peers on groups not open here yet, the latest ones."""
_REPORTED_OPERATIONS = 256
"""Calls of all groups in a rank's last report: formatting them takes about 10 ms."""


class WorkerState:
    """Fields and reports of one membership, and notices to its engines.

    Methods run on the loop unless they say otherwise.
    """

    _mesh: Mesh
    _pings: PingMonitor
    world: GroupEngine
    """Engine of the group of all ranks; there once the worker has started."""

    def __init__(
        self, config: WorldConfig, rendezvous: WorldRendezvous, ports: Ports, session: MemberSession
    ) -> None:
        self.config = config
        self.rank = session.joined.rank
        self.members = {member.rank: member for member in session.members}
        self.rendezvous = rendezvous
        self._ports = ports
        self._session = session
        self._threads = HelperThreads()
        """Starts the threads of the engines."""
        self._engines: dict[str, GroupEngine] = {}
        self._closed_positions: dict[str, tuple[GroupProgress, CallTotals]] = {}
        """Last position of this rank in each group that it has closed."""
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._aborted: set[str] = set()  # groups; all of them as ""
        self._world_events: list[Callable[[GroupEngine], None]] = []
        """Events of the world in order of arrival: each notifies one engine."""
        self._early_messages: deque[tuple[int, int, Callable[[GroupEngine], None]]] = deque(
            maxlen=_MAX_EARLY
        )
        """Notices of peers on groups not open here yet: group hash, peer, notification."""
        self._has_told_cause = False
        self._own_aborts: list[tuple[Sequence[int], MessageKey, bytes]] = []
        self._pid_namespace = process.get_pid_namespace()
        self._coordinator_gone = asyncio.Event()
        self._pongs: dict[int, wire.Heartbeat] = {}  # of peers that were pinged
        self._pong_arrived = asyncio.Event()
        self._pong_times: dict[int, float] = {}  # when peers answered a ping last
        self._seen_rulings: set[str] = set()
        self._conditions: dict[int, AbsentRank] = {}  # of ranks that are silent though they live
        self._own_condition = ""
        """State that the others know of this rank; empty: it is heard."""
        self._vouch_tasks: set[asyncio.Task[None]] = set()
        self._expelled_reason: str | None = None
        self._opinion_tasks: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False
        self._first_failure_state: tuple[Sequence[wire.Progress], str] | None = None
        """Progress and stack of this rank at the first failure since the last group change."""
        self.get_stack: Callable[[], str] = stack_dump.format_main_thread
        """Formats the program's present stack; see `SessionListener`."""
        self.sections = SectionReader(process_log)
        """Sections of the program; see `SessionListener`."""
        self.newcomer_count = 0
        """Number of workers that wait for a grow."""
        self._arena: Arena | None = None
        self._link_cost: LinkCost | None = None
        self._dumper = Dumper(
            config.dump_on_failure, config.job, self.rank, len(self.members), self.get_records
        )

    def describe_rank(self, rank: int) -> str:
        return str(self.members.get(rank, f"rank {rank}"))  # one that is not introduced yet

    def find_processes(self, ranks: Iterable[int]) -> list[int]:
        """Return the pids of those of the ranks whose processes this one can look at."""
        namespace = self._pid_namespace
        found = (self.members.get(rank) for rank in ranks if rank != self.rank)
        return [one.pid for one in found if one and namespace and one.pid_namespace == namespace]

    def shares_memory(self, rank: int) -> bool:
        return self._arena is not None and self._arena.is_mapped(rank)

    def _forget_memory(self, rank: int) -> None:
        if self._arena is not None:
            self._arena.mark_gone(rank)

    def get_progress(self) -> Sequence[wire.Progress]:
        # What a call has failed of is told by these: its data has not come in any case.
        silent = self._mesh.find_silent(SILENT_SECONDS, behind_data=True)
        return [
            make_progress(
                engine.name,
                engine.progress,
                engine.recorder.read_totals(),
                [rank for rank in silent if rank in engine.ranks],
            )
            for engine in self._engines.values()
        ]

    def get_records(self, last: int | None = None) -> list[OperationRecord]:
        """Return this rank's records, the `last` operations of each group; any thread."""
        engines = list(self._engines.values())
        return sort_by_time(one for engine in engines for one in engine.recorder.list_records(last))

    def _make_last_report(self, state: tuple[Sequence[wire.Progress], str], nbytes: int) -> bytes:
        """Encode the last report of this rank: progress, stack and latest calls."""
        of_each = max(_REPORTED_OPERATIONS // max(len(self._engines), 1), 1)
        return report_encoder.encode(self.get_records(of_each), *state, nbytes, self.sections)

    def _send_last_report(self) -> None:
        """Send the last report once, before calls end in the first failure."""
        if self._first_failure_state is None and not self._is_closed:
            self._first_failure_state = at = self.get_progress(), self.get_stack()
            section = self.sections.find_current()
            self._session.send_last_report(at[0], section, partial(self._make_last_report, at))

    def _announce_on_failure(self, found: Verdict, failure: ErrorFactory) -> ErrorFactory:
        """Return the factory, extended to notify the launcher of the first failure."""

        def announce_and_make(what: str) -> AllhandsError:
            self.notify_launcher(found)
            return failure(what)

        return announce_and_make

    def notify_launcher(self, found: Verdict) -> None:
        """Notify the launcher of the rank that makes this one fail, once, before it fails."""
        if not self._has_told_cause and found.absent:
            self._has_told_cause = True
            one = found.absent[0]
            cause = FailureCause(one.rank, one.host, one.pid, one.state, one.text)
            send_cause_notice(os.environ, cause)

    def _cancel_opinion(self, rank: int) -> None:
        """The coordinator has spoken about a rank: no more need for an own opinion."""
        self._pings.forget(rank)
        opinion = self._opinion_tasks.pop(rank, None)
        if opinion is not None and opinion is not asyncio.current_task():
            opinion.cancel()

    def _notify_engines(self, notify: Callable[[GroupEngine], None]) -> None:
        """Notify all engines, present and future, of an event of the world."""
        self._world_events.append(notify)
        for engine in self._engines.values():
            notify(engine)

    def _notify_group(self, peer: int, group: int, notify: Callable[[GroupEngine], None]) -> None:
        """Notify a group's engine of a peer's message, now or once the group is open."""
        engines = [engine for engine in self._engines.values() if engine.hash == group]
        for engine in engines:
            if peer in engine.ranks:
                notify(engine)
        if not engines and group not in map(hash_group, self._closed_positions):
            self._early_messages.append((group, peer, notify))

    def _awaits_rank(self, rank: int, completed: Mapping[str, int], engine: GroupEngine) -> bool:
        """Return whether the running call of an engine lacks a departed rank."""
        at = engine.progress
        is_missing = at.sequence > completed.get(engine.name, 0)
        return rank in engine.ranks and bool(at.operation) and is_missing


def make_progress(
    group: str, position: GroupProgress, totals: CallTotals, unanswered: Sequence[int] = ()
) -> wire.Progress:
    return wire.Progress(
        group=group,
        sequence=position.sequence,
        completed=position.last_completed,
        operation=position.operation,
        elapsed=time.monotonic() - position.since,
        unanswered_pings=unanswered,
        nbytes=totals.nbytes,
        seconds=totals.seconds,
    )
