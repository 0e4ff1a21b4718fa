"""Failure state of one group: failed ranks, departed ranks, differing calls, and their errors."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NoReturn, TypeAlias, TypeVar
from weakref import WeakSet

from allhands.collectives.signature import CallSignature
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory, PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.failures.slow_calls import SlowCall, compute_patience
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.transport.frame import MessageKey
from allhands.transport.mesh import Mesh
from allhands.verdicts import AbsentRank, CallCancellation, Verdict

T = TypeVar("T")
VerdictReply: TypeAlias = Verdict | CallCancellation | None

ASK_AFTER = 1.0
"""Seconds of being blocked after which the coordinator is asked for a verdict at the deadline."""
VERDICT_GRACE = 1.0
"""Seconds after the deadline in which the verdict still counts."""
_REASON_SECONDS = 0.5
"""How long what made a peer give a call up may take to be heard of here."""
_SAME_DEADLINE_SECONDS = 0.5
"""How far the deadlines of ranks that time out in one call may be apart."""
_MISMATCH_SECONDS = 0.5
"""How long the calls of all ranks are collected before a mismatch is raised."""
_ANSWER_DELAY = 0.25
"""How long a rank that is asked for a call waits to make it before it says what it does instead."""
CALL_HISTORY = 64
"""Calls that can still be named to a peer that comes late with another one."""


class FailureTracker:
    """Tracker of failures, of departures with the last completed call, and of peers' calls.

    Event loop only.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        group: int,
        mesh: Mesh,
        directory: PeerDirectory,
        describe_activity: Callable[[], str],
        failure_log: FailureLog,
    ) -> None:
        """`describe_activity` returns this rank's present activity: "is in barrier #7"."""
        self.find_call_site: Callable[[int], str] = lambda sequence: ""
        """Says where in the program this rank made a call: "train.py:31 in step"; "": unknown."""
        self.durations: deque[float] = deque(maxlen=CALL_HISTORY)
        """How long the latest calls over links took, in seconds."""
        self._describe_activity = describe_activity
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._group = group
        self._mesh = mesh
        self._directory = directory
        self._failure_log = failure_log
        self._slow_calls: WeakSet[SlowCall] = WeakSet()
        self._failure_known = asyncio.Event()
        """Set once the group has failed, or a rank has left it."""
        self.own_calls: dict[int, CallSignature | str] = {}
        """This rank's latest calls, by their numbers; the native core adds its own."""
        self._answered_peers: dict[int, set[int]] = {}
        """The ranks of the world that were told this rank's call, by its number."""
        self._unanswered_peers: dict[int, set[int]] = {}
        """The ranks of the world that are to be told of a call which has not begun here."""
        self._peer_calls: dict[int, dict[int, str]] = {}
        self._peer_call_known = asyncio.Event()
        self._last_mismatch: tuple[int, dict[int, str]] = 0, {}
        """Number and table of the latest call known to differ."""

    # ------------------------------------------------------------ what is known

    def fail(self, failure: ErrorFactory) -> bool:
        """Record a failure of the group; return whether it is the first."""
        is_first = self._failure_log.fail(failure)
        self._failure_known.set()
        return is_first

    def close(self, failure: ErrorFactory) -> bool:
        """Record that this rank closes the group; return whether nothing had ended it before."""
        is_first = self._failure_log.close(failure)
        self._failure_known.set()
        return is_first

    def replace_failure(self, failure: ErrorFactory) -> None:
        """Replace all recorded failures by `failure`, the error of calls from now on."""
        self._failure_log.replace(failure)
        self._failure_known.set()

    def record_departure(
        self, rank: int, completed: int, failure: ErrorFactory, *, is_fault: bool
    ) -> None:
        """Take in that a rank of the world left after call number `completed`."""
        self._failure_log.record_departure(rank, completed, failure, is_fault=is_fault)
        self._failure_known.set()

    def record_give_up(self, sequence: int, give_up: CallCancellation) -> ErrorFactory:
        """Record that a rank cancelled a call; return the failure of the call here."""
        return self._failure_log.record_give_up(
            sequence, partial(call_errors.build_given_up_error, give_up=give_up)
        )

    @property
    def is_quiet(self) -> bool:
        """Whether no failure, departure, given up or other call of a peer is known."""
        return not self._peer_calls and self._failure_log.is_quiet

    def send_give_up(self, sequence: int, reason: str) -> None:
        """Notify the other ranks that this rank gives a call up, with the reason."""
        self._directory.send_give_up(self._name, self._ranks, sequence, reason)

    def find_failure(self, sequence: int) -> ErrorFactory | None:
        """Return why a call cannot end well, if that is known; see `losses`."""
        return self._failure_log.find_failure(sequence)

    def make_results_differ(self, sequence: int, places: Sequence[int]) -> ErrorFactory:
        """Return the failure of a call whose results differ, `places` being group ranks."""
        ranks = tuple(self._ranks[place] for place in places)
        return call_errors.make_results_differ_factory(ranks, sequence)

    def has_left(self, rank: int) -> bool:
        """Say whether a rank of the world has left."""
        return self._failure_log.has_left(rank)

    def list_last_calls(self) -> list[int]:
        """Return after which calls ranks have left."""
        return self._failure_log.list_last_calls()

    # ------------------------------------------------------------ who called what

    def record_own_call(self, sequence: int, call: CallSignature | str) -> None:
        """Record this rank's call under a number."""
        self.own_calls[sequence] = call
        self.own_calls.pop(sequence - CALL_HISTORY, None)

    def find_own_call(self, sequence: int) -> str | None:
        """Return this rank's recent call under a number; None: unknown or too old."""
        call = self.own_calls.get(sequence)
        return None if call is None else self.format_row(sequence, call)

    def format_row(self, sequence: int, call: CallSignature | str) -> str:
        """Return the row of this rank in the table of a mismatch."""
        where = self.find_call_site(sequence)
        label = call.label if isinstance(call, CallSignature) else ""
        shown = f"{call} labelled {label!r}" if label else str(call)
        return f"{shown} at {where}" if where else shown

    def conclude(self, sequence: int) -> None:
        """Forget peers' calls and cancellations up to a number."""
        self._failure_log.conclude(sequence)
        if self._peer_calls:
            self._peer_calls = {
                at: table for at, table in self._peer_calls.items() if at > sequence
            }
        if self._answered_peers:
            for old in [at for at in self._answered_peers if at <= sequence - CALL_HISTORY]:
                del self._answered_peers[old]

    def record_peer_call(self, rank: int, sequence: int, call: str) -> None:
        """Record the call of a rank of the group under a number; the first record counts."""
        self._peer_calls.setdefault(sequence, {}).setdefault(rank, call)
        self._peer_call_known.set()
        self.note_mismatch(sequence, {rank: call})

    def note_mismatch(self, sequence: int, calls: Mapping[int, str]) -> None:
        """Note what ranks of the group called under a number where others did not."""
        number, table = self._last_mismatch
        if sequence > number:
            self._last_mismatch = sequence, dict(calls)
        elif sequence == number:
            table.update(calls)

    def precede_by_mismatch(self, failure: ErrorFactory, completed: int) -> ErrorFactory:
        """Return the factory of a loss, extended to tell a mismatch after call number `completed`.

        The loss may follow from that.
        """
        number, table = self._last_mismatch
        if not table or number <= completed:
            return failure
        named = f"#{number} of group {self._name!r}"
        return call_errors.make_mismatch_preceded_factory(failure, named, self._rank, table)

    def has_mismatch(self, sequence: int) -> bool:
        """Say whether a rank is known to have made another call."""
        return sequence in self._peer_calls

    def send_own_call(self, peer: int, sequence: int, call: str) -> None:
        """Send this rank's call to a rank of the world, once."""
        answered = self._answered_peers.setdefault(sequence, set())
        if peer not in answered:
            answered.add(peer)
            self._mesh.send_nack(peer, MessageKey(self._group, sequence), call)

    def send_own_call_soon(
        self, peer: int, sequence: int, find_own_call: Callable[[int], str | None]
    ) -> None:
        """Send this rank's call under a number, or its present activity, to a rank of the world.

        This rank may be about to make that call: then its row is the same in all tables.
        """
        asked = self._unanswered_peers.setdefault(sequence, set())
        if not asked:
            asyncio.get_running_loop().call_later(
                _ANSWER_DELAY, self._answer_waiting_peers, sequence, find_own_call
            )
        asked.add(peer)

    def _answer_waiting_peers(
        self, sequence: int, find_own_call: Callable[[int], str | None]
    ) -> None:
        call = find_own_call(sequence) or f"has not called it: {self._describe_activity()}"
        for peer in self._unanswered_peers.pop(sequence, ()):
            self.send_own_call(peer, sequence, call)

    # ------------------------------------------------------------ errors

    def name_call(self, operation: str, sequence: int, label: str | None) -> str:
        """Name a call, for people."""
        shown = f" ({label})" if label else ""
        return f"{operation} #{sequence}{shown} of group {self._name!r}"

    async def raise_mismatch(self, what: str, sequence: int, call: CallSignature) -> NoReturn:
        """Exchange the call with all ranks' calls, and raise the table as CollectiveMismatch."""
        mine = self.format_row(sequence, call)
        self.note_mismatch(sequence, {self._rank: mine})
        others = {place: peer for place, peer in enumerate(self._ranks) if place != self._rank}
        for peer in others.values():
            if not self.has_left(peer):
                self.send_own_call(peer, sequence, mine)
        table = self._peer_calls.setdefault(sequence, {})
        until = time.monotonic() + _MISMATCH_SECONDS
        while any(place not in table and not self.has_left(others[place]) for place in others):
            self._peer_call_known.clear()
            if not await wait_first(self._peer_call_known.wait(), timeout=until - time.monotonic()):
                break
        raise call_errors.build_mismatch_error(what, self._rank, {**table, self._rank: mine})

    async def await_failure_reason(self) -> None:
        """Wait for the reason of peers' cancellation, if likely to arrive here."""
        if not await self._directory.are_all_present(self._ranks):
            # They may wait for this rank meanwhile, in their next call: so not in vain.
            await wait_first(self._failure_known.wait(), timeout=_REASON_SECONDS)

    async def await_abandoned_error(
        self, operation: str, sequence: int, label: str | None, offenders: Sequence[int]
    ) -> AllhandsError:
        """Return the error of a call cancelled by ranks of the group, once reasons arrived."""
        what = self.name_call(operation, sequence, label)
        found: Verdict | None = None
        for is_last in (False, True):
            asking = self.request_verdict(sequence, operation, offenders, time.monotonic())
            try:
                await wait_first(asking, timeout=VERDICT_GRACE)
                answer = asking.result() if asking.done() else None
            finally:
                await cancel_and_wait(asking)
            if (reason := self.find_failure(sequence)) is not None:
                return reason(what)
            if isinstance(answer, CallCancellation):
                return call_errors.build_given_up_error(what, answer)
            found = answer
            if not is_last:  # what they tell the coordinator may be on its way there
                await wait_first(self._failure_known.wait(), timeout=_ANSWER_DELAY)
        gave_up = [self._ranks[rank] for rank in offenders]
        names = [self._directory.describe_rank(rank) for rank in gave_up]
        mine = self._ranks[self._rank]
        waited = [] if found is None else [rank for rank in found.ranks if rank != mine]
        ranks = waited or gave_up
        return call_errors.build_abandoned_error(
            what, operation, sequence, label, names, ranks, found
        )

    def build_monitored_barrier_error(
        self, work: Work, timeout: float, found: Verdict, names_all: bool
    ) -> AllhandsError:
        """Build the error of a failed monitored barrier."""
        return call_errors.build_monitored_barrier_error(
            self.name_call(work.operation, work.sequence, work.label),
            work.operation,
            work.sequence,
            work.label,
            timeout,
            found,
            found.ranks if names_all else found.ranks[:1],
        )

    def watch(
        self,
        operation: str,
        sequence: int,
        label: str | None,
        list_awaited: Callable[[], Sequence[int]],
        started_at: float,
        deadline: float,
        durations: Iterable[float] | None = None,
    ) -> SlowCall:
        """Watch a blocked call; `durations` of earlier calls are in seconds, else the log's."""
        facts = {
            "group": self._name,
            "operation": operation,
            "sequence": sequence,
            "label": label,
        }
        what = self.name_call(operation, sequence, label)
        where = self.find_call_site(sequence)
        stall = SlowCall(
            f"{what} at {where}" if where else what,
            facts,
            list_awaited,
            lambda rank: self._directory.describe_rank(self._ranks[rank]),
            self._find_silent_ranks,
            started_at,
            compute_patience(self.durations if durations is None else durations),
            deadline,
        )
        self._slow_calls.add(stall)
        return stall

    def on_peer_silent(self) -> None:
        """Handle the silence of a rank of the group that still lives."""
        for stall in list(self._slow_calls):
            stall.on_peer_silent()

    def _find_silent_ranks(self) -> dict[int, AbsentRank]:
        found = {place: self._directory.get_condition(at) for place, at in enumerate(self._ranks)}
        return {place: one for place, one in found.items() if one is not None}

    def request_verdict(
        self, sequence: int, operation: str, awaited_ranks: Sequence[int], deadline: float
    ) -> "asyncio.Task[VerdictReply]":
        """Ask the coordinator for the verdict on a call; it replies at the deadline or later.

        It comes earlier for a call that a rank gave up.
        """
        awaited = [self._ranks[rank] for rank in awaited_ranks]
        seconds = deadline - time.monotonic()
        judging = self._directory.judge(self._name, sequence, operation, awaited, seconds)
        return asyncio.ensure_future(judging)

    async def is_timed_out_elsewhere(
        self, sequence: int, verdict_task: "asyncio.Task[VerdictReply] | None", deadline: float
    ) -> bool:
        """Return whether a call ended by a departure had timed out before, where a rank left.

        Its ranks' deadlines are seldom quite the same. Just before this rank's own one it is waited
        for, and for the verdict that comes with it: that is the verdict given before the rank left,
        if it knows nobody who has left or is dead.
        """
        remaining = deadline - time.monotonic()
        if (
            verdict_task is None
            or remaining > _SAME_DEADLINE_SECONDS
            or not self._failure_log.is_ended_by_departure(sequence)
            or not await wait_first(verdict_task, timeout=remaining + VERDICT_GRACE)
        ):
            return False
        found = verdict_task.result()
        states = {one.state for one in found.absent} if isinstance(found, Verdict) else set()
        return bool(states) and states.isdisjoint(("left", "dead"))

    def build_timeout_error(
        self,
        operation: str,
        sequence: int,
        label: str | None,
        timeout: float,
        verdict_task: "asyncio.Task[VerdictReply] | None",
        awaited_ranks: Sequence[int],
    ) -> AllhandsError:
        """Return the error of a call whose deadline has passed; ranks are those of the group."""
        found = verdict_task.result() if verdict_task is not None and verdict_task.done() else None
        if isinstance(found, CallCancellation):
            return call_errors.build_given_up_error(
                self.name_call(operation, sequence, label), found
            )
        return call_errors.build_timeout_error(
            what=self.name_call(operation, sequence, label),
            operation=operation,
            sequence=sequence,
            label=label,
            timeout=timeout,
            verdict=found,
            awaited_ranks=[self._ranks[rank] for rank in awaited_ranks],
            own_rank=self._ranks[self._rank],
            directory=self._directory,
        )


async def wait_first(*awaited: Awaitable[object], timeout: float) -> bool:
    """Wait until any of `awaited` is done; return whether that happened in time.

    After a timeout, tasks and futures go on, and coroutines are cancelled.
    """
    futures = [asyncio.ensure_future(one) for one in awaited]
    if any(one.done() for one in futures if one in awaited):
        return True
    try:
        done, _ = await asyncio.wait(
            futures, timeout=max(timeout, 0), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for one, future in zip(awaited, futures, strict=True):
            if one is not future:
                future.cancel()
    return bool(done)


async def cancel_and_wait(task: "asyncio.Future[T]") -> None:
    """Cancel a task, wait for its end, and discard the outcome."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
