"""Failure detector: probes silent members, names the condition, and loses the dead.

Silence is no proof of death. While it lasts, evidence of life is requested: the state of the
process, TCP acknowledgements by its host's kernel, and answers to peers over links (SWIM's
indirect probe). A member with evidence of life is announced as stalled, paused or unreachable, and
stays; a member without is lost at the end of the heartbeat window. With a window chosen by the
user both are lost.

Members that fall silent at nearly one time are probed and judged together. While the coordinator
itself is late, what members said may lie unread in its sockets: nobody is judged before it has been
punctual for a moment.

If no member of a world is heard and there is no evidence for any, the coordinator itself is cut
off: no member is judged, and each has a fresh window after the outage.
"""

from collections.abc import Callable, Iterator
from functools import partial

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.verdicts import Verdict
from allhands_server.machine.effects import CheckConnection, Effect, IndirectProbe
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.absent_ranks import has_ended, judge_silent, name_call
from allhands_server.machine.world.conditions import ConditionAnnouncer
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world.heartbeats import HeartbeatQueue
from allhands_server.machine.world.member import NEVER, Member
from allhands_server.machine.world.prober import Prober

PROBE_AFTER = 2.0
"""Heartbeat intervals of silence after which a member is probed."""
_GATHER_IN = 0.1
"""Heartbeat intervals between two probes of silent members, at least."""
_COLLECT_IN = 0.3
"""Heartbeat intervals from the probe to the request for evidence."""
_JUDGE_IN = 0.3
"""The same, from there to the announcement: in all within 3 s of the last heartbeat."""
_LATE = 0.1
"""Heartbeat intervals by which a coordinator is late that judges nobody."""
_PUNCTUAL_FOR = 0.25
"""Heartbeat intervals of punctuality in which what was received is read."""
_POSTPONE_BY = 0.3
"""Heartbeat intervals for which a late coordinator postpones a judgement."""
_POSTPONED_MOST = 10.0
"""The same for a coordinator that stays late."""
PROBE_PERIOD_MOST = 10.0
"""Seconds between two probes of a long silent member, at most."""
OUTAGE_MOST = 60.0
"""Longest outage in seconds at the usual window; longer in proportion to longer windows."""
_USUAL_WINDOW = 5.0
_INDIRECT_PROBES = 8
"""Number of peers asked about a silent member."""
_NEAR = 64
"""Distance in ranks within which these are looked for."""


@dataclass(slots=True, eq=False)
class _Suspicion:
    """Members under suspicion, to be judged together."""

    members: tuple[Member, ...]
    probed_at: float


class FailureDetector:
    """Watch over the members of one world, each from `watch` to `stop`."""

    def __init__(
        self,
        world: WorldContext,
        prober: Prober,
        conditions: ConditionAnnouncer,
        timers: TimerQueue,
        *,
        is_window_given: bool,
    ) -> None:
        self._world = world
        self._prober = prober
        self._conditions = conditions
        self._timers = timers
        self._is_window_given = is_window_given
        self._heard = HeartbeatQueue(
            timers, lambda: PROBE_AFTER * world.heartbeat_interval, self._suspect
        )
        self._gathered: dict[Member, None] = {}
        """Silent members, to be suspected together."""
        self._gather_timer: Timer | None = None
        self._suspected_at = NEVER
        self._suspicions: dict[Member, _Suspicion] = {}
        self._silent: dict[Member, Timer] = {}
        """Members that have been judged, each with the time of its next suspicion."""
        self._last_heard = 0.0
        """Time of the last sign of life of any member."""
        self._no_loss_before = 0.0
        """End of the fresh windows after an outage."""
        self._has_joiner = False
        """A worker reaches the coordinator though no member does: the outage is over."""

    def watch(self, member: Member, now: float) -> None:
        """Start or restart the watch over a member heard now."""
        self._last_heard = max(self._last_heard, now)
        self._heard.add(member, now)

    def stop(self, member: Member) -> None:
        """End the watch over a member, and its timer. Idempotent."""
        self._heard.discard(member)
        self._drop_suspicion(member)
        if member.timer is not None:
            member.timer.cancel()

    def _drop_suspicion(self, member: Member) -> bool:
        """Suspect a member no more; return whether it was."""
        timer = self._silent.pop(member, None)
        if timer is not None:
            timer.cancel()
        was_suspected = self._suspicions.pop(member, None) is not None
        was_gathered = member in self._gathered
        self._gathered.pop(member, None)
        return timer is not None or was_suspected or was_gathered

    def on_heard(self, member: Member, now: float) -> None:
        """Note a sign of life; notify the world if the member counted as silent."""
        gap, self._last_heard = now - self._last_heard, max(self._last_heard, now)
        if gap > self._world.heartbeat_window:
            self._no_loss_before = max(
                self._no_loss_before, now + max(gap, self._world.heartbeat_window)
            )
            self._has_joiner = False
        if member in self._heard or self._drop_suspicion(member):
            self._heard.add(member, now)
        member.acknowledged_at = member.peer_heard_at = member.evidence_requested_at = NEVER
        member.was_peer_heard = False
        if member.condition is not None:
            member.condition = None
            self._conditions.note(member, None, now - member.heard_at, now)

    def note_joiner(self, now: float) -> bool:
        """Note that a worker reaches the coordinator; return whether no member has for a window.

        Then the members that are not heard within one more are lost.
        """
        if now - self._last_heard <= self._world.heartbeat_window:
            return False
        if not self._has_joiner:
            self._has_joiner = True
            self._no_loss_before = max(self._no_loss_before, now + self._world.heartbeat_window)
        return True

    def on_session_broken(self, member: Member, now: float) -> list[Effect]:
        """Judge soon a long silent member with a broken session.

        Its process has ended, or it was out of reach for too long: that is seen in a moment.
        """
        self.stop(member)
        return self._request_evidence(self._begin_suspicion((member,), now), now)

    def on_inspected(self, member: Member, now: float) -> None:
        """Update the announced condition of a silent member after an inspection."""
        if member.condition is not None:
            self._announce(member, now)

    def on_acknowledged(self, member: Member, now: float) -> None:
        """Note that a member's host acknowledges the session's data."""
        if member.unanswered_since is not None:
            member.acknowledged_at = now

    def on_indirect_ack(self, member: Member, now: float) -> None:
        """Note a peer's report of hearing a member over a link."""
        if member.unanswered_since is None and not member.is_broken:
            return
        if member.peer_heard_at < member.evidence_requested_at:
            member.was_peer_heard = member.peer_heard_at > NEVER
        member.peer_heard_at = now
        if member.condition is not None:
            self._announce(member, now)

    def lose_silent(self, verdict: Verdict, now: float) -> list[Effect]:
        """Lose the silent members of a verdict past the window.

        Not those who have been silent for less than the window: they may be back for the next call.
        """
        call = name_call(verdict.operation, verdict.sequence)
        effects: list[Effect] = []
        for one in verdict.absent:
            member = self._world.present.get(one.rank)
            if member is None or one.state not in ("paused", "stalled"):
                continue
            if (
                member.unanswered_since is not None
                and now - member.heard_at >= self._world.heartbeat_window
            ):
                silent = f"silent for {now - member.heard_at:.1f} s, past the deadline of {call}"
                effects += self._world.lose(member, silent, now)
        return effects

    # ------------------------------------------------------------ by the time of silence

    def _suspect(self, members: list[Member], now: float) -> list[Effect]:
        """Probe silent members, and judge them a moment later; those of one moment together."""
        self._gathered.update(dict.fromkeys(members))
        if self._gather_timer is not None:
            return []
        due = self._suspected_at + _GATHER_IN * self._world.heartbeat_interval
        if now < due:
            self._gather_timer = self._timers.schedule(due, self._probe_gathered)
            return []
        return self._probe_gathered(now)

    def _probe_gathered(self, now: float) -> list[Effect]:
        self._gather_timer = None
        members = tuple(self._gathered)
        if not members:
            return []
        if (due := self._postpone(min(one.heard_at for one in members), now)) is not None:
            self._gather_timer = self._timers.schedule(due, self._probe_gathered)
            return []
        self._gathered.clear()
        self._suspected_at = now
        suspicion = self._begin_suspicion(members, now)
        self._schedule(_COLLECT_IN, self._request_evidence, suspicion, now)
        return self._prober.probe(members, now, stack=True)

    def _begin_suspicion(self, members: tuple[Member, ...], now: float) -> _Suspicion:
        suspicion = _Suspicion(members, now)
        self._suspicions.update(dict.fromkeys(members, suspicion))
        return suspicion

    def _list_suspects(self, suspicion: _Suspicion) -> Iterator[Member]:
        """Iterate over the members not heard since, and present."""
        return (one for one in suspicion.members if self._suspicions.get(one) is suspicion)

    def _schedule(
        self,
        intervals: float,
        step: Callable[[_Suspicion, float], list[Effect]],
        suspicion: _Suspicion,
        now: float,
    ) -> None:
        due = now + intervals * self._world.heartbeat_interval
        self._timers.schedule(due, partial(step, suspicion))

    def _postpone(self, since: float, now: float) -> float | None:
        """Return the time of a judgement that the coordinator's lateness postpones; None: now.

        `since` is the beginning of the silence, or of the suspicion.
        """
        interval = self._world.heartbeat_interval
        lateness = self._timers.find_lateness(now - _PUNCTUAL_FOR * interval)
        if lateness <= _LATE * interval or now - lateness - since > _POSTPONED_MOST * interval:
            return None
        return now + _POSTPONE_BY * interval

    def _request_evidence(self, suspicion: _Suspicion, now: float) -> list[Effect]:
        """Request evidence of life of members without an answer to the probe."""
        suspects = [*self._list_suspects(suspicion)]
        for member in suspects:
            self._forget_old_evidence(member, now)
        if suspects:
            self._schedule(_JUDGE_IN, self._judge_all, suspicion, now)
        return [effect for member in suspects for effect in self._ask_others(member)]

    def _forget_old_evidence(self, member: Member, now: float) -> None:
        """Drop evidence not renewed after two requests: answers may be late once."""
        before, member.evidence_requested_at = member.evidence_requested_at, now
        if member.inspected_at < before:
            member.process_state = ""
        if member.acknowledged_at < before:
            member.acknowledged_at = NEVER
        if member.peer_heard_at < before:
            member.peer_heard_at, member.was_peer_heard = NEVER, False

    def _ask_others(self, member: Member) -> list[Effect]:
        """Ask coordinator, neighbours and peers for evidence of a member's life."""
        effects = self._prober.inspect_process(member, stack=True)
        if not member.is_broken:
            effects.append(CheckConnection(self._world.job, member.member_id, member.session))
        peers = self._find_nearest(member)
        return [*effects, *self._world.push(peers, IndirectProbe(member.rank))]

    def _find_nearest(self, member: Member) -> list[Member]:
        """Return some members that are heard, with ranks near that of a silent one."""
        found: list[Member] = []
        for distance in range(1, _NEAR + 1):
            for rank in (member.rank - distance, member.rank + distance):
                one = self._world.present.get(rank)
                if one is not None and one.is_reachable and one.unanswered_since is None:
                    found.append(one)
            if len(found) >= _INDIRECT_PROBES:
                break
        return found[:_INDIRECT_PROBES]

    def _judge_all(self, suspicion: _Suspicion, now: float) -> list[Effect]:
        suspects = [*self._list_suspects(suspicion)]
        if suspects and (due := self._postpone(suspicion.probed_at, now)) is not None:
            self._timers.schedule(due, partial(self._judge_all, suspicion))
            return []
        effects: list[Effect] = []
        is_outage = self._is_outage(now)
        for member in suspects:
            if self._suspicions.get(member) is suspicion:  # a loss may end the whole world
                del self._suspicions[member]
                effects += self._judge(member, is_outage, now)
        return effects

    def _judge(self, member: Member, is_outage: bool, now: float) -> list[Effect]:
        lives = _is_alive(member)
        due = member.heard_at + self._world.heartbeat_window
        if not member.is_broken:  # else nothing more will come
            due = max(due, self._no_loss_before)
        if now >= due and self._is_lost(member, lives, is_outage):
            silent = f"no heartbeat for {now - member.heard_at:.1f} s"
            reason = "its session broke" if member.is_broken else silent
            return self._world.lose(member, reason, now)
        # A loss comes when it is due, and with evidence that was asked for just before.
        interval = self._world.heartbeat_interval
        ahead = (_COLLECT_IN + _JUDGE_IN) * interval
        apart = max(interval, min(now - member.heard_at, PROBE_PERIOD_MOST))
        following = now + apart - ahead
        if now < due - ahead < following + ahead:
            following = due - ahead
        self._silent[member] = self._timers.schedule(
            following, partial(self._suspect_again, member)
        )
        if lives:
            self._announce(member, now)
        return []

    def _suspect_again(self, member: Member, now: float) -> list[Effect]:
        del self._silent[member]
        return self._suspect([member], now)

    def _is_lost(self, member: Member, lives: bool, is_outage: bool) -> bool:
        """Whether a member past its window is lost."""
        is_held = not (member.is_broken or self._world.is_outside(member))
        if is_held and is_outage:
            return False
        return self._is_window_given or not lives

    def _is_outage(self, now: float) -> bool:
        silent = now - self._last_heard
        if silent < self._world.heartbeat_window or self._has_joiner:
            return False
        most = OUTAGE_MOST * max(1.0, self._world.heartbeat_window / _USUAL_WINDOW)
        return silent < most and not any(map(_is_alive, self._world.present.values()))

    # ------------------------------------------------------------ naming

    def _announce(self, member: Member, now: float) -> None:
        """Notify the world of a silent member's condition, if changed."""
        if self._world.is_outside(member):
            return
        found = judge_silent(member, now)
        known = member.condition
        if known is not None:
            if known.state == found.state and (known.stack or not found.stack):
                return
            if (
                member.peer_heard_at > NEVER
                and known.state != found.state
                and not member.was_peer_heard
            ):
                return  # an interpreter that is held up may come to its senses for an instant
        member.condition = found
        self._conditions.note(member, found, now - member.heard_at, now)


def _is_alive(member: Member) -> bool:
    """Whether the latest evidence shows a silent member to be alive."""
    if member.process_state:
        return not has_ended(member.process_state)
    return max(member.acknowledged_at, member.peer_heard_at) > NEVER
