"""Evidence from members' processes: exits reported by launchers, states seen by inspection."""

from functools import partial

from allhands_server.machine.effects import Effect
from allhands_server.machine.limits import LONGEST_STACK
from allhands_server.machine.requests import ReportExit
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.values import Presence
from allhands_server.machine.world.absent_ranks import has_ended, judge_lost
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world.failure_detector import FailureDetector
from allhands_server.machine.world.member import Member
from allhands_server.machine.world_changes import LossExplained

LAST_WORDS_SECONDS = 0.2
"""Time after a process's exit in which its last messages may still arrive."""


class ProcessEvidence:
    """Draws conclusions from exits and inspections of the processes of one world."""

    def __init__(
        self, world: WorldContext, failure_detector: FailureDetector, timers: TimerQueue
    ) -> None:
        self._world = world
        self._failure_detector = failure_detector
        self._timers = timers

    def on_exit(self, exit: ReportExit, now: float) -> tuple[bool, list[Effect]]:
        """Note the exit status of a process; return whether a member exited, and effects."""
        process = (exit.pid_namespace, exit.pid, exit.start_ticks)
        for member in self._world.members.values():
            join = member.join
            if (join.pid_namespace, join.pid, join.start_ticks) == process:
                member.exit_status = exit.status
                return True, self._judge_exit(member, now)
        return False, []

    def _judge_exit(self, member: Member, now: float) -> list[Effect]:
        if member.presence is Presence.LOST:
            self._world.commit(
                LossExplained(self._world.job, judge_lost(member, member.reason, now))
            )
        if not member.is_present or self._world.is_forming:
            return []
        if member.is_broken:
            return self._world.lose(member, "its session broke", now)
        self._failure_detector.stop(member)
        lose = partial(self._world.lose, member, "its process ended")
        member.timer = self._timers.schedule(now + LAST_WORDS_SECONDS, lose)
        return []

    def on_inspected(
        self, member_id: str, process_state: str, now: float, stack: str = ""
    ) -> list[Effect]:
        """Note the state of a member's process, and the stack if not empty."""
        member = self._world.get_member(member_id)
        if member is None or not member.is_present or self._world.is_forming:
            return []
        is_silent = member.is_broken or member.unanswered_since is not None
        member.process_state = process_state if is_silent else ""
        member.inspected_at = now
        if stack and is_silent:
            member.stack = stack[-LONGEST_STACK:]
        if not has_ended(member.process_state) or member.join.exit_is_reported:
            if is_silent and stack:
                self._failure_detector.on_inspected(member, now)
            return []
        reason = "its session broke" if member.is_broken else "it is gone"
        return self._world.lose(member, reason, now)
