"""Conditions of silent members, announced to the world in batches.

Many members may fall silent at once. To tell each member of each silent one would be a square of
messages, and would make a busy coordinator late enough to take more members for silent. So
conditions are gathered for a moment, and all members hear of them in one and the same message of
bounded size. The time between two such messages grows with the world.
"""

from collections.abc import Iterable
from itertools import islice

from allhands_proto.verdicts import AbsentRank
from allhands_server.machine.effects import Condition, Conditions, Effect, OperatorLog
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world.member import NEVER, Member

RECEIVERS_PER_SECOND = 2_000
"""Members of a larger world that are told of conditions in a second, at most."""
_SMALL = 32
"""Members of a world that are told at once."""
_GATHER_IN = 0.2
"""Heartbeat intervals in which conditions are gathered, at most."""
LARGEST_BATCH = 512
"""Conditions in one message; those beyond come with the next."""
_LOGGED = 8
"""Conditions of one message that the operator's log has in full."""


class ConditionAnnouncer:
    """The conditions of one world's members that the others have to hear of."""

    def __init__(self, world: WorldContext, timers: TimerQueue) -> None:
        self._world = world
        self._timers = timers
        self._pending: dict[int, Condition] = {}  # by rank, in order
        self._announced: set[int] = set()
        """Ranks known to the world as silent."""
        self._timer: Timer | None = None
        self._sent_at = NEVER

    def note(self, member: Member, found: AbsentRank | None, seconds: float, now: float) -> None:
        """Note the condition of a member that has been silent for `seconds`; None: heard again.

        It takes the place of an earlier one that has not been sent.
        """
        rank = member.rank
        if found is None and rank not in self._announced:
            self._pending.pop(rank, None)
            return
        self._pending[rank] = Condition(rank, found, seconds)
        if self._timer is None:
            self._set_timer(now)

    def forget(self, rank: int) -> None:
        """Forget a member that is gone."""
        self._pending.pop(rank, None)
        self._announced.discard(rank)

    def _set_timer(self, now: float) -> None:
        count = len(self._world.present)
        apart = count / RECEIVERS_PER_SECOND if count > _SMALL else 0.0
        gathered = now + min(apart, _GATHER_IN * self._world.heartbeat_interval)
        self._timer = self._timers.schedule(max(gathered, self._sent_at + apart), self._send)

    def _send(self, now: float) -> list[Effect]:
        """Tell the members of the pending conditions."""
        self._timer, self._sent_at = None, now
        batch = [self._pending.pop(rank) for rank in [*islice(self._pending, LARGEST_BATCH)]]
        if not batch:
            return []
        for one in batch:
            if one.absent is None:
                self._announced.discard(one.rank)
            else:
                self._announced.add(one.rank)
        if self._pending:
            self._set_timer(now)
        present = self._world.present.values()
        told: Iterable[Member] = present
        if len(batch) == 1:
            told = (one for one in present if one.rank != batch[0].rank)
        conditions = Conditions(tuple(batch), len(self._pending))
        return [*self._list_logs(batch, now), *self._world.push(told, conditions)]

    def _list_logs(self, batch: list[Condition], now: float) -> list[Effect]:
        job, members, events = self._world.job, self._world.members, self._world.events
        lines: list[Effect] = []
        for one in batch[:_LOGGED]:
            again = f"{members[one.rank]} is heard again, after {one.seconds:.1f} s"
            if one.absent is None:
                lines.append(events.log("heard", again, now, rank=one.rank))
            else:
                state, text = one.absent.state, one.absent.text
                lines.append(events.log("silent", text, now, rank=one.rank, state=state))
        if rest := batch[_LOGGED:]:
            silent = sum(one.absent is not None for one in rest)
            text = f"{silent:,} more are silent, {len(rest) - silent:,} more are heard again"
            lines.append(OperatorLog(f"job {job}: {text}", job=job))
        return lines
