"""Verdicts on calls past the deadline, the same for all callers.

A blocked caller asks some time before its deadline. Shortly before the deadline the members of
the group are probed, and processes that do not answer are inspected. At the deadline the progress
of all is judged; the first non-empty class is the verdict: ranks that have not begun the call,
silent ranks, ranks out of reach of peers, ranks that the callers wait for. A verdict may wait up to
PATIENCE_SECONDS for missing answers.

A monitored barrier is a call of which the arrivals are counted here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.verdicts import AbsentRank, CallCancellation, Verdict
from allhands_server.machine.effects import Answer, Effect
from allhands_server.machine.formatting import escape, quote
from allhands_server.machine.limits import LARGEST_WORLD, LONGEST_ERROR, check_name
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import AwaitVerdict, MonitoredBarrier
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.values import Presence
from allhands_server.machine.world.absent_ranks import (
    explains_silence,
    has_ended,
    judge_left,
    judge_lost,
    judge_never_joined,
    judge_occupied,
    judge_silent,
    judge_slow,
    judge_unreachable,
    make_late_verdict,
    make_verdict,
    name_call,
)
from allhands_server.machine.world.broken_links import Pair, choose_culprits, order_pair
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.world import World
from allhands_server.machine.world_changes import MonitoredBarrierPassed, VerdictGiven

PROBE_LEAD = 0.3
"""Seconds from the probe to the deadline, at most a third of the remaining time."""
PATIENCE_SECONDS = 0.5
"""Time after the deadline in which members may still answer."""
MEMORY_SECONDS = 5.0
"""Time for which a verdict stands for callers with later deadlines."""
BARRIER_MEMORY_SECONDS = 60.0
"""The same for a failed monitored barrier."""
PAST_VERDICTS = 64
"""Number of verdicts kept for ranks that come late to a call."""
BARRIER = "monitored_barrier"
_FRESH_PROBE = 1.0
LOSS_LAG = 0.5
"""Seconds from a verdict to the loss of its members silent for the whole window."""
_LOOK_AFTER = 0.1
"""Seconds from a probe to the inspection of silent processes."""

_Key: TypeAlias = tuple[str, int, bool]  # group, sequence, whether ranks meet here
_MILD = ("busy", "elsewhere")
"""States that `unreachable` explains better."""


@dataclass(slots=True)
class _BlockedCall:
    key: _Key
    operation: str
    callers: dict[int, int] = field(default_factory=dict)  # ticket -> rank
    asking: Counter[int] = field(default_factory=Counter)
    """Number of callers by rank."""
    overdue: set[int] = field(default_factory=set)  # tickets
    arrived: set[int] = field(default_factory=set)  # ranks that have asked, or arrived
    waited_for: dict[int, set[int]] = field(default_factory=dict)  # rank -> who waits for it
    probed_at: float | None = None
    patience_until: float | None = None
    """Latest time of the verdict."""
    verdict: Verdict | None = None
    cancellation: CallCancellation | None = None

    @property
    def group(self) -> str:
        return self.key[0]

    @property
    def sequence(self) -> int:
        return self.key[1]

    @property
    def is_barrier(self) -> bool:
        return self.key[2]


class Verdicts:
    """The blocked calls of one world."""

    def __init__(self, world: World, timers: TimerQueue) -> None:
        self._world = world
        self._timers = timers
        self._calls: dict[_Key, _BlockedCall] = {}
        self._callers: dict[int, tuple[_BlockedCall, tuple[Timer, ...]]] = {}
        self._late: dict[_Key, _BlockedCall] = {}  # those whose deadline has passed
        self._past: dict[_Key, tuple[Verdict, float]] = {}  # for who comes late; oldest first
        self._passed: dict[str, int] = {}  # number of each group's last passed barrier

    def submit(
        self, ticket: int, request: AwaitVerdict | MonitoredBarrier, now: float, due: float | None
    ) -> list[Effect]:
        """Note a blocked caller or an arrival; answered at once or at the due time.

        Raises:
            Refused: invalid, without a deadline, or not from a member.
        """
        check_name("the name of the group", request.group)
        if due is None:
            raise Refused(
                Status.INVALID_ARGUMENT, "a verdict is given at the call's deadline: give it one"
            )
        asker = self._world.find_member(request.member_id)
        if isinstance(request, AwaitVerdict):
            _check_ranks(request.waiting_on)
        if isinstance(request, MonitoredBarrier) and self._has_passed(request):
            return [Answer(ticket, None)]
        blocked = self._open_call(request)
        if blocked.cancellation is not None:
            return [Answer(ticket, blocked.cancellation)]
        blocked.callers[ticket] = asker.rank
        blocked.asking[asker.rank] += 1
        blocked.arrived.add(asker.rank)
        if isinstance(request, AwaitVerdict):
            for rank in request.waiting_on:
                blocked.waited_for.setdefault(rank, set()).add(asker.rank)
        elif self._is_met(blocked):
            return self._answer_passed(blocked)
        lead = min(PROBE_LEAD, max(0.0, due - now) / 3)
        timers = (
            self._timers.schedule(due - lead, partial(self._probe, blocked, lead)),
            self._timers.schedule(due, partial(self._on_due, blocked, ticket)),
        )
        self._callers[ticket] = (blocked, timers)
        if blocked.is_barrier and blocked.verdict is not None:
            return self._answer(blocked, [ticket])
        return []

    def expire(self, ticket: int, now: float) -> Effect:
        raise AssertionError("verdicts see to the time themselves")

    def cancel(self, ticket: int) -> None:
        if (found := self._callers.pop(ticket, None)) is None:
            return
        blocked, timers = found
        for timer in timers:
            timer.cancel()
        rank = blocked.callers.pop(ticket)
        blocked.asking[rank] -= 1
        if blocked.is_barrier and not blocked.asking[rank]:
            blocked.arrived.discard(rank)
        blocked.overdue.discard(ticket)
        self._drop_if_idle(blocked)

    def review(self, now: float) -> list[Effect]:
        """Give the verdicts for which the latest evidence suffices."""
        return [
            effect
            for blocked in [*self._late.values()]
            for effect in self._answer_overdue(blocked, now)
        ]

    def on_group_opened(self, group: str) -> list[Effect]:
        """Answer monitored barriers completed by the group's ranks."""
        met = [
            blocked
            for blocked in self._calls.values()
            if blocked.is_barrier and blocked.group == group and blocked.callers
            if blocked.verdict is None and self._is_met(blocked)
        ]
        return [effect for blocked in met for effect in self._answer_passed(blocked)]

    # ------------------------------------------------------------ durable state

    def apply(self, change: MonitoredBarrierPassed | VerdictGiven) -> None:
        """Make a change of the verdicts."""
        match change:
            case MonitoredBarrierPassed(_, group, sequence):
                self._passed[group] = max(sequence, self._passed.get(group, 0))
            case VerdictGiven(_, is_barrier, verdict):
                key = (verdict.group, verdict.sequence, is_barrier)
                blocked = self._calls.setdefault(key, _BlockedCall(key, verdict.operation))
                blocked.verdict = verdict
                now = self._timers.now
                self._remember(blocked, now)
                memory = BARRIER_MEMORY_SECONDS if is_barrier else MEMORY_SECONDS
                self._timers.schedule(now + memory, partial(self._forget, blocked))

    def list_changes(self) -> Iterator[MonitoredBarrierPassed | VerdictGiven]:
        """Iterate over changes that make these verdicts again."""
        job = self._world.job
        for group, sequence in self._passed.items():
            yield MonitoredBarrierPassed(job, group, sequence)
        for verdict, _ in self._past.values():
            yield VerdictGiven(job, False, verdict)
        for key, blocked in self._calls.items():
            if blocked.verdict is not None and key not in self._past:
                yield VerdictGiven(job, blocked.is_barrier, blocked.verdict)

    def on_group_closed(self, group: str) -> None:
        """Forget past verdicts of a group after the last rank's close."""
        if self._world.groups.get_ranks(group) is None:
            self._passed.pop(group, None)
            for key in [one for one in self._past if one[0] == group]:
                del self._past[key]

    def cancel_call(
        self, member: Member, group: str, sequence: int, reason: str, now: float
    ) -> list[Effect]:
        """Cancel a call for a member, and notify the group."""
        check_name("the name of the group", group)
        blocked = self._calls.setdefault(
            (group, sequence, False), _BlockedCall((group, sequence, False), "")
        )
        if blocked.cancellation is not None:
            return []
        told = escape(reason)[:LONGEST_ERROR]
        blocked.cancellation = CallCancellation(member.rank, str(member), told)
        self._timers.schedule(now + MEMORY_SECONDS, partial(self._forget, blocked))
        text = f"call #{sequence} of group {quote(group)} was cancelled: {told}"
        self._world.events.add("cancelled", text, now, rank=member.rank, by=str(member))
        return self._world.push_call_cancelled(group, sequence, blocked.cancellation)

    # ------------------------------------------------------------ cases

    def _has_passed(self, request: MonitoredBarrier) -> bool:
        return request.sequence <= self._passed.get(request.group, 0)

    def _open_call(self, request: AwaitVerdict | MonitoredBarrier) -> _BlockedCall:
        is_barrier = isinstance(request, MonitoredBarrier)
        operation = BARRIER if isinstance(request, MonitoredBarrier) else request.operation
        check_name("the operation", operation, empty=True)
        key = (request.group, request.sequence, is_barrier)
        return self._calls.setdefault(key, _BlockedCall(key, operation))

    def _answer_passed(self, blocked: _BlockedCall) -> list[Effect]:
        tickets = [*blocked.callers]
        self._world.commit(MonitoredBarrierPassed(self._world.job, blocked.group, blocked.sequence))
        for ticket in tickets:
            self.cancel(ticket)
        return [Answer(ticket, None) for ticket in tickets]

    def _on_due(self, blocked: _BlockedCall, ticket: int, now: float) -> list[Effect]:
        blocked.overdue.add(ticket)
        return self._answer_overdue(blocked, now)

    def _answer_overdue(self, blocked: _BlockedCall, now: float) -> list[Effect]:
        """Answer overdue callers, if a verdict exists or is possible."""
        effects: list[Effect] = []
        if blocked.verdict is None:
            if blocked.patience_until is None:
                blocked.patience_until = now + PATIENCE_SECONDS
                self._late[blocked.key] = blocked
                self._timers.schedule(
                    blocked.patience_until, partial(self._on_patience_over, blocked)
                )
                if blocked.probed_at is None:
                    effects += self._probe(blocked, PROBE_LEAD, now)
            if now < blocked.patience_until and self._may_still_answer(blocked):
                return effects
            verdict = self._judge(blocked, now)
            self._world.commit(VerdictGiven(self._world.job, blocked.is_barrier, verdict))
            self._world.events.count_absent([one.state for one in verdict.absent])
            state = verdict.absent[0].state if verdict.absent else ""
            self._world.events.add("verdict", verdict.text, now, state=state)
            del self._late[blocked.key]
            # Later: whose call it was is to hear of its deadline first.
            self._timers.schedule(
                now + LOSS_LAG, partial(self._world.failure_detector.lose_silent, verdict)
            )
        tickets = blocked.callers if blocked.is_barrier else blocked.overdue
        return effects + self._answer(blocked, [*tickets])

    def _on_patience_over(self, blocked: _BlockedCall, now: float) -> list[Effect]:
        return self._answer_overdue(blocked, now) if blocked.key in self._late else []

    def _answer(self, blocked: _BlockedCall, tickets: Iterable[int]) -> list[Effect]:
        answers: list[Effect] = [Answer(ticket, blocked.verdict) for ticket in tickets]
        for answer in answers:
            assert isinstance(answer, Answer)
            self.cancel(answer.ticket)
        return answers

    def _forget(self, blocked: _BlockedCall, now: float) -> list[Effect]:
        blocked.verdict = blocked.cancellation = blocked.patience_until = None
        self._drop_if_idle(blocked)
        return []

    def _drop_if_idle(self, blocked: _BlockedCall) -> None:
        if blocked.callers or blocked.verdict is not None or blocked.cancellation is not None:
            return
        self._late.pop(blocked.key, None)
        if self._calls.get(blocked.key) is blocked:
            del self._calls[blocked.key]

    def _remember(self, blocked: _BlockedCall, now: float) -> None:
        """Keep the first verdict on a call for late callers."""
        assert blocked.verdict is not None
        if not blocked.is_barrier and blocked.verdict.absent and blocked.key not in self._past:
            self._past[blocked.key] = blocked.verdict, now
            if len(self._past) > PAST_VERDICTS:
                del self._past[next(iter(self._past))]

    # ------------------------------------------------------------ asking

    def _probe(self, blocked: _BlockedCall, lead: float, now: float) -> list[Effect]:
        # All callers' deadlines pass at nearly one time: one probe serves them all.
        if blocked.verdict or (
            blocked.probed_at is not None and now - blocked.probed_at < _FRESH_PROBE
        ):
            return []
        blocked.probed_at = now
        self._timers.schedule(
            now + max(lead / 2, _LOOK_AFTER), partial(self._inspect_silent, blocked)
        )
        return self._world.prober.probe(self._list_pending(blocked), now, stack=True)

    def _inspect_silent(self, blocked: _BlockedCall, now: float) -> list[Effect]:
        """Inspect the processes of silent members."""
        if blocked.verdict is not None or not blocked.callers:
            return []
        silent = [one for one in self._list_pending(blocked) if _is_silent(one, blocked)]
        prober = self._world.prober
        return [effect for one in silent for effect in prober.inspect_process(one, stack=True)]

    def _may_still_answer(self, blocked: _BlockedCall) -> bool:
        return any(
            _is_silent(one, blocked) and not explains_silence(one.process_state)
            for one in self._list_pending(blocked)
        )

    def _list_pending(self, blocked: _BlockedCall) -> list[Member]:
        """List the present members without completion of the call."""
        found = [self._world.present.get(rank) for rank in self._list_ranks(blocked.group)]
        return [one for one in found if one is not None and not self._is_done(one, blocked)]

    def _is_done(self, member: Member, blocked: _BlockedCall) -> bool:
        if blocked.is_barrier:
            return member.rank in blocked.arrived
        return member.get_completed(blocked.group) >= blocked.sequence

    def _list_ranks(self, group: str) -> Sequence[int]:
        """List a group's ranks; all of the world for an unopened group."""
        ranks = self._world.groups.get_sorted_ranks(group)
        return range(self._world.size) if ranks is None else ranks

    def _is_met(self, blocked: _BlockedCall) -> bool:
        """Whether all ranks have arrived at a barrier; asked at each arrival."""
        ranks = self._list_ranks(blocked.group)
        return len(blocked.arrived) >= len(ranks) and blocked.arrived.issuperset(ranks)

    # ------------------------------------------------------------ judging

    def _judge(self, blocked: _BlockedCall, now: float) -> Verdict:
        ranks = list(self._list_ranks(blocked.group))
        found = [self._judge_not_begun(rank, blocked, now) for rank in ranks]
        absent = {one.rank: one for one in found if one is not None}
        if not absent:
            stuck = [self._judge_stuck(rank, blocked, now) for rank in ranks]
            absent = {one.rank: one for one in stuck if one is not None}
        for one in self._judge_unreachable(blocked, ranks, absent.keys()):
            if one.rank not in absent or absent[one.rank].state in _MILD:
                absent[one.rank] = one
        if not absent and (past := self._past.get(blocked.key)) is not None:
            given, when = past
            return make_late_verdict(given, now - when)
        if not absent:
            absent = {rank: self._judge_slow(rank, blocked) for rank in blocked.waited_for}
        inorder = [one for _, one in sorted(absent.items())]
        return make_verdict(blocked.group, blocked.sequence, blocked.operation, inorder)

    def _judge_not_begun(self, rank: int, blocked: _BlockedCall, now: float) -> AbsentRank | None:
        member = self._world.members.get(rank)
        if member is None:
            return judge_never_joined(rank)
        if self._is_done(member, blocked):
            return None
        if member.presence is Presence.LOST:
            return member.loss
        if member.presence is Presence.LEFT:
            return judge_left(member)
        has_begun = member.get_begun(blocked.group) >= blocked.sequence and not blocked.is_barrier
        if has_begun or rank in blocked.arrived:
            return None
        if _is_silent(member, blocked):
            return _judge_silent_member(member, now)
        return judge_occupied(member, blocked.group, now)

    def _judge_stuck(self, rank: int, blocked: _BlockedCall, now: float) -> AbsentRank | None:
        member = self._world.members[rank]  # else it would not have begun
        done = self._is_done(member, blocked)
        return (
            None if done or not _is_silent(member, blocked) else _judge_silent_member(member, now)
        )

    def _judge_unreachable(
        self, blocked: _BlockedCall, ranks: Iterable[int], missing: Collection[int]
    ) -> list[AbsentRank]:
        """Classify members by the unanswered pings of peers.

        Of a pair, the `missing` rank is named, or else the rank that has completed the call,
        whose data has not come through.
        """
        present = self._world.present
        alive = {
            rank: present[rank]
            for rank in ranks
            if rank in present and not _is_silent(present[rank], blocked)
        }
        pairs: set[Pair] = {
            order_pair(rank, other)
            for rank, one in alive.items()
            for other in one.get_unanswered(blocked.group)
            if other in alive and other != rank
        }
        done = {rank for rank, one in alive.items() if self._is_done(one, blocked)}
        blamed: dict[int, list[int]] = {}
        for pair in sorted(pairs):
            culprits = [rank for rank in pair if rank in missing] or [
                rank for rank in pair if rank in done
            ]
            if len(culprits) == 1:
                [culprit] = culprits
                blamed.setdefault(culprit, []).append(sum(pair) - culprit)
                pairs.discard(pair)
        for rank, others in choose_culprits(pairs).items():
            blamed.setdefault(rank, []).extend(others)
        return [
            judge_unreachable(
                alive[rank], [alive[one] for one in sorted(others)], "pings are unanswered"
            )
            for rank, others in sorted(blamed.items())
        ]

    def _judge_slow(self, rank: int, blocked: _BlockedCall) -> AbsentRank:
        member = self._world.members.get(rank)
        if member is None:
            return judge_never_joined(rank)
        call = name_call(blocked.operation, blocked.sequence)
        return judge_slow(member, call, sorted(blocked.waited_for[rank]))


def _check_ranks(ranks: tuple[int, ...]) -> None:
    """Refuse ranks that no world has: each that is waited for takes memory.

    Raises:
        Refused: says which.
    """
    strange = next((rank for rank in ranks if not 0 <= rank < LARGEST_WORLD), None)
    if strange is not None:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"rank {strange} is waited for: a world has {LARGEST_WORLD:,} ranks at most",
        )


def _is_silent(member: Member, blocked: _BlockedCall) -> bool:
    # A probe that another case has sent since may still be under way.
    asked, probed = member.unanswered_since, blocked.probed_at
    return member.is_broken or (asked is not None and probed is not None and asked <= probed)


def _judge_silent_member(member: Member, now: float) -> AbsentRank:
    if member.is_broken or has_ended(member.process_state):
        return judge_lost(member, "its session broke", now)
    return judge_silent(member, now)
