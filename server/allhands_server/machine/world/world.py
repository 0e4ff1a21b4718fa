"""World: the members of one incarnation of a job.

    empty     no member yet
    forming   members come and go; the rank of a broken session is free again
    running   all ranks are present
    degraded  some members are lost or have left; no worker may join any more
    ended     no member is left

A worker that joins an elastic, running world waits as a newcomer for a group change (see
`group_changes`), which sets the size of the world to its number of members.

A member is lost after a silent heartbeat window without evidence of life (see `failure_detector`),
or after a broken session without a Leave: after GRACE_SECONDS, or at once if there is evidence of
its end (its process has gone, its launcher reported the exit, a link to it broke).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from allhands_proto.verdicts import CallCancellation
from allhands_server.machine import limits
from allhands_server.machine.effects import (
    Aborted,
    CallCancelled,
    Effect,
    EndSession,
    JobEnded,
    Joined,
    LeaveAccepted,
    Newcomers,
    Notification,
    OperatorLog,
    Push,
    WorldFormed,
)
from allhands_server.machine.formatting import escape, escape_line, quote
from allhands_server.machine.job_events import JobEvents
from allhands_server.machine.member_messages import Join, Leave
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.values import MemberView
from allhands_server.machine.world import admission
from allhands_server.machine.world.absent_ranks import judge_lost
from allhands_server.machine.world.broken_link_monitor import BrokenLinkMonitor
from allhands_server.machine.world.broken_links import (
    order_pair,
)
from allhands_server.machine.world.call_times import CallTimes
from allhands_server.machine.world.conditions import ConditionAnnouncer
from allhands_server.machine.world.failure_detector import FailureDetector
from allhands_server.machine.world.leavers import LeaverAnnouncer
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.postmortem import limit_report
from allhands_server.machine.world.prober import Prober
from allhands_server.machine.world.process_evidence import ProcessEvidence
from allhands_server.machine.world.report_collection import ReportCollections
from allhands_server.machine.world.silent_links import SilentLinkMonitor
from allhands_server.machine.world.world_state import WorldState, record_member
from allhands_server.machine.world_changes import (
    CallsAborted,
    FailureNoted,
    GroupClosed,
    GroupOpened,
    MemberGone,
    WorldChange,
    WorldCompleted,
)

GRACE_SECONDS = 0.5
"""Time from the break of a session to the loss of its member, without other evidence."""
BEATS_PER_WINDOW = 5
INTERVAL_MOST = 1.0
"""Seconds between heartbeats at most: silent members are announced within three."""


class World(WorldState):
    """Members by rank; methods take the time and return effects."""

    def __init__(
        self,
        job: str,
        incarnation: str,
        secret: bytes,
        heartbeat_window: float,
        epoch: int,
        timers: TimerQueue,
        commit: Callable[[WorldChange], None],
        pid_namespace: str = "",
        is_durable: bool = False,
        events: JobEvents | None = None,
    ) -> None:
        """Make an empty world; processes in `pid_namespace` can be inspected.

        Changes go through `commit`, which has this world apply each. `is_durable`: a restarted
        coordinator has the world again.
        """
        super().__init__(job, incarnation, secret, heartbeat_window, epoch, timers)
        self.commit = commit
        """Make a change, which the log keeps once the world is complete."""
        self._is_durable = is_durable
        self.events = events or JobEvents(job)
        self._suspected: set[int] = set()  # ranks to which a link broke
        self._members_nbytes = 0
        """Bytes of the members' records while the world is forming."""
        self._taken_below = 0
        """No lower rank is free while the world is forming."""
        self.gave_up: set[int] = set()
        """Ranks that joined and went while the world is forming, and are not back."""
        self.wanted_newcomers = 0
        """Number of newcomers that pending group changes need."""
        self.on_change: Callable[[float], list[Effect]] = lambda now: []
        """Called after members or newcomers came or left."""
        self.on_gone: Callable[[str], None] = lambda member_id: None
        """Called with the id of each member that is lost or has left."""
        self.reports = ReportCollections(job, self.members, self.present)
        self.prober = Prober(job, pid_namespace, self.present)
        self.broken_links = BrokenLinkMonitor(self, timers)
        self.silent_links = SilentLinkMonitor(self, self.prober, self.broken_links, timers)
        self.broken_links.on_announced = self.silent_links.discard
        self.on_links_announced = self.broken_links.note_announced
        self._conditions = ConditionAnnouncer(self, timers)
        self._leavers = LeaverAnnouncer(self.present, timers)
        self.failure_detector = FailureDetector(
            self, self.prober, self._conditions, timers, is_window_given=heartbeat_window > 0
        )
        self.process_evidence = ProcessEvidence(self, self.failure_detector, timers)
        self.call_times = CallTimes(self.members, self.groups)

    @property
    def heartbeat_interval(self) -> float:
        return min(self.heartbeat_window / BEATS_PER_WINDOW, INTERVAL_MOST)

    # ------------------------------------------------------------ coming

    def join(
        self, session: int, join: Join, member_id: str, now: float
    ) -> tuple[Member, list[Effect]]:
        """Add a member; the last missing member forms the world.

        Raises:
            Refused: not admitted; nothing has changed.
        """
        if self._formed_size and (self._is_elastic or len(self.newcomers) < self.wanted_newcomers):
            return self._add_newcomer(session, join, member_id, now)
        sized = self._find_sized_member()
        admission.check_size(join, sized)
        if self._formed_size:
            is_away = all(one.is_away for one in self.present.values())
            if is_away or self.failure_detector.note_joiner(now):
                raise admission.refuse_for_now(join, self.heartbeat_window)
            raise admission.refuse_late_joiner(join, self.members, self.present, self._formed_size)
        place = admission.choose_rank(
            join, self.members, is_sized=sized is not None, taken_below=self._taken_below
        )
        nbytes = self._members_nbytes + admission.measure_join(join)
        admission.check_members_nbytes(join, nbytes)
        effects: list[Effect] = []
        if place.displaced is not None:
            effects += self._displace(place.displaced, join)
        member = Member(member_id, session, place.rank, join, heard_at=now)
        self._by_id[member_id] = member
        self._members_nbytes += admission.measure_join(join)
        if join.rank < 0:
            self._taken_below = member.rank + 1
        self.members[member.rank] = self.present[member.rank] = member
        self.gave_up.discard(member.rank)
        self.failure_detector.watch(member, now)
        self.events.add("joined", f"{member} joined", now, rank=member.rank)
        effects.append(Push(session, self._make_joined(member)))
        if len(self.members) == self.size:
            effects += self._form(now)
        return member, effects

    @property
    def max_members(self) -> int:
        """Largest number of members; 0: no limit."""
        return max((one.join.max_members for one in self.present.values()), default=0)

    @property
    def _is_elastic(self) -> bool:
        return any(one.join.elastic for one in self.present.values())

    def _add_newcomer(
        self, session: int, join: Join, member_id: str, now: float
    ) -> tuple[Member, list[Effect]]:
        """Let a worker wait for a place in a running world."""
        rank = max([*self.members, *self.newcomers, self._formed_size - 1]) + 1
        member = Member(member_id, session, rank, join, heard_at=now)
        self._by_id[member_id] = self.newcomers[rank] = member
        self.failure_detector.watch(member, now)
        report = self.events.log("joined", f"{member} waits to be taken in", now, rank=rank)
        introduction = Push(session, self._make_joined(member))
        return member, [introduction, *self._push_newcomer_count(), report, *self.on_change(now)]

    def _push_newcomer_count(self) -> list[Effect]:
        return self.push(self.present.values(), Newcomers(len(self.newcomers)))

    def lose_unreachable(self, ranks: Iterable[int], now: float) -> list[Effect]:
        """Lose the group's members out of reach of the rest."""
        effects: list[Effect] = []
        for rank in self.broken_links.unreachable.intersection(ranks, self.present):
            effects += self.lose(self.present[rank], "other members cannot reach it", now)
        return effects

    def push_world_formed(
        self, group: str, members: tuple[MemberView, ...], newcomers: Iterable[int]
    ) -> list[Effect]:
        """Notify newcomers of the group, and all members of the count of waiting newcomers."""
        formed = WorldFormed(self.epoch, len(members), members, group)
        told = self.push((self.members[rank] for rank in newcomers), formed)
        text = f"epoch {self.epoch} opened, {len(members)} members of {group}"
        report = self.events.log("regrouped", text, self._timers.now, epoch=self.epoch)
        return [*told, *(self._push_newcomer_count() if told else []), report]

    def _displace(self, member: Member, claimant: Join) -> list[Effect]:
        self._dismiss(member)
        return [EndSession(member.session, admission.make_displacement(member, claimant))]

    def _make_joined(self, member: Member) -> Joined:
        return Joined(
            member_id=member.member_id,
            rank=member.rank,
            world_size=self.size,
            incarnation=self.incarnation,
            secret=self.secret,
            heartbeat_window=self.heartbeat_window,
            heartbeat_interval=self.heartbeat_interval,
            address=member.join.address,
            report_nbytes=limit_report(self.size),
            is_durable=self._is_durable,
        )

    def _form(self, now: float) -> list[Effect]:
        in_order = [member for _, member in sorted(self.members.items())]
        self.commit(
            WorldCompleted(
                self.job,
                self.incarnation,
                self.secret,
                self._first_window,
                self.epoch + 1,
                tuple(map(record_member, in_order)),
            )
        )
        members = tuple(member.describe(now) for member in in_order)
        formed = WorldFormed(self.epoch, self._formed_size, members)
        text = f"epoch {self.epoch} opened, {self._formed_size} members"
        report = self.events.log("formed", text, now, epoch=self.epoch)
        return [*self.push(self.members.values(), formed), report]

    # ------------------------------------------------------------ going

    def leave(self, member: Member, leave: Leave, now: float) -> list[Effect]:
        """Let a member leave, and notify the rest of the leaver's completed calls."""
        member.update_progress(leave.progress, now)
        effects: list[Effect] = [Push(member.session, LeaveAccepted()), EndSession(member.session)]
        if self.is_outside(member):
            return [*effects, *self._dismiss(member)]
        error = escape(leave.error)[: limits.LONGEST_ERROR]
        traceback = escape(leave.traceback)[-limits.LONGEST_ERROR :]
        self._remove(
            MemberGone(
                self.job,
                member.rank,
                self.epoch + (len(self.present) > 1),
                False,
                error,
                member.get_progress(now),
                None,
                traceback,
                leave.aborts,
            )
        )
        self._note_failures(self.postmortem.list_left(self.job, member, traceback))
        if leave.report:
            self.postmortem.keep_report(member, leave.report)
        said = escape_line(error.partition("\n")[0])
        why = f" because of {said}" if error else ""
        report = self.events.log(
            "left",
            f"{member} left{why}; epoch {self.epoch}",
            now,
            rank=member.rank,
            epoch=self.epoch,
            state="error" if why else "",
            is_failure=bool(why),
        )
        told = self._leavers.announce(*self.latest_departure, now)
        return [*effects, *told, report, *self.on_change(now), *self._end_if_empty(now)]

    def on_session_broken(self, member: Member, now: float) -> list[Effect]:
        """Note the end of a member's session without a Leave."""
        if self.is_outside(member):
            return self._dismiss(member)
        member.is_broken = True
        if member.exit_status is not None:
            return self.lose(member, "its session broke", now)
        if member.unanswered_since is not None and now - member.heard_at >= self.heartbeat_window:
            return self.failure_detector.on_session_broken(member, now)
        looking = self.prober.inspect_process(member)
        if member.rank in self._suspected and not (looking or member.join.exit_is_reported):
            return self.lose(member, "its session broke, and a link to it", now)
        self.failure_detector.stop(member)
        # Twice: a process closes its sockets before it is gone.
        member.timer = self._timers.schedule(
            now + GRACE_SECONDS / 2, partial(self._inspect_again, member)
        )
        return looking

    def _inspect_again(self, member: Member, now: float) -> list[Effect]:
        lose = partial(self.lose, member, "its session broke")
        member.timer = self._timers.schedule(now + GRACE_SECONDS / 2, lose)
        return self.prober.inspect_process(member)

    def on_link_broken(
        self, rank: int, reporter: Member, reason: str, shares_memory: bool, now: float
    ) -> list[Effect]:
        """Weigh a member's report of a broken link to `rank`."""
        suspect = self.members.get(rank)
        if suspect is None or suspect is reporter or not suspect.is_present:
            return []
        self._suspected.add(rank)
        if suspect.is_broken:
            if suspect.join.pid_namespace or suspect.join.exit_is_reported:
                return []  # more will be known in a moment
            return self.lose(suspect, "its session broke, and a link to it", now)
        if not shares_memory:
            self.broken_links.report(
                order_pair(reporter.rank, rank), f"the link broke ({reason})", now
            )
        return self.prober.probe([suspect], now)

    def push_to_present(self, what: Notification) -> list[Effect]:
        """Send a notification to all present members with an open session."""
        return self.push(self.present.values(), what)

    # ------------------------------------------------------------ giving up

    def abort(
        self, group: str, by: str, reason: str, now: float, but: Member | None = None
    ) -> list[Effect]:
        """Release the members of a group, or of the world if `group` is empty."""
        by, reason = escape(by), escape(reason)
        change = CallsAborted(self.job, group, by, reason[: limits.LONGEST_ERROR])
        if not group and not self.has_aborted(change):
            self._note_failures(self.postmortem.list_aborted(self.job, by, reason))
        self.commit(change)
        ranks = set(self.groups.get_ranks(group) or ()) if group else self.members.keys()
        told = [one for rank, one in self.present.items() if rank in ranks and one is not but]
        what = f"group {quote(group)} of job {self.job}" if group else f"job {self.job}"
        self.events.add("aborted", f"{what} was aborted: {reason}", now, by=by)
        report = OperatorLog(f"{what} was aborted by {by}: {quote(reason)}", True, self.job)
        return [*self.push(told, Aborted(group, by, change.reason)), report]

    def push_call_cancelled(
        self, group: str, sequence: int, given: CallCancellation
    ) -> list[Effect]:
        """Notify the members of a group of a cancelled call."""
        ranks = self.groups.get_ranks(group) or ()
        told = [self.present[rank] for rank in set(ranks) if rank in self.present]
        notice = CallCancelled(group, sequence, given.rank, given.by, given.reason)
        return self.push([one for one in told if one.rank != given.rank], notice)

    def dismiss(self, refusal: Refusal) -> list[Effect]:
        """End the sessions of a world that will not form."""
        assert not self._formed_size
        ended: list[Effect] = [EndSession(one.session, refusal) for one in self.members.values()]
        for member in list(self.members.values()):
            self._dismiss(member)
        return ended

    def disband(self, why: str, now: float) -> list[Effect]:
        """End the sessions of all members and newcomers."""
        refusal = Refusal(Status.ABORTED, why)
        if not self._formed_size:
            return self.dismiss(refusal)
        if not self.present:
            return []
        ended: list[Effect] = []
        for member in [*self.present.values()]:
            if not member.is_broken:
                ended.append(EndSession(member.session, refusal))
            progress = member.get_progress(now)
            self._remove(MemberGone(self.job, member.rank, self.epoch, True, why, progress, None))
        return [*ended, *self.on_change(now), *self._end_if_empty(now)]

    def lose_broken_members(self, now: float) -> list[Effect]:
        """Lose all members at once if no session is open."""
        if not self.is_live or any(
            one.is_reachable or one.is_away for one in self.members.values()
        ):
            return []
        lost = [self.lose(one, "its session broke", now) for one in [*self.present.values()]]
        return [effect for effects in lost for effect in effects]

    def lose(self, member: Member, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not member.is_broken:
            text = f"job {self.job} counts {member} as lost: {reason}"
            effects.append(EndSession(member.session, Refusal(Status.ABORTED, text)))
        if self.is_outside(member):
            return [*effects, *self._dismiss(member)]
        loss = judge_lost(member, reason, now)
        progress = member.get_progress(now)
        self._remove(
            MemberGone(self.job, member.rank, self.epoch + 1, True, reason, progress, loss)
        )
        self._note_failures(self.postmortem.list_lost(self.job, member))
        told = self.latest_news
        self.events.count_loss(loss.state)
        self.events.add(
            "lost", loss.text, now, rank=member.rank, epoch=self.epoch, state=loss.state
        )
        report = OperatorLog(
            f"job {self.job}: {member} is lost: {reason}; epoch {self.epoch}", True, self.job
        )
        others = self.push(self.present.values(), told)
        return [*effects, *others, report, *self.on_change(now), *self._end_if_empty(now)]

    def _remove(self, change: MemberGone) -> None:
        """Make a member one that is gone."""
        self.failure_detector.stop(self.members[change.rank])
        self._conditions.forget(change.rank)
        self.commit(change)
        self.on_gone(self.members[change.rank].member_id)
        self.silent_links.drop_rank(change.rank)
        if not self.present:
            self.broken_links.stop()

    def _note_failures(self, failures: Iterable[FailureNoted]) -> None:
        for failure in failures:
            self.commit(failure)

    def _dismiss(self, member: Member) -> list[Effect]:
        """Drop a member of no formed world."""
        self.failure_detector.stop(member)
        text = f"{member} went before it was taken in"
        self.events.add("left", text, self._timers.now, rank=member.rank)
        del self._by_id[member.member_id]
        if member.rank in self.newcomers:
            del self.newcomers[member.rank]
            return self._push_newcomer_count()
        del self.members[member.rank], self.present[member.rank]
        self.gave_up.add(member.rank)
        self._taken_below = min(self._taken_below, member.rank)
        self._members_nbytes -= admission.measure_join(member.join)
        return []

    def _end_if_empty(self, now: float) -> list[Effect]:
        if self.present:
            return []
        refusal = Refusal(
            Status.UNAVAILABLE, f"the last member of job {self.job} is gone: join again"
        )
        ended: list[Effect] = [EndSession(one.session, refusal) for one in self.newcomers.values()]
        for member in list(self.newcomers.values()):
            self._dismiss(member)
        self.events.add("ended", "the last member is gone", self._timers.now, epoch=self.epoch)
        return [*ended, JobEnded(self.job)]

    def push(self, members: Iterable[Member], what: Notification) -> list[Effect]:
        before = self._leavers.flush(self._timers.now)
        return [
            *before,
            *(Push(member.session, what) for member in members if member.is_reachable),
        ]

    # ------------------------------------------------------------ silence

    def on_heard(self, member: Member, now: float, *, probe: int = 0) -> None:
        """Note a sign of life, which may answer a probe."""
        if member.unanswered_since is not None and (probe or now > member.unanswered_since):
            member.unanswered_since = None
            member.probe_answered_at = now
        self.failure_detector.on_heard(member, now)
        member.heard_at = now
        member.process_state = ""

    def open_group(self, member: Member, group: str, ranks: Sequence[int]) -> None:
        """Open a group for a member; the first opening fixes the ranks."""
        is_open = self.groups.get_ranks(group) is not None
        self.commit(GroupOpened(self.job, group, () if is_open else tuple(ranks), member.rank))

    def close_group(self, member: Member, group: str) -> None:
        """Close a group for a member."""
        member.forget_group(group)
        self.commit(GroupClosed(self.job, group, member.rank))
        if self.groups.get_ranks(group) is None:
            self.call_times.forget_group(group)
