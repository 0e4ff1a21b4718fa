"""The membership of one incarnation of a job: a world that forms, runs, and ends.

    forming   members come and go; a rank whose session ends is free again, silently
    running   all ranks are present
    degraded  some are lost or have left; nobody may join any more
    ended     nobody is left

Who comes to an elastic world that runs waits there, a newcomer, until the members let it in: see
`reforms`. From then on the world is as large as its members are.

A member is lost when nothing was heard from it for the heartbeat window and nothing speaks for its
life (see `liveness`), or when its session broke without a Leave: after a grace, or at once where
more is known. Its process may have been seen to be gone, by the coordinator or by a neighbour on
its host; who started it may have told how it ended;
and a link of another member to it may have broken, where nobody can look.

Where links break and both ends are alive, that is ruled upon once for all members.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from allhands_proto.values import CallCancellation, LatenessStatus, Verdict
from allhands_server.machine import limits
from allhands_server.machine.effects import (
    Aborted,
    BrokenLinks,
    CallCancelled,
    Effect,
    EndSession,
    InspectPeer,
    InspectProcess,
    JobEnded,
    Joined,
    LeaveAccepted,
    MemberLeft,
    MemberLost,
    Newcomers,
    Notification,
    OperatorLog,
    Probe,
    Push,
    WorldFormed,
)
from allhands_server.machine.events import Randomness
from allhands_server.machine.formatting import escape, join_names, quote
from allhands_server.machine.member_messages import Heartbeat, Join, Leave
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import ReportExit
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.values import MemberView, Presence
from allhands_server.machine.world import admission
from allhands_server.machine.world.absent_ranks import (
    has_ended,
    judge_lost,
    judge_unreachable,
    make_world_verdict,
    name_call,
)
from allhands_server.machine.world.broken_links import (
    BrokenLinkReports,
    Pair,
    choose_culprits,
    order_pair,
)
from allhands_server.machine.world.clock_sync import ClockSync
from allhands_server.machine.world.failure_detector import FailureDetector
from allhands_server.machine.world.groups import Groups
from allhands_server.machine.world.lateness import LatenessTracker
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.postmortem import Postmortem, limit_report
from allhands_server.machine.world.report_collection import ReportCollections
from allhands_server.machine.world.silent_links import SilentLinkMonitor

WORLD = "world"
"""How the names of groups begin that have all members."""
GRACE = 0.5
"""Seconds from the break of a session to the loss of its member, without other evidence."""
LAST_WORDS = 0.2
"""Seconds in which what a process said before its end may still arrive."""
RULING = 0.3
"""Seconds in which links that broke at one time are reported, and suspects answer."""
BEATS_PER_WINDOW = 5
INTERVAL_MOST = 1.0
"""Seconds between heartbeats, however long the window: who is silent is named within three."""


class World:
    """Who is in it, by rank. Methods take the time and return what is to be done."""

    def __init__(
        self, first: Join, randomness: Randomness, epoch: int, timers: TimerQueue, space: str = ""
    ) -> None:
        self._timers = timers
        self._space = space
        self._secret = randomness.secret
        self._formed_size = 0
        self._probes = 0
        self._suspected: set[int] = set()  # ranks to which a link broke
        self._broken_links = BrokenLinkReports()
        self._ruling_timer: Timer | None = None
        self.job = first.job
        self.incarnation = randomness.incarnation
        self.heartbeat_window = first.heartbeat_window or limits.WINDOW_DEFAULT
        self.epoch = epoch
        self.members: dict[int, Member] = {}
        self.present: dict[int, Member] = {}
        """Those of the members who are neither lost nor have left."""
        self.newcomers: dict[int, Member] = {}
        """Who waits to be let in, by the rank that it would have, in the order of coming."""
        self.unreachable: set[int] = set()
        """Members who are alive, but out of reach for others: no group goes on with them."""
        self.wanted_newcomers = 0
        """Newcomers that the members are waiting for."""
        self.on_change: Callable[[float], list[Effect]] = lambda now: []
        """What else is to be done once somebody came or went."""
        self.groups = Groups()
        self.postmortem = Postmortem(self.groups)
        self.reports = ReportCollections(first.job, self.members, self.present)
        self.silent_links = SilentLinkMonitor(self, timers)
        self.failure_detector = FailureDetector(
            self, timers, is_window_given=first.heartbeat_window > 0
        )
        self._clock_sync = ClockSync()
        self._lateness = LatenessTracker()

    @property
    def heartbeat_interval(self) -> float:
        return min(self.heartbeat_window / BEATS_PER_WINDOW, INTERVAL_MOST)

    @property
    def size(self) -> int:
        """The agreed size; 0 while nobody who is present has brought one."""
        sized = self._find_sized_member()
        return self._formed_size or (sized.join.world_size if sized is not None else 0)

    @property
    def state(self) -> str:
        if not self._formed_size:
            return "forming" if self.members else "empty"
        match len(self.present):
            case 0:
                return "ended"
            case self._formed_size:
                return "running"
            case _:
                return "degraded"

    @property
    def is_forming(self) -> bool:
        return not self._formed_size

    @property
    def is_live(self) -> bool:
        """Whether it runs: whole or degraded."""
        return bool(self._formed_size and self.present)

    def find_member(self, member_id: str) -> Member:
        """Return the member with that identity.

        Raises:
            Refused: there is none, or it is gone.
        """
        for member in self.members.values():
            if member.member_id == member_id:
                if member.is_present:
                    return member
                raise Refused(
                    Status.ABORTED,
                    f"{member} is no member of job {self.job} any more: {member.reason}",
                )
        raise Refused(Status.NOT_FOUND, f"job {self.job} has no member {quote(member_id)}")

    # ------------------------------------------------------------ coming

    def join(
        self, session: int, join: Join, member_id: str, now: float
    ) -> tuple[Member, list[Effect]]:
        """Take in a member; the last one that is missing forms the world.

        Raises:
            Refused: the world would not have it; nothing has changed.
        """
        if self._formed_size and (self._is_elastic or len(self.newcomers) < self.wanted_newcomers):
            return self._add_newcomer(session, join, member_id, now)
        admission.check_size(join, self._find_sized_member())
        if self._formed_size:
            if self.failure_detector.note_joiner(now):
                raise admission.refuse_for_now(join, self.heartbeat_window)
            raise admission.refuse_late_joiner(join, self.present, self._formed_size)
        place = admission.choose_rank(join, self.members)
        effects: list[Effect] = []
        if place.displaced is not None:
            effects += self._displace(place.displaced, join)
        member = Member(member_id, session, place.rank, join, heard_at=now)
        self.members[member.rank] = self.present[member.rank] = member
        self.failure_detector.watch(member)
        effects.append(Push(session, self._make_joined(member)))
        if len(self.members) == self.size:
            effects += self._form(now)
        return member, effects

    @property
    def max_members(self) -> int:
        """How many members it may have; 0: no limit."""
        return max((one.join.max_members for one in self.present.values()), default=0)

    @property
    def _is_elastic(self) -> bool:
        return any(one.join.elastic for one in self.present.values())

    def _add_newcomer(
        self, session: int, join: Join, member_id: str, now: float
    ) -> tuple[Member, list[Effect]]:
        """Let a worker wait for a place in a world that runs."""
        rank = max([*self.members, *self.newcomers, self._formed_size - 1]) + 1
        member = Member(member_id, session, rank, join, heard_at=now)
        self.newcomers[rank] = member
        self.failure_detector.watch(member)
        report = OperatorLog(f"job {self.job}: {member} waits to be taken in")
        introduction = Push(session, self._make_joined(member))
        return member, [introduction, *self._push_newcomer_count(), report, *self.on_change(now)]

    def _push_newcomer_count(self) -> list[Effect]:
        return self.push(self.present.values(), Newcomers(len(self.newcomers)))

    def lose_unreachable(self, ranks: Iterable[int], now: float) -> list[Effect]:
        """Lose those members of a group that others of it cannot reach."""
        effects: list[Effect] = []
        for rank in self.unreachable.intersection(ranks, self.present):
            effects += self.lose(self.present[rank], "other members cannot reach it", now)
        return effects

    def form_group(self, group: str, ranks: Sequence[int], now: float) -> tuple[MemberView, ...]:
        """Open an epoch in which these ranks are a group, newcomers among them.

        Return the group's members in its order. What newcomers are told is in `welcome`.
        """
        for rank in ranks:
            if rank in self.newcomers:
                self.members[rank] = self.present[rank] = self.newcomers.pop(rank)
        self.epoch += 1
        for rank in ranks:
            self.groups.open(group, tuple(ranks), rank)
        if group.startswith(WORLD):
            self._formed_size = len(ranks)
            self.postmortem.clear_failures()
        return tuple(self.members[rank].describe(now) for rank in ranks)

    def push_world_formed(
        self, group: str, members: tuple[MemberView, ...], newcomers: Iterable[int]
    ) -> list[Effect]:
        """Say to newcomers which group they are part of now, to all who still waits."""
        formed = WorldFormed(self.epoch, len(members), members, group)
        told = self.push((self.members[rank] for rank in newcomers), formed)
        report = OperatorLog(
            f"job {self.job}: epoch {self.epoch} opened, {len(members)} members of {group}"
        )
        return [*told, *(self._push_newcomer_count() if told else []), report]

    def _find_sized_member(self) -> Member | None:
        return next((one for one in self.members.values() if one.join.world_size), None)

    def _displace(self, member: Member, claimant: Join) -> list[Effect]:
        self._remove(member)
        refusal = Refusal(
            Status.UNAVAILABLE,
            f"{member} had its rank by assignment, and host {claimant.host}, pid {claimant.pid} "
            "claims it: join again for another",
        )
        return [EndSession(member.session, refusal)]

    def _make_joined(self, member: Member) -> Joined:
        return Joined(
            member_id=member.member_id,
            rank=member.rank,
            world_size=self.size,
            incarnation=self.incarnation,
            secret=self._secret,
            heartbeat_window=self.heartbeat_window,
            heartbeat_interval=self.heartbeat_interval,
            address=member.join.address,
            report_nbytes=limit_report(self.size),
        )

    def _form(self, now: float) -> list[Effect]:
        self._formed_size = len(self.members)
        self.epoch += 1
        members = tuple(member.describe(now) for _, member in sorted(self.members.items()))
        formed = WorldFormed(self.epoch, self._formed_size, members)
        report = f"job {self.job}: epoch {self.epoch} opened, {self._formed_size} members"
        return [*self.push(self.members.values(), formed), OperatorLog(report)]

    # ------------------------------------------------------------ going

    def lose_silent_members(self, verdict: Verdict, now: float) -> list[Effect]:
        """Lose those who are silent though they live, when a call's deadline has passed for them.

        Not those who have been silent for less than the window: they may be back for the next call.
        """
        call = name_call(verdict.operation, verdict.sequence)
        effects: list[Effect] = []
        for one in verdict.absent:
            member = self.present.get(one.rank)
            if member is None or one.state not in ("paused", "stalled"):
                continue
            if (
                member.unanswered_since is not None
                and now - member.heard_at >= self.heartbeat_window
            ):
                silent = f"silent for {now - member.heard_at:.1f} s, past the deadline of {call}"
                effects += self.lose(member, silent, now)
        return effects

    def leave(self, member: Member, leave: Leave, now: float) -> list[Effect]:
        """Let a member go that says so; the others hear what it had completed."""
        member.update_progress(leave.progress, now)
        effects: list[Effect] = [Push(member.session, LeaveAccepted()), EndSession(member.session)]
        if self.is_outside(member):
            return [*effects, *self._remove(member)]
        error = escape(leave.error)[: limits.LONGEST_ERROR]
        traceback = escape(leave.traceback)[-limits.LONGEST_ERROR :]
        self._mark_gone(member, Presence.LEFT, error, now)
        self.postmortem.note_left(member, error, traceback, now)
        if leave.report:
            self.postmortem.keep_report(member, leave.report)
        others = self.present
        if others:
            self.epoch += 1
        left = MemberLeft(
            rank=member.rank,
            host=member.join.host,
            pid=member.join.pid,
            progress=member.get_progress(now),
            error=error,
            epoch=self.epoch,
            traceback=traceback,
            aborts=leave.aborts,
        )
        why = f" because of {quote(error)}" if error else ""
        report = OperatorLog(
            f"job {self.job}: {member} left{why}; epoch {self.epoch}", is_failure=bool(why)
        )
        told = self.push(others.values(), left)
        return [*effects, *told, report, *self.on_change(now), *self._end_if_empty(now)]

    def on_session_broken(self, member: Member, now: float) -> list[Effect]:
        """Note that a member's session is over though it has not left."""
        if self.is_outside(member):
            return self._remove(member)
        member.is_broken = True
        if member.exit_status is not None:
            return self.lose(member, "its session broke", now)
        if member.unanswered_since is not None and now - member.heard_at >= self.heartbeat_window:
            return self.failure_detector.on_session_broken(member, now)
        looking = self.inspect_process(member)
        if member.rank in self._suspected and not (looking or member.join.exit_is_reported):
            return self.lose(member, "its session broke, and a link to it", now)
        self.failure_detector.stop(member)
        # Twice: a process closes its sockets before it is gone.
        member.timer = self._timers.schedule(now + GRACE / 2, partial(self._inspect_again, member))
        return looking

    def _inspect_again(self, member: Member, now: float) -> list[Effect]:
        lose = partial(self.lose, member, "its session broke")
        member.timer = self._timers.schedule(now + GRACE / 2, lose)
        return self.inspect_process(member)

    def on_link_broken(
        self, rank: int, reporter: Member, reason: str, shares_memory: bool, now: float
    ) -> list[Effect]:
        """Weigh a member's word that its link to `rank` broke."""
        suspect = self.members.get(rank)
        if suspect is None or suspect is reporter or not suspect.is_present:
            return []
        self._suspected.add(rank)
        if suspect.is_broken:
            if suspect.join.pid_namespace or suspect.join.exit_is_reported:
                return []  # more will be known in a moment
            return self.lose(suspect, "its session broke, and a link to it", now)
        if not shares_memory:
            self.report_broken_link(
                order_pair(reporter.rank, rank), f"the link broke ({reason})", now
            )
        return self.probe([suspect], now)

    def report_broken_link(self, both: Pair, reason: str, now: float) -> None:
        """Let it be ruled soon on two members, once both are known to be alive."""
        if self._broken_links.add(*both, reason):
            self._schedule_ruling(now)

    def is_announced_broken(self, both: Pair) -> bool:
        """Say whether all members have been told that two cannot reach each other."""
        return self._broken_links.is_announced(both)

    def discard_broken_link(self, both: Pair) -> None:
        self._broken_links.discard(both)

    def push_to_present(self, what: Notification) -> list[Effect]:
        """Push something to all members that are there."""
        return self.push(self.present.values(), what)

    def _schedule_ruling(self, now: float) -> None:
        if self._ruling_timer is None and self._formed_size:
            self._ruling_timer = self._timers.schedule(now + RULING, self._announce_broken_links)

    def _announce_broken_links(self, now: float) -> list[Effect]:
        """Say who cannot reach one another, of those who are known to be alive."""
        self._ruling_timer = None
        self._broken_links.drop_ranks(self.members.keys() - self.present.keys())
        alive = {
            rank
            for rank, one in self.present.items()
            if one.is_reachable and one.unanswered_since is None
        }
        pairs = [both for both in self._broken_links.open_pairs if alive.issuperset(both)]
        reasons = self._broken_links.announce(pairs)
        self.silent_links.discard(pairs)
        if self._broken_links.open_pairs:
            self._schedule_ruling(now)  # until they answer, or are lost
        if not pairs:
            return []
        found = []
        for rank, others in choose_culprits(pairs).items():
            self.unreachable.add(rank)
            why = sorted({reasons[both] for both in pairs if rank in both})
            told = join_names(why, quoted=False)
            found.append(
                judge_unreachable(self.members[rank], [self.members[at] for at in others], told)
            )
        verdict = make_world_verdict(found)
        report = OperatorLog(f"job {self.job}: {verdict.text}")
        return [*self.push(self.present.values(), BrokenLinks(verdict, tuple(pairs))), report]

    def on_process_exit(self, exit: ReportExit, now: float) -> tuple[bool, list[Effect]]:
        """Take in how a process ended; say whether it is one of the members."""
        for member in self.members.values():
            join = member.join
            if (join.pid_namespace, join.pid, join.start_ticks) == (
                exit.pid_namespace,
                exit.pid,
                exit.start_ticks,
            ):
                member.exit_status = exit.status
                return True, self._judge_exit(member, now)
        return False, []

    def _judge_exit(self, member: Member, now: float) -> list[Effect]:
        if member.presence is Presence.LOST:
            member.loss = judge_lost(member, member.reason, now)
        if not member.is_present or not self._formed_size:
            return []
        if member.is_broken:
            return self.lose(member, "its session broke", now)
        self.failure_detector.stop(member)
        lose = partial(self.lose, member, "its process ended")
        member.timer = self._timers.schedule(now + LAST_WORDS, lose)
        return []

    # ------------------------------------------------------------ giving up

    def abort(
        self, group: str, by: str, reason: str, now: float, but: Member | None = None
    ) -> list[Effect]:
        """Release the members of a group, or all."""
        by, reason = escape(by), escape(reason)
        if not group:
            self.postmortem.note_aborted(by, reason, now)
        ranks = set(self.groups.get_ranks(group) or ()) if group else self.members.keys()
        told = [one for rank, one in self.present.items() if rank in ranks and one is not but]
        what = f"group {quote(group)} of job {self.job}" if group else f"job {self.job}"
        report = OperatorLog(f"{what} was aborted by {by}: {quote(reason)}", is_failure=True)
        return [*self.push(told, Aborted(group, by, reason[: limits.LONGEST_ERROR])), report]

    def push_call_cancelled(
        self, group: str, sequence: int, given: CallCancellation
    ) -> list[Effect]:
        """Release the members that may be in a call."""
        ranks = self.groups.get_ranks(group) or ()
        told = [self.present[rank] for rank in set(ranks) if rank in self.present]
        notice = CallCancelled(group, sequence, given.rank, given.by, given.reason)
        return self.push([one for one in told if one.rank != given.rank], notice)

    def dismiss(self, refusal: Refusal) -> list[Effect]:
        """End the sessions of a world that is not formed and will not be."""
        assert not self._formed_size
        ended: list[Effect] = [EndSession(one.session, refusal) for one in self.members.values()]
        for member in list(self.members.values()):
            self._remove(member)
        return ended

    def disband(self, why: str, now: float) -> list[Effect]:
        """End the sessions of all members and newcomers, whatever they are doing."""
        refusal = Refusal(Status.ABORTED, why)
        if not self._formed_size:
            return self.dismiss(refusal)
        if not self.present:
            return []
        ended: list[Effect] = []
        for member in [*self.present.values()]:
            if not member.is_broken:
                ended.append(EndSession(member.session, refusal))
            self._mark_gone(member, Presence.LOST, why, now)
        return [*ended, *self.on_change(now), *self._end_if_empty(now)]

    def lose_broken_members(self, now: float) -> list[Effect]:
        """Where nobody's session is alive any more, do not wait for the grace to be over."""
        if not self.is_live or any(one.is_reachable for one in self.members.values()):
            return []
        lost = [self.lose(one, "its session broke", now) for one in [*self.present.values()]]
        return [effect for effects in lost for effect in effects]

    def lose(self, member: Member, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not member.is_broken:
            text = f"job {self.job} counts {member} as lost: {reason}"
            effects.append(EndSession(member.session, Refusal(Status.ABORTED, text)))
        if self.is_outside(member):
            return [*effects, *self._remove(member)]
        member.loss = judge_lost(member, reason, now)
        self._mark_gone(member, Presence.LOST, reason, now)
        self.postmortem.note_lost(member, now)
        self.epoch += 1
        lost = MemberLost(
            rank=member.rank,
            host=member.join.host,
            pid=member.join.pid,
            reason=reason,
            epoch=self.epoch,
            verdict=make_world_verdict([member.loss]),
        )
        report = OperatorLog(
            f"job {self.job}: {member} is lost: {reason}; epoch {self.epoch}", is_failure=True
        )
        others = self.push(self.present.values(), lost)
        return [*effects, *others, report, *self.on_change(now), *self._end_if_empty(now)]

    def _mark_gone(self, member: Member, presence: Presence, reason: str, now: float) -> None:
        self.failure_detector.stop(member)
        member.presence = presence
        member.gone_at = now
        member.reason = reason
        del self.present[member.rank]
        self.silent_links.drop_rank(member.rank)
        if not self.present and self._ruling_timer is not None:
            self._ruling_timer.cancel()

    def is_outside(self, member: Member) -> bool:
        """Whether a member is in no world that has formed: its going concerns nobody."""
        return not self._formed_size or member.rank in self.newcomers

    def _remove(self, member: Member) -> list[Effect]:
        self.failure_detector.stop(member)
        if member.rank in self.newcomers:
            del self.newcomers[member.rank]
            return self._push_newcomer_count()
        del self.members[member.rank], self.present[member.rank]
        return []

    def _end_if_empty(self, now: float) -> list[Effect]:
        if self.present:
            return []
        self.postmortem.ended_at = now
        refusal = Refusal(
            Status.UNAVAILABLE, f"the last member of job {self.job} is gone: join again"
        )
        ended: list[Effect] = [EndSession(one.session, refusal) for one in self.newcomers.values()]
        for member in list(self.newcomers.values()):
            self._remove(member)
        return [*ended, JobEnded(self.job)]

    def push(self, members: Iterable[Member], what: Notification) -> list[Effect]:
        return [Push(member.session, what) for member in members if member.is_reachable]

    # ------------------------------------------------------------ silence

    def on_heard(self, member: Member, now: float, *, probe: int = 0) -> list[Effect]:
        """Note a sign of life; an answer to a probe counts as one even in the same instant."""
        if member.unanswered_since is not None and (probe or now > member.unanswered_since):
            member.unanswered_since = None
            member.probe_answered_at = now
        effects = self.failure_detector.on_heard(member, now)
        member.heard_at = now
        member.process_state = ""
        return effects

    def on_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> None:
        """Learn from a heartbeat how a member's clock goes, and when it began its calls."""
        if not 0 < beat.sent_at < limits.LATEST_CLOCK:
            return
        self._clock_sync.add_sample(member.rank, member.join.host, beat.sent_at, now)
        for one in beat.call_starts:
            if member.rank in (self.groups.get_ranks(one.group) or ()):
                self._lateness.add_starts(one.group, member.rank, one.calls)

    def estimate_offset(self, rank: int) -> float | None:
        """Return what to add to a member's clock to get this one's; None: unknown."""
        return self._clock_sync.estimate_offset(rank, self.members[rank].join.host)

    def describe_members(self, now: float) -> tuple[MemberView, ...]:
        """Describe all members, by rank."""
        late: dict[int, list[LatenessStatus]] = {}
        for group in self.groups.describe():
            ranks = [rank for rank in group.ranks if rank in self.present]
            for rank, lateness in self._lateness.measure(
                group.group, ranks, self.estimate_offset
            ).items():
                late.setdefault(rank, []).append(lateness)
        return tuple(
            replace(
                member.describe(now),
                clock_offset=self.estimate_offset(rank),
                lateness=tuple(late.get(rank, ())),
            )
            for rank, member in sorted(self.members.items())
        )

    def close_group(self, member: Member, group: str) -> None:
        """Note that a member has a group open no more."""
        member.forget_group(group)
        self.groups.close(group, member.rank, self.present)
        if self.groups.get_ranks(group) is None:
            self._lateness.forget(group)

    def inspect_process(self, member: Member, *, stack: bool = False) -> list[Effect]:
        """Have the process of a member looked at, by somebody who can; none: nobody can.

        With `stack` it is to say where its program is, unless that is known.
        """
        join = member.join
        if not (join.pid_namespace and join.start_ticks):
            return []
        channel = join.stack_channel if stack and not member.stack else ""
        if join.pid_namespace == self._space:
            return [InspectProcess(self.job, member.member_id, join.pid, join.start_ticks, channel)]
        for one in self.present.values():
            answers = one.is_reachable and one.unanswered_since is None
            if one is not member and answers and one.join.pid_namespace == join.pid_namespace:
                asked = InspectPeer(member.member_id, join.pid, join.start_ticks, channel)
                return [Push(one.session, asked)]
        return []

    def on_process_inspected(
        self, member_id: str, found: str, now: float, stack: str = ""
    ) -> list[Effect]:
        """Take in how the process of a member looked, and where its program was."""
        member = next((one for one in self.present.values() if one.member_id == member_id), None)
        if member is None or not self._formed_size:
            return []
        is_silent = member.is_broken or member.unanswered_since is not None
        member.process_state = found if is_silent else ""
        member.inspected_at = now
        if stack and is_silent:
            member.stack = stack[-limits.LONGEST_STACK :]
        if not has_ended(member.process_state) or member.join.exit_is_reported:
            return self.failure_detector.on_inspected(member, now) if is_silent and stack else []
        return self.lose(member, "its session broke" if member.is_broken else "it is gone", now)

    def probe(self, members: Iterable[Member], now: float, *, stack: bool = False) -> list[Effect]:
        """Ask members to say at once where they are."""
        effects: list[Effect] = []
        for member in members:
            if member.is_reachable:
                self._probes += 1
                if member.unanswered_since is None:
                    member.unanswered_since = now
                if stack:
                    member.stack = ""
                effects.append(Push(member.session, Probe(self._probes, stack)))
        return effects
