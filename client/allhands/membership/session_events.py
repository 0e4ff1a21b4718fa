"""Events of the coordinator's session: lost and left members, aborted groups."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from allhands.coordinator import report_encoder
from allhands.coordinator.conditions import RankCondition
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.group_engine import GroupEngine
from allhands.errors import (
    AllhandsError,
    MembershipChanged,
)
from allhands.membership import local_verdict
from allhands.membership.worker_state import WorkerState
from allhands.runtime.sections import SectionPosition
from allhands.transport.frame import FrameKind, MessageKey
from allhands.verdicts import CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

PONG_SECONDS = 0.25
"""How long peers may take to answer a ping where the coordinator cannot be asked about them."""


class SessionEvents(WorkerState):
    """The `SessionListener` of a worker: fails or informs the calls of all engines."""

    def take_started_calls(self) -> Sequence[wire.CallStarts]:
        told = ((engine.name, engine.recorder.take_started()) for engine in self._engines.values())
        return [
            wire.CallStarts(
                group=name, sequences=[one[0] for one in calls], times=[one[1] for one in calls]
            )
            for name, calls in told
            if calls
        ]

    def make_report(self, operations: int, nbytes: int) -> bytes:
        return report_encoder.encode(
            self.get_records(operations),
            self.get_progress(),
            self.get_stack(),
            nbytes,
            self.sections,
        )

    def find_section(self) -> SectionPosition | None:
        return self.sections.find_current()

    def on_member_lost(self, rank: int, reason: str, found: Verdict) -> None:
        if rank in self._lost:
            return
        self._send_last_report()
        self._lost.add(rank)
        self._forget_memory(rank)
        loss = partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks)
        failure = self._announce_on_failure(found, self._precede_by_mismatches(rank, loss, None))
        logger.warning("%s is lost: %s; %s", self.describe_rank(rank), reason, found.text)
        self._cancel_opinion(rank)

        def notify(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                engine.fail(failure)

        self._notify_engines(notify)

    def on_member_left(self, left: wire.MemberLeft) -> None:
        rank = left.rank
        if rank in self._left:
            return
        found = local_verdict.judge_left(self.members[rank], left.error)
        completed = {one.group: one.completed for one in left.progress}
        failure = self._precede_by_mismatches(
            rank,
            partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks),
            completed,
        )
        if left.aborts and left.error:
            failure = partial(
                call_errors.build_exception_aborted_error,
                by=self.describe_rank(rank),
                error=left.error,
                traceback=left.traceback,
                verdict=found,
            )
        if left.error or any(
            self._awaits_rank(rank, completed, one) for one in self._engines.values()
        ):
            self._send_last_report()
        failure = self._announce_on_failure(found, failure)
        self._left.add(rank)
        self._forget_memory(rank)
        self._cancel_opinion(rank)
        self._mesh.close_link(rank)

        def notify(engine: GroupEngine) -> None:
            if rank in engine.ranks:
                last = completed.get(engine.name, 0)
                engine.events.on_peer_left(rank, last, failure, is_fault=bool(left.error))

        self._notify_engines(notify)

    def _precede_by_mismatches(
        self, rank: int, failure: ErrorFactory, completed: Mapping[str, int] | None
    ) -> ErrorFactory:
        """Return the factory of a rank's loss, extended to tell the mismatches just before.

        `completed`: the rank's last calls that ended well, by group; None: unknown.
        """
        for engine in self._engines.values():
            if rank in engine.ranks:
                last = None if completed is None else completed.get(engine.name, 0)
                failure = engine.events.precede_by_mismatch(failure, last)
        return failure

    def on_ruling(self, found: Verdict, pairs: Sequence[tuple[int, int]]) -> None:
        if found.text in self._seen_rulings:  # told by a peer before
            return
        self._seen_rulings.add(found.text)
        logger.warning("%s", found.text)
        self._send_last_report()
        failure = self._announce_on_failure(
            found, partial(call_errors.build_peer_failed_error, verdict=found, ranks=found.ranks)
        )
        for both in pairs:
            for rank in both:
                if self.rank in both:
                    self._cancel_opinion(rank)

        def notify(engine: GroupEngine) -> None:
            if any({*both} <= {*engine.ranks} for both in pairs):
                engine.fail(failure)

        self._notify_engines(notify)

    def on_links_silent(
        self, found: Verdict, pairs: Sequence[tuple[int, int]], is_over: bool
    ) -> None:
        event = "silent links over" if is_over else "silent links"
        logger.warning("%s", found.text, extra={"allhands": {"event": event, "pairs": [*pairs]}})

    def on_aborted(self, group: str, by: str, reason: str) -> None:
        if group in self._aborted:
            return
        logger.warning("%s was aborted by %s: %s", group or "the world", by, reason)
        if not group:
            self._send_last_report()
        self._aborted.add(group)
        failure = partial(call_errors.build_aborted_error, by=by, reason=reason)

        def notify(engine: GroupEngine) -> None:
            if group in ("", engine.name):
                engine.fail(failure)

        self._notify_engines(notify)

    def vouch(self, rank: int) -> None:
        vouching = asyncio.create_task(self._vouch(rank))
        self._vouch_tasks.add(vouching)
        vouching.add_done_callback(self._vouch_tasks.discard)

    async def _vouch(self, rank: int) -> None:
        """Tell the coordinator if a rank answers a ping."""
        begun = time.monotonic()
        # A new link to a rank that answers nobody would only break.
        self._mesh.ping(rank, dial=self.shares_memory(rank))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PONG_SECONDS):
                while self._pong_times.get(rank, 0.0) < begun:
                    self._pong_arrived.clear()
                    await self._pong_arrived.wait()
                self._session.send(wire.SessionRequest(indirect_ack=wire.IndirectAck(rank=rank)))

    def on_conditions(self, told: Sequence[RankCondition]) -> None:
        for one in told:
            self._note_condition(one)
        silent = {one.rank for one in told if one.found is not None} - {self.rank}
        for engine in self._engines.values():
            if not silent.isdisjoint(engine.ranks):
                engine.events.on_peer_silent()

    def _note_condition(self, told: RankCondition) -> None:
        if told.rank == self.rank:
            state = "" if told.found is None else told.found.state
            if told.found is not None and state != self._own_condition:
                logger.warning("as the others are told: %s", told.found.text)
            self._own_condition = state
            return
        known = self._conditions.pop(told.rank, None)
        if told.found is not None:
            self._conditions[told.rank] = told.found
        elif known is not None:
            after = f", after {told.seconds:.1f} s" if told.seconds else ""
            logger.info("%s is heard again%s", self.describe_rank(told.rank), after)

    def relay_event(self, event: wire.SessionEvent) -> None:
        cut_off = [rank for rank, one in self._conditions.items() if one.state == "unreachable"]
        payload = event.SerializeToString()
        others = [rank for rank in cut_off if rank != self.rank and rank not in self._lost]
        self._mesh.send_control(others, FrameKind.RELAY, MessageKey(0, 0), payload, dial=False)

    def on_call_given_up(self, group: str, sequence: int, given: CallCancellation) -> None:
        if (engine := self._engines.get(group)) is not None:
            engine.events.on_given_up(sequence, given)

    def on_expelled(self, reason: str) -> None:
        self._expelled_reason = reason
        epoch = self._session.epoch

        def make_error(what: str) -> AllhandsError:
            error = MembershipChanged(
                f"{what} cannot run: this process is no longer a member of job "
                f"{self.config.job!r}: {reason}",
                old_epoch=epoch,
                new_epoch=epoch + 1,
            )
            error.is_final = True
            return error

        logger.error("expelled from job %s: %s", self.config.job, reason)
        self._notify_engines(lambda engine: engine.fail(make_error))

    def on_coordinator_gone(self, reason: str) -> None:
        self._coordinator_gone.set()
        for ranks, key, told in self._own_aborts:  # perhaps it never heard of them
            self._send_to_peers(ranks, FrameKind.ABORT, key, told)
        host = next((one for one in self.members.values() if one.hosts_coordinator), None)
        for rank in [*self._opinion_tasks]:
            # Its link broke before: the host may have gone because of it.
            self._lose_if_dead(rank, "its link broke")
        if host is None or host.rank == self.rank:
            logger.error("the coordinator went away: %s", reason)
        elif host.rank not in self._left:
            self.on_member_lost(host.rank, reason, local_verdict.judge_lost_host(host))

    def on_coordinator_back(self) -> None:
        self._coordinator_gone.clear()
        logger.warning("the coordinator is back, and the session goes on")

    def on_newcomers(self, count: int) -> None:
        self.newcomer_count = count

    def _lose_if_dead(self, rank: int, reason: str) -> None:
        """Mark a member as lost if its process has ended."""
        found = local_verdict.judge_broken_link(self.members[rank], reason, self._pid_namespace)
        if found.absent[0].state == "dead":
            self.on_member_lost(rank, reason, found)

    def _send_to_peers(
        self, ranks: Sequence[int], kind: FrameKind, key: MessageKey, payload: bytes
    ) -> None:
        """Send peers a control frame; dial missing links only without a coordinator."""
        others = [rank for rank in ranks if rank != self.rank and rank not in self._left]
        self._mesh.send_control(others, kind, key, payload, dial=self._coordinator_gone.is_set())
