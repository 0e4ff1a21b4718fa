"""The membership of one incarnation of a job: a world that forms, runs, and ends.

    forming   members come and go; a rank whose session ends is free again, silently
    running   all ranks are present
    degraded  some are lost or have left; nobody may join any more
    ended     nobody is left

A member is lost when nothing was heard from it for the heartbeat window, or when its session broke
without a Leave: after a grace, or at once where another member's link to it broke as well.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from allhands_server.machine import admission, limits, wording
from allhands_server.machine.agenda import Agenda
from allhands_server.machine.clocks import Clocks
from allhands_server.machine.effects import (
    Effect,
    End,
    JobEnded,
    Joined,
    LeaveAccepted,
    MemberLeft,
    MemberLost,
    Notification,
    Probe,
    Push,
    Report,
    WorldFormed,
)
from allhands_server.machine.events import Fresh, Heartbeat, Join, Leave
from allhands_server.machine.groups import Groups
from allhands_server.machine.member import Member
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.reports import Reports
from allhands_server.machine.skew import Skew
from allhands_server.machine.values import Lateness, MemberView, Presence

GRACE = 0.5
"""Seconds from the break of a session to the loss of its member, without other evidence."""
BEATS_PER_WINDOW = 5
_PROBE_AFTER = 0.6
"""Part of the window after which a silent member is probed: it may beat only when asked."""


class World:
    """Who is in it, by rank. Methods take the time and return what is to be done."""

    def __init__(self, first: Join, fresh: Fresh, epoch: int, agenda: Agenda) -> None:
        self._agenda = agenda
        self._secret = fresh.secret
        self._formed_size = 0
        self._probes = 0
        self._suspected: set[int] = set()  # ranks to which a link broke
        self.job = first.job
        self.incarnation = fresh.incarnation
        self.window = first.heartbeat_window or limits.WINDOW_DEFAULT
        self.epoch = epoch
        self.members: dict[int, Member] = {}
        self.present: dict[int, Member] = {}
        """Those of the members who are neither lost nor have left."""
        self.groups = Groups()
        self.reports = Reports(self)
        self._clocks = Clocks()
        self._skew = Skew()

    @property
    def interval(self) -> float:
        return self.window / BEATS_PER_WINDOW

    @property
    def size(self) -> int:
        """The agreed size; 0 while nobody who is present has brought one."""
        sized = self._sized()
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
    def is_live(self) -> bool:
        """Whether it runs: whole or degraded."""
        return bool(self._formed_size and self.present)

    # ------------------------------------------------------------ coming

    def join(
        self, session: int, join: Join, member_id: str, now: float
    ) -> tuple[Member, list[Effect]]:
        """Take in a member; the last one that is missing forms the world.

        Raises:
            Refused: the world would not have it; nothing has changed.
        """
        admission.check_size(join, self._sized())
        if self._formed_size:
            raise admission.too_late(join, self.present, self._formed_size)
        place = admission.find_place(join, self.members)
        effects: list[Effect] = []
        if place.displaced is not None:
            effects += self._displace(place.displaced, join)
        member = Member(member_id, session, place.rank, join, heard=now)
        self.members[member.rank] = self.present[member.rank] = member
        self._watch(member)
        effects.append(Push(session, self._introduction(member)))
        if len(self.members) == self.size:
            effects += self._form(now)
        return member, effects

    def _sized(self) -> Member | None:
        return next((one for one in self.members.values() if one.join.world_size), None)

    def _displace(self, member: Member, claimant: Join) -> list[Effect]:
        self._remove(member)
        refusal = Refusal(
            Status.UNAVAILABLE,
            f"{member} had its rank by assignment, and host {claimant.host}, pid {claimant.pid} "
            "claims it: join again for another",
        )
        return [End(member.session, refusal)]

    def _introduction(self, member: Member) -> Joined:
        return Joined(
            member_id=member.member_id,
            rank=member.rank,
            world_size=self.size,
            incarnation=self.incarnation,
            secret=self._secret,
            heartbeat_window=self.window,
            heartbeat_interval=self.interval,
            address=member.join.address,
        )

    def _form(self, now: float) -> list[Effect]:
        self._formed_size = len(self.members)
        self.epoch += 1
        members = tuple(member.view(now) for _, member in sorted(self.members.items()))
        formed = WorldFormed(self.epoch, self._formed_size, members)
        report = f"job {self.job}: epoch {self.epoch} opened, {self._formed_size} members"
        return [*self._tell(self.members.values(), formed), Report(report)]

    # ------------------------------------------------------------ going

    def leave(self, member: Member, leave: Leave, now: float) -> list[Effect]:
        """Let a member go that says so; the others hear what it had completed."""
        member.learn(leave.progress, now)
        effects: list[Effect] = [Push(member.session, LeaveAccepted()), End(member.session)]
        if not self._formed_size:
            self._remove(member)
            return effects
        error = leave.error[: limits.LONGEST_ERROR]
        self._gone(member, Presence.LEFT, error)
        others = self.present
        if others:
            self.epoch += 1
        left = MemberLeft(
            rank=member.rank,
            host=member.join.host,
            pid=member.join.pid,
            progress=member.progress(now),
            error=error,
            epoch=self.epoch,
        )
        why = f" because of {wording.short(error)}" if error else ""
        report = Report(f"job {self.job}: {member} left{why}; epoch {self.epoch}")
        return [*effects, *self._tell(others.values(), left), report, *self._maybe_ended()]

    def broke(self, member: Member, now: float) -> list[Effect]:
        """Note that a member's session is over though it has not left."""
        if not self._formed_size:
            self._remove(member)
            return []
        member.is_broken = True
        if member.rank in self._suspected:
            return self._lose(member, "its session broke, and a link to it", now)
        self._stop_watching(member)
        lose = partial(self._lose, member, "its session broke")
        member.watch = self._agenda.at(now + GRACE, lose)
        return []

    def link_broke(self, rank: int, reporter: Member, now: float) -> list[Effect]:
        """Weigh a member's word that its link to `rank` broke."""
        suspect = self.members.get(rank)
        if suspect is None or suspect is reporter or not suspect.is_present:
            return []
        self._suspected.add(rank)
        if suspect.is_broken:
            return self._lose(suspect, "its session broke, and a link to it", now)
        return self.probe([suspect], now)

    def dismiss(self, refusal: Refusal) -> list[Effect]:
        """End the sessions of a world that is not formed and will not be."""
        assert not self._formed_size
        ended: list[Effect] = [End(one.session, refusal) for one in self.members.values()]
        for member in list(self.members.values()):
            self._remove(member)
        return ended

    def abandon(self, now: float) -> list[Effect]:
        """Where nobody's session is alive any more, do not wait for the grace to be over."""
        if not self.is_live or any(one.is_reachable for one in self.members.values()):
            return []
        lost = [self._lose(one, "its session broke", now) for one in [*self.present.values()]]
        return [effect for effects in lost for effect in effects]

    def _lose(self, member: Member, reason: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not member.is_broken:
            text = f"job {self.job} counts {member} as lost: {reason}"
            effects.append(End(member.session, Refusal(Status.ABORTED, text)))
        if not self._formed_size:
            self._remove(member)
            return effects
        self._gone(member, Presence.LOST, reason)
        self.epoch += 1
        lost = MemberLost(member.rank, member.join.host, member.join.pid, reason, self.epoch)
        report = Report(f"job {self.job}: {member} is lost: {reason}; epoch {self.epoch}")
        others = self._tell(self.present.values(), lost)
        return [*effects, *others, report, *self._maybe_ended()]

    def _gone(self, member: Member, presence: Presence, reason: str) -> None:
        self._stop_watching(member)
        member.presence = presence
        member.reason = reason
        del self.present[member.rank]

    def _remove(self, member: Member) -> None:
        self._stop_watching(member)
        del self.members[member.rank], self.present[member.rank]

    def _maybe_ended(self) -> list[Effect]:
        return [] if self.present else [JobEnded(self.job)]

    def _tell(self, members: Iterable[Member], what: Notification) -> list[Effect]:
        return [Push(member.session, what) for member in members if member.is_reachable]

    # ------------------------------------------------------------ silence

    def heard(self, member: Member, now: float, *, probe: int = 0) -> None:
        """Note a sign of life; an answer to a probe counts as one even in the same instant."""
        if member.unanswered is not None and (probe or now > member.unanswered):
            member.unanswered = None
        member.heard = now

    def clocked(self, member: Member, beat: Heartbeat, now: float) -> None:
        """Learn from a heartbeat how a member's clock goes, and when it began its calls."""
        if not 0 < beat.sent < limits.LATEST_CLOCK:
            return
        self._clocks.heard(member.rank, member.join.host, beat.sent, now)
        for one in beat.begun:
            if member.rank in (self.groups.ranks_of(one.group) or ()):
                self._skew.learn(one.group, member.rank, one.calls)

    def offset(self, rank: int) -> float | None:
        """Return what to add to a member's clock to get this one's; None: unknown."""
        return self._clocks.offset(rank, self.members[rank].join.host)

    def views(self, now: float) -> tuple[MemberView, ...]:
        """Describe all members, by rank."""
        late: dict[int, list[Lateness]] = {}
        for group in self.groups.view():
            ranks = [rank for rank in group.ranks if rank in self.present]
            for rank, lateness in self._skew.of(group.group, ranks, self.offset).items():
                late.setdefault(rank, []).append(lateness)
        return tuple(
            replace(
                member.view(now),
                clock_offset=self.offset(rank),
                lateness=tuple(late.get(rank, ())),
            )
            for rank, member in sorted(self.members.items())
        )

    def close_group(self, member: Member, group: str) -> None:
        """Note that a member has a group open no more."""
        member.forget(group)
        self.groups.close(group, member.rank, self.present)
        if self.groups.ranks_of(group) is None:
            self._skew.forget(group)

    def probe(self, members: Iterable[Member], now: float) -> list[Effect]:
        """Ask members to say at once where they are."""
        effects: list[Effect] = []
        for member in members:
            if member.is_reachable:
                self._probes += 1
                if member.unanswered is None:
                    member.unanswered = now
                effects.append(Push(member.session, Probe(self._probes)))
        return effects

    def _watch(self, member: Member) -> None:
        due = member.heard + _PROBE_AFTER * self.window
        member.watch = self._agenda.at(due, partial(self._suspect, member))

    def _stop_watching(self, member: Member) -> None:
        if member.watch is not None:
            member.watch.cancel()

    def _suspect(self, member: Member, now: float) -> list[Effect]:
        if now < member.heard + _PROBE_AFTER * self.window:
            self._watch(member)
            return []
        # The probe gets time for its answer, also where this very look came late.
        due = max(member.heard + self.window, now + self.interval)
        member.watch = self._agenda.at(due, partial(self._judge, member, member.heard, due))
        return self.probe([member], now)

    def _judge(self, member: Member, heard: float, due: float, now: float) -> list[Effect]:
        if member.heard > heard:
            self._watch(member)
            return []
        if now - due > self.interval:
            # The coordinator itself was held up, and what members said meanwhile may still lie
            # in its sockets: nobody is judged for its own absence.
            return self._suspect(member, now)
        return self._lose(member, f"no heartbeat for {now - member.heard:.1f} s", now)
