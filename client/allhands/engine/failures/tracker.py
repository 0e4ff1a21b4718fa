"""What a group's calls end in when they do not end well, as far as this rank knows the others."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NoReturn, TypeAlias, TypeVar
from weakref import WeakSet

from allhands.collectives.signature import Call
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import Failure, Registry
from allhands.engine.failures.losses import Losses
from allhands.engine.failures.slow_calls import Stall, patience
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError
from allhands.transport.frame import Key
from allhands.transport.mesh import Mesh
from allhands.verdicts import AbsentRank, CallCancellation, Verdict

T = TypeVar("T")
Found: TypeAlias = Verdict | CallCancellation | None

ASK_AFTER = 1.0
"""Seconds of being blocked after which the coordinator is asked for a verdict at the deadline."""
LATE = 1.0
"""Seconds after the deadline in which the verdict still counts."""
_HEARSAY_SECONDS = 0.5
"""How long what made a peer give a call up may take to be heard of here."""
_MISMATCH_SECONDS = 0.5
"""How long the calls of all ranks are collected before a mismatch is raised."""
_SOON_SECONDS = 0.25
"""How long a rank that is asked for a call waits to make it before it says what it does instead."""
HISTORY = 64
"""Calls that can still be named to a peer that comes late with another one."""


class Endings:
    """Who has failed, who has left after which call, who called what; lives on the loop."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        group: int,
        mesh: Mesh,
        registry: Registry,
        doing: Callable[[], str],
        losses: Losses,
    ) -> None:
        """`doing` says what this rank does now, for people: "is in barrier #7"."""
        self.where: Callable[[int], str] = lambda sequence: ""
        """Says where in the program this rank made a call: "train.py:31 in step"; "": unknown."""
        self.waits: deque[float] = deque(maxlen=HISTORY)
        """How long the latest calls over links took, in seconds."""
        self._doing = doing
        self._name = name
        self._ranks = tuple(ranks)
        self._rank = rank
        self._group = group
        self._mesh = mesh
        self._registry = registry
        self._losses = losses
        self._stalls: WeakSet[Stall] = WeakSet()
        self._heard = asyncio.Event()
        """Set once the group has failed, or a rank has left it."""
        self._history: dict[int, Call | str] = {}
        self._answered: dict[int, set[int]] = {}
        """The ranks of the world that were told this rank's call, by its number."""
        self._asked: dict[int, set[int]] = {}
        """The ranks of the world that are to be told of a call which has not begun here."""
        self._refusals: dict[int, dict[int, str]] = {}
        self._refused = asyncio.Event()

    # ------------------------------------------------------------ what is known

    def fail(self, failure: Failure) -> bool:
        """Take in what ends the group; say whether nothing had ended it before."""
        is_first = self._losses.fail(failure)
        self._heard.set()
        return is_first

    def close(self, failure: Failure) -> bool:
        """Take in that this rank ends the group; say whether nothing had ended it before."""
        is_first = self._losses.close(failure)
        self._heard.set()
        return is_first

    def end(self, failure: Failure) -> None:
        """Take in what calls are told from now on, instead of what was taken in before."""
        self._losses.replace(failure)
        self._heard.set()

    def leave(self, rank: int, completed: int, failure: Failure, *, is_fault: bool) -> None:
        """Take in that a rank of the world left after call number `completed`."""
        self._losses.leave(rank, completed, failure, is_fault=is_fault)
        self._heard.set()

    def give_up(self, sequence: int, given: CallCancellation) -> Failure:
        """Take in that a rank has given a call up on purpose; return what ends it here."""
        return self._losses.give_up(sequence, partial(call_errors.cancelled, given=given))

    def tell(self, sequence: int, reason: str) -> None:
        """Tell the others that this rank gives a call up, and why."""
        self._registry.gave_up(self._name, self._ranks, sequence, reason)

    def reason(self, sequence: int) -> Failure | None:
        """Return why a call cannot end well, if that is known; see `losses`."""
        return self._losses.reason(sequence)

    def has_left(self, rank: int) -> bool:
        """Say whether a rank of the world has left."""
        return self._losses.has_left(rank)

    def limits(self) -> list[int]:
        """Return after which calls ranks have left."""
        return self._losses.limits()

    # ------------------------------------------------------------ who called what

    def begin(self, sequence: int, call: Call | str) -> None:
        """Remember what this rank calls under a number."""
        self._history[sequence] = call
        self._history.pop(sequence - HISTORY, None)

    def said(self, sequence: int) -> str | None:
        """Return what this rank called under a number, if that is not long ago."""
        call = self._history.get(sequence)
        return None if call is None else self.row(sequence, call)

    def row(self, sequence: int, call: Call | str) -> str:
        """Return the row of this rank in the table of a mismatch."""
        where = self.where(sequence)
        label = call.label if isinstance(call, Call) else ""
        shown = f"{call} labelled {label!r}" if label else str(call)
        return f"{shown} at {where}" if where else shown

    def conclude(self, sequence: int) -> None:
        """Forget what others called, or gave up, up to a number."""
        self._losses.conclude(sequence)
        if self._refusals:
            self._refusals = {at: table for at, table in self._refusals.items() if at > sequence}
        if self._answered:
            for old in [at for at in self._answered if at <= sequence - HISTORY]:
                del self._answered[old]

    def refused(self, rank: int, sequence: int, call: str) -> None:
        """Take in what a rank of the group called under a number; what it said first counts."""
        self._refusals.setdefault(sequence, {}).setdefault(rank, call)
        self._refused.set()

    def is_refused(self, sequence: int) -> bool:
        """Say whether a rank is known to have made another call."""
        return sequence in self._refusals

    def answer(self, peer: int, sequence: int, call: str) -> None:
        """Say once to a rank of the world what this one called."""
        answered = self._answered.setdefault(sequence, set())
        if peer not in answered:
            answered.add(peer)
            self._mesh.refuse(peer, Key(self._group, sequence), call)

    def answer_soon(self, peer: int, sequence: int, said: Callable[[int], str | None]) -> None:
        """Say to a rank of the world what this one `said` under a number, or does instead.

        It may be about to make that call: then its row is the same in all tables.
        """
        asked = self._asked.setdefault(sequence, set())
        if not asked:
            asyncio.get_running_loop().call_later(_SOON_SECONDS, self._tell, sequence, said)
        asked.add(peer)

    def _tell(self, sequence: int, said: Callable[[int], str | None]) -> None:
        call = said(sequence) or f"has not called it: {self._doing()}"
        for peer in self._asked.pop(sequence, ()):
            self.answer(peer, sequence, call)

    # ------------------------------------------------------------ errors

    def named(self, operation: str, sequence: int, label: str | None) -> str:
        """Name a call, for people."""
        shown = f" ({label})" if label else ""
        return f"{operation} #{sequence}{shown} of group {self._name!r}"

    async def disagree(self, what: str, sequence: int, call: Call) -> NoReturn:
        """Tell all ranks what this one called, collect what they called, and raise."""
        mine = self.row(sequence, call)
        for peer in self._ranks:
            if peer != self._ranks[self._rank]:
                self.answer(peer, sequence, mine)
        table = self._refusals.setdefault(sequence, {})
        until = time.monotonic() + _MISMATCH_SECONDS
        while len(table) < len(self._ranks) - 1:
            self._refused.clear()
            if not await first(self._refused.wait(), timeout=until - time.monotonic()):
                break
        raise call_errors.mismatch(what, self._rank, {**table, self._rank: mine})

    async def hear_why(self) -> None:
        """Wait for what made ranks give a call up, if this rank will probably hear of it too."""
        if not await self._registry.all_present(self._ranks):
            # They may wait for this rank meanwhile, in their next call: so not in vain.
            await first(self._heard.wait(), timeout=_HEARSAY_SECONDS)

    async def given_up(
        self, operation: str, sequence: int, label: str | None, culprits: Sequence[int]
    ) -> AllhandsError:
        """Return the error of a call that ranks of the group gave up, of which they have told."""
        what = self.named(operation, sequence, label)
        found: Verdict | None = None
        for is_last in (False, True):
            asking = self.ask(sequence, operation, culprits, time.monotonic())
            try:
                await first(asking, timeout=LATE)
                answer = asking.result() if asking.done() else None
            finally:
                await stop(asking)
            if (reason := self.reason(sequence)) is not None:
                return reason(what)
            if isinstance(answer, CallCancellation):
                return call_errors.cancelled(what, answer)
            found = answer
            if not is_last:  # what they tell the coordinator may be on its way there
                await first(self._heard.wait(), timeout=_SOON_SECONDS)
        gave_up = [self._ranks[rank] for rank in culprits]
        names = [self._registry.name(rank) for rank in gave_up]
        mine = self._ranks[self._rank]
        waited = [] if found is None else [rank for rank in found.ranks if rank != mine]
        ranks = waited or gave_up
        return call_errors.given_up(what, operation, sequence, label, names, ranks, found)

    def not_passed(
        self, work: Work, timeout: float, found: Verdict, names_all: bool
    ) -> AllhandsError:
        """Return the error of a monitored barrier that failed."""
        return call_errors.failed_to_pass(
            self.named(work.operation, work.sequence, work.label),
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
        waiting_for: Callable[[], Sequence[int]],
        begun: float,
        deadline: float,
        waits: Iterable[float] | None = None,
    ) -> Stall:
        """Watch a call that is blocked; `waits` are how long calls before it were, if not known."""
        facts = {
            "group": self._name,
            "operation": operation,
            "sequence": sequence,
            "label": label,
        }
        what = self.named(operation, sequence, label)
        where = self.where(sequence)
        stall = Stall(
            f"{what} at {where}" if where else what,
            facts,
            waiting_for,
            lambda rank: self._registry.name(self._ranks[rank]),
            self._silent,
            begun,
            patience(self.waits if waits is None else waits),
            deadline,
        )
        self._stalls.add(stall)
        return stall

    def learn(self) -> None:
        """Take in that a rank of the group has fallen silent though it lives."""
        for stall in list(self._stalls):
            stall.learn()

    def _silent(self) -> dict[int, AbsentRank]:
        found = {place: self._registry.condition_of(at) for place, at in enumerate(self._ranks)}
        return {place: one for place, one in found.items() if one is not None}

    def ask(
        self, sequence: int, operation: str, waiting_for: Sequence[int], deadline: float
    ) -> "asyncio.Task[Found]":
        """Ask the coordinator who is missing in a call; it says so at the deadline, or soon after.

        It knows earlier of a call that a rank gave up.
        """
        awaited = [self._ranks[rank] for rank in waiting_for]
        seconds = deadline - time.monotonic()
        judging = self._registry.judge(self._name, sequence, operation, awaited, seconds)
        return asyncio.ensure_future(judging)

    def timed_out(
        self,
        operation: str,
        sequence: int,
        label: str | None,
        timeout: float,
        asking: "asyncio.Task[Found] | None",
        waiting_for: Sequence[int],
    ) -> AllhandsError:
        """Return the error of a call whose deadline has passed; ranks are those of the group."""
        found = asking.result() if asking is not None and asking.done() else None
        if isinstance(found, CallCancellation):
            return call_errors.cancelled(self.named(operation, sequence, label), found)
        return call_errors.timed_out(
            what=self.named(operation, sequence, label),
            operation=operation,
            sequence=sequence,
            label=label,
            timeout=timeout,
            found=found,
            waiting_on=[self._ranks[rank] for rank in waiting_for],
            mine=self._ranks[self._rank],
            registry=self._registry,
        )


async def first(*awaited: Awaitable[object], timeout: float) -> bool:
    """Wait until one of them is done; say whether that happened in time.

    Tasks and futures go on if it did not; coroutines are cancelled.
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


async def stop(task: "asyncio.Future[T]") -> None:
    """End a task and see its outcome."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
