"""Silent members of one world: probed, looked into, named to the others, and lost or kept.

Silence is no proof of death. Where it lasts, evidence of life is collected: the process as it is
seen on its host, the acknowledgements of its host's kernel for what its session was sent, and
answers that peers get from it over links. A member that is known to live is named, as stalled,
paused, or unreachable from the coordinator, and stays; one that nothing speaks for is lost when
the heartbeat window is over. A window that the user gave ends in the loss of both.

Where no member of a world is heard, and nothing speaks for any, it is the coordinator that is cut
off: nobody is judged, and after the outage each member has a fresh window.
"""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from allhands_server.machine.effects import (
    CheckConnection,
    Condition,
    Effect,
    Notification,
    Report,
    Vouch,
)
from allhands_server.machine.timers import Agenda
from allhands_server.machine.world.absent_ranks import has_ended, judge_silent
from allhands_server.machine.world.member import NEVER, Member

PROBE_AFTER = 2.0
"""Heartbeat intervals of silence after which a member is probed: it may beat only when asked."""
_COLLECT_IN = 0.3
"""Intervals from the probe until evidence of its life is collected."""
_JUDGE_IN = 0.3
"""The same, from there until it is named: within 3 s of its last heartbeat, as these are usual."""
LOOKS_APART = 10.0
"""Seconds between two looks at a member that has been silent for long, at most."""
OUTAGE_MOST = 60.0
"""Seconds, or as many windows as here are of the usual one, for which a world may be silent."""
_USUAL_WINDOW = 5.0
_VOUCHERS = 8
"""Members that are asked for what they hear of a silent one."""


class World(Protocol):
    """What is needed of the world whose members are watched."""

    job: str
    window: float
    present: dict[int, Member]

    @property
    def interval(self) -> float: ...

    def probe(
        self, members: Iterable[Member], now: float, *, stack: bool = False
    ) -> list[Effect]: ...

    def look(self, member: Member, *, stack: bool = False) -> list[Effect]:
        """Have the process of a member looked at, by somebody who can."""

    def lose(self, member: Member, reason: str, now: float) -> list[Effect]: ...

    def tell(self, members: Iterable[Member], what: Notification) -> list[Effect]: ...

    def is_outside(self, member: Member) -> bool:
        """Whether a member is in no world that has formed."""


class Liveness:
    """The watch over the members of one world; each is watched from `watch` to `stop`."""

    def __init__(self, world: World, agenda: Agenda, *, is_window_given: bool) -> None:
        self._world = world
        self._agenda = agenda
        self._is_window_given = is_window_given
        self._latest = 0.0
        """When any member was heard last."""
        self._fresh_until = 0.0
        """No member is judged before; set where an outage is over."""
        self._is_disturbed = False
        """A newcomer has reached the coordinator though no member does: no outage any more."""

    def watch(self, member: Member) -> None:
        """Begin to watch a member that was just heard, or go on."""
        self._latest = max(self._latest, member.heard)
        due = member.heard + PROBE_AFTER * self._world.interval
        member.watch = self._agenda.at(due, partial(self._suspect, member))

    def stop(self, member: Member) -> None:
        """Watch a member no more. Idempotent."""
        if member.watch is not None:
            member.watch.cancel()

    def heard(self, member: Member, now: float) -> list[Effect]:
        """Take in a sign of life; tell the others where they thought otherwise."""
        gap, self._latest = now - self._latest, max(self._latest, now)
        if gap > self._world.window:
            self._fresh_until = max(self._fresh_until, now + max(gap, self._world.window))
            self._is_disturbed = False
        member.acknowledged = member.answered = member.collected = NEVER
        member.had_answered = False
        if member.condition is None:
            return []
        seconds = now - member.heard
        member.condition = None
        report = Report(f"job {self._world.job}: {member} is heard again, after {seconds:.1f} s")
        return [report, *self._tell(member, Condition(member.rank, None, seconds))]

    def disturb(self, now: float) -> bool:
        """Learn that a worker reaches the coordinator; say whether no member has for a window.

        Then the members that are not heard within one more are lost.
        """
        if now - self._latest <= self._world.window:
            return False
        if not self._is_disturbed:
            self._is_disturbed = True
            self._fresh_until = max(self._fresh_until, now + self._world.window)
        return True

    def broke(self, member: Member, now: float) -> list[Effect]:
        """Learn that the session broke of a member that was silent for long.

        Its process has ended, or it was out of reach for too long: that is seen in a moment.
        """
        self.stop(member)
        return self._collect(member, member.heard, now, now)

    def seen(self, member: Member, now: float) -> list[Effect]:
        """Learn that more is known of a silent member's process; tell it if it was named before."""
        return [] if member.condition is None else self._name(member, now)

    def acknowledged(self, member: Member, now: float) -> None:
        """Take in that the host of a member acknowledges what its session is sent."""
        if member.unanswered is not None:
            member.acknowledged = now

    def vouched(self, member: Member, now: float) -> list[Effect]:
        """Take in that a peer has an answer of a member over a link."""
        if member.unanswered is None and not member.is_broken:
            return []
        if member.answered < member.collected:
            member.had_answered = member.answered > NEVER
        member.answered = now
        return self._name(member, now) if member.condition is not None else []

    # ------------------------------------------------------------ by the time of silence

    def _suspect(self, member: Member, now: float) -> list[Effect]:
        """Probe a member that has been silent for long, and judge it a moment later."""
        interval = self._world.interval
        if now < member.heard + PROBE_AFTER * interval:
            self.watch(member)
            return []
        collect = partial(self._collect, member, member.heard, now)
        member.watch = self._agenda.at(now + _COLLECT_IN * interval, collect)
        return self._world.probe([member], now, stack=True)

    def _collect(self, member: Member, heard: float, probed: float, now: float) -> list[Effect]:
        """Ask for evidence of life of a member that has not answered."""
        if member.heard > heard:
            self.watch(member)
            return []
        judge = partial(self._judge, member, heard, probed)
        member.watch = self._agenda.at(now + _JUDGE_IN * self._world.interval, judge)
        self._forget_old_evidence(member, now)
        return self.collect(member)

    def _forget_old_evidence(self, member: Member, now: float) -> None:
        """Let evidence count until it has been asked for twice: an answer may be late once."""
        before, member.collected = member.collected, now
        if member.seen < before:
            member.sight = ""
        if member.acknowledged < before:
            member.acknowledged = NEVER
        if member.answered < before:
            member.answered, member.had_answered = NEVER, False

    def collect(self, member: Member) -> list[Effect]:
        """Ask all who may know whether a member lives."""
        effects = self._world.look(member, stack=True)
        if not member.is_broken:
            effects.append(CheckConnection(self._world.job, member.member_id, member.session))
        hearing = (
            one
            for one in self._world.present.values()
            if one is not member and one.is_reachable and one.unanswered is None
        )
        nearest = sorted(hearing, key=lambda one: abs(one.rank - member.rank))[:_VOUCHERS]
        return [*effects, *self._world.tell(nearest, Vouch(member.rank))]

    def _judge(self, member: Member, heard: float, probed: float, now: float) -> list[Effect]:
        if member.heard > heard:
            self.watch(member)
            return []
        interval = self._world.interval
        if now - probed > (_COLLECT_IN + _JUDGE_IN + 1) * interval:
            # The coordinator itself was held up, and what members said meanwhile may still lie
            # in its sockets: nobody is judged for its own absence.
            return self._suspect(member, now)
        lives = _lives(member)
        due = member.heard + self._world.window
        if not member.is_broken:  # else nothing more will come
            due = max(due, self._fresh_until)
        if now >= due and self._is_over(member, lives, now):
            silent = f"no heartbeat for {now - member.heard:.1f} s"
            reason = "its session broke" if member.is_broken else silent
            return self._world.lose(member, reason, now)
        # A loss comes when it is due, and with evidence that was asked for just before.
        ahead = (_COLLECT_IN + _JUDGE_IN) * interval
        apart = max(interval, min(now - member.heard, LOOKS_APART))
        following = now + apart - ahead
        if now < due - ahead < following + ahead:
            following = due - ahead
        member.watch = self._agenda.at(following, partial(self._suspect, member))
        return self._name(member, now) if lives else []

    def _is_over(self, member: Member, lives: bool, now: float) -> bool:
        """Say whether a member whose window is over is lost."""
        is_held = not (member.is_broken or self._world.is_outside(member))
        if is_held and self._is_outage(now):
            return False
        return self._is_window_given or not lives

    def _is_outage(self, now: float) -> bool:
        silent = now - self._latest
        if silent < self._world.window or self._is_disturbed:
            return False
        most = OUTAGE_MOST * max(1.0, self._world.window / _USUAL_WINDOW)
        return silent < most and not any(map(_lives, self._world.present.values()))

    # ------------------------------------------------------------ naming

    def _name(self, member: Member, now: float) -> list[Effect]:
        """Tell the others what a silent member is; again where that has changed."""
        if self._world.is_outside(member):
            return []
        found = judge_silent(member, now)
        known = member.condition
        if known is not None:
            if known.state is found.state and (known.stack or not found.stack):
                return []
            if (
                member.answered > NEVER
                and known.state is not found.state
                and not member.had_answered
            ):
                return []  # an interpreter that is held up may come to its senses for an instant
        member.condition = found
        report = Report(f"job {self._world.job}: {found.text}")
        return [report, *self._tell(member, Condition(member.rank, found, now - member.heard))]

    def _tell(self, member: Member, condition: Condition) -> list[Effect]:
        others = (one for one in self._world.present.values() if one is not member)
        return self._world.tell(others, condition)


def _lives(member: Member) -> bool:
    """Say whether what was collected last shows that a silent member lives."""
    if member.sight:
        return not has_ended(member.sight)
    return max(member.acknowledged, member.answered) > NEVER
