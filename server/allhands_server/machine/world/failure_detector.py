"""Failure detector: probes silent members, names the condition, and loses the dead.

Silence is no proof of death. While it lasts, evidence of life is requested: the state of the
process, TCP acknowledgements by its host's kernel, and answers to peers over links (SWIM's
indirect probe). A member with evidence of life is announced as stalled, paused or unreachable, and
stays; a member without is lost at the end of the heartbeat window. With a window chosen by the
user both are lost.

If no member of a world is heard and there is no evidence for any, the coordinator itself is cut
off: no member is judged, and each has a fresh window after the outage.
"""

from functools import partial

from allhands_proto.verdicts import Verdict
from allhands_server.machine.effects import (
    CheckConnection,
    Condition,
    Effect,
    IndirectProbe,
    OperatorLog,
)
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.world.absent_ranks import has_ended, judge_silent, name_call
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world.member import NEVER, Member
from allhands_server.machine.world.prober import Prober

PROBE_AFTER = 2.0
"""Heartbeat intervals of silence after which a member is probed."""
_COLLECT_IN = 0.3
"""Heartbeat intervals from the probe to the request for evidence."""
_JUDGE_IN = 0.3
"""The same, from there to the announcement: in all within 3 s of the last heartbeat."""
PROBE_PERIOD_MOST = 10.0
"""Seconds between two probes of a long silent member, at most."""
OUTAGE_MOST = 60.0
"""Longest outage in seconds at the usual window; longer in proportion to longer windows."""
_USUAL_WINDOW = 5.0
_INDIRECT_PROBES = 8
"""Number of peers asked about a silent member."""


class FailureDetector:
    """Watch over the members of one world, each from `watch` to `stop`."""

    def __init__(
        self, world: WorldContext, prober: Prober, timers: TimerQueue, *, is_window_given: bool
    ) -> None:
        self._world = world
        self._prober = prober
        self._timers = timers
        self._is_window_given = is_window_given
        self._last_heard = 0.0
        """Time of the last sign of life of any member."""
        self._no_loss_before = 0.0
        """End of the fresh windows after an outage."""
        self._has_joiner = False
        """A worker reaches the coordinator though no member does: the outage is over."""

    def watch(self, member: Member) -> None:
        """Start or restart the watch over a member just heard."""
        self._last_heard = max(self._last_heard, member.heard_at)
        due = member.heard_at + PROBE_AFTER * self._world.heartbeat_interval
        member.timer = self._timers.schedule(due, partial(self._suspect, member))

    def stop(self, member: Member) -> None:
        """End the watch over a member. Idempotent."""
        if member.timer is not None:
            member.timer.cancel()

    def on_heard(self, member: Member, now: float) -> list[Effect]:
        """Note a sign of life; notify the world if the member counted as silent."""
        gap, self._last_heard = now - self._last_heard, max(self._last_heard, now)
        if gap > self._world.heartbeat_window:
            self._no_loss_before = max(
                self._no_loss_before, now + max(gap, self._world.heartbeat_window)
            )
            self._has_joiner = False
        member.acknowledged_at = member.peer_heard_at = member.evidence_requested_at = NEVER
        member.was_peer_heard = False
        if member.condition is None:
            return []
        seconds = now - member.heard_at
        member.condition = None
        report = OperatorLog(
            f"job {self._world.job}: {member} is heard again, after {seconds:.1f} s"
        )
        return [report, *self._push_to_others(member, Condition(member.rank, None, seconds))]

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
        return self._request_evidence(member, member.heard_at, now, now)

    def on_inspected(self, member: Member, now: float) -> list[Effect]:
        """Update the announced condition of a silent member after an inspection."""
        return [] if member.condition is None else self._push_condition(member, now)

    def on_acknowledged(self, member: Member, now: float) -> None:
        """Note that a member's host acknowledges the session's data."""
        if member.unanswered_since is not None:
            member.acknowledged_at = now

    def on_indirect_ack(self, member: Member, now: float) -> list[Effect]:
        """Note a peer's report of hearing a member over a link."""
        if member.unanswered_since is None and not member.is_broken:
            return []
        if member.peer_heard_at < member.evidence_requested_at:
            member.was_peer_heard = member.peer_heard_at > NEVER
        member.peer_heard_at = now
        return self._push_condition(member, now) if member.condition is not None else []

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

    def _suspect(self, member: Member, now: float) -> list[Effect]:
        """Probe a silent member, and judge it a moment later."""
        interval = self._world.heartbeat_interval
        if now < member.heard_at + PROBE_AFTER * interval:
            self.watch(member)
            return []
        collect = partial(self._request_evidence, member, member.heard_at, now)
        member.timer = self._timers.schedule(now + _COLLECT_IN * interval, collect)
        return self._prober.probe([member], now, stack=True)

    def _request_evidence(
        self, member: Member, heard: float, probed: float, now: float
    ) -> list[Effect]:
        """Request evidence of life of a member without an answer to the probe."""
        if member.heard_at > heard:
            self.watch(member)
            return []
        judge = partial(self._judge, member, heard, probed)
        member.timer = self._timers.schedule(
            now + _JUDGE_IN * self._world.heartbeat_interval, judge
        )
        self._forget_old_evidence(member, now)
        return self.request_evidence(member)

    def _forget_old_evidence(self, member: Member, now: float) -> None:
        """Drop evidence not renewed after two requests: answers may be late once."""
        before, member.evidence_requested_at = member.evidence_requested_at, now
        if member.inspected_at < before:
            member.process_state = ""
        if member.acknowledged_at < before:
            member.acknowledged_at = NEVER
        if member.peer_heard_at < before:
            member.peer_heard_at, member.was_peer_heard = NEVER, False

    def request_evidence(self, member: Member) -> list[Effect]:
        """Ask coordinator, neighbours and peers for evidence of a member's life."""
        effects = self._prober.inspect_process(member, stack=True)
        if not member.is_broken:
            effects.append(CheckConnection(self._world.job, member.member_id, member.session))
        hearing = (
            one
            for one in self._world.present.values()
            if one is not member and one.is_reachable and one.unanswered_since is None
        )
        nearest = sorted(hearing, key=lambda one: abs(one.rank - member.rank))[:_INDIRECT_PROBES]
        return [*effects, *self._world.push(nearest, IndirectProbe(member.rank))]

    def _judge(self, member: Member, heard: float, probed: float, now: float) -> list[Effect]:
        if member.heard_at > heard:
            self.watch(member)
            return []
        interval = self._world.heartbeat_interval
        if now - probed > (_COLLECT_IN + _JUDGE_IN + 1) * interval:
            # The coordinator itself was held up, and what members said meanwhile may still lie
            # in its sockets: nobody is judged for its own absence.
            return self._suspect(member, now)
        lives = _is_alive(member)
        due = member.heard_at + self._world.heartbeat_window
        if not member.is_broken:  # else nothing more will come
            due = max(due, self._no_loss_before)
        if now >= due and self._is_lost(member, lives, now):
            silent = f"no heartbeat for {now - member.heard_at:.1f} s"
            reason = "its session broke" if member.is_broken else silent
            return self._world.lose(member, reason, now)
        # A loss comes when it is due, and with evidence that was asked for just before.
        ahead = (_COLLECT_IN + _JUDGE_IN) * interval
        apart = max(interval, min(now - member.heard_at, PROBE_PERIOD_MOST))
        following = now + apart - ahead
        if now < due - ahead < following + ahead:
            following = due - ahead
        member.timer = self._timers.schedule(following, partial(self._suspect, member))
        return self._push_condition(member, now) if lives else []

    def _is_lost(self, member: Member, lives: bool, now: float) -> bool:
        """Whether a member past its window is lost."""
        is_held = not (member.is_broken or self._world.is_outside(member))
        if is_held and self._is_outage(now):
            return False
        return self._is_window_given or not lives

    def _is_outage(self, now: float) -> bool:
        silent = now - self._last_heard
        if silent < self._world.heartbeat_window or self._has_joiner:
            return False
        most = OUTAGE_MOST * max(1.0, self._world.heartbeat_window / _USUAL_WINDOW)
        return silent < most and not any(map(_is_alive, self._world.present.values()))

    # ------------------------------------------------------------ naming

    def _push_condition(self, member: Member, now: float) -> list[Effect]:
        """Notify the world of a silent member's condition, if changed."""
        if self._world.is_outside(member):
            return []
        found = judge_silent(member, now)
        known = member.condition
        if known is not None:
            if known.state == found.state and (known.stack or not found.stack):
                return []
            if (
                member.peer_heard_at > NEVER
                and known.state != found.state
                and not member.was_peer_heard
            ):
                return []  # an interpreter that is held up may come to its senses for an instant
        member.condition = found
        report = OperatorLog(f"job {self._world.job}: {found.text}")
        return [
            report,
            *self._push_to_others(member, Condition(member.rank, found, now - member.heard_at)),
        ]

    def _push_to_others(self, member: Member, condition: Condition) -> list[Effect]:
        others = (one for one in self._world.present.values() if one is not member)
        return self._world.push(others, condition)


def _is_alive(member: Member) -> bool:
    """Whether the latest evidence shows a silent member to be alive."""
    if member.process_state:
        return not has_ended(member.process_state)
    return max(member.acknowledged_at, member.peer_heard_at) > NEVER
