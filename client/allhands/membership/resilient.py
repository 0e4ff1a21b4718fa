"""A group whose calls are all or nothing, and that goes on when ranks are lost.

It stands for a row of plain groups, one for each epoch; calls go to the latest. A call on it is the
call on that group, and then a barrier: who comes out of the barrier knows that all have the result.
Until then each rank keeps a copy of what the call writes. When ranks are lost, those who are left
decide through the coordinator: if one of them has come out, or all of them have the result, the
call is done for all. Else all take their copies back, and it has not been.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType

import numpy as np

from allhands.collectives import plan
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import Chain
from allhands.collectives.part import Part
from allhands.collectives.primitive import Build, Timeout
from allhands.collectives.request import Native
from allhands.collectives.signature import Call, Result
from allhands.engine.numbering import Order
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveTimeout, MembershipChanged, PeerFailed
from allhands.futures import awaitable
from allhands.group.group import Group
from allhands.membership.reform import Proposal, Reformed, Regrouper
from allhands.recorder.source import caller
from allhands.runtime.loop_thread import LoopThread

_COPY_ASIDE_BYTES = 1 << 20
"""Larger copies are made off the loop, which has heartbeats to send."""
_AT_ONCE = 0.001
"""Seconds for a call whose time is over when it is made: the others make it too."""
_CONFIRM_SECONDS = 60.0
"""How long a rank that has the result waits for the others: they fail, or are lost, before."""
_AGAIN = frozenset({"all_reduce", "barrier"})
"""Calls whose arguments mean the same whichever ranks there are: they are made again by themselves.

Others name ranks, or have something for each. Ranks whose call before was done when the group
changed make such a call with the new ranks in mind, those who were in it already did not.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a group does when ranks are lost; `config.WorldConfig` says more."""

    on_failure: str = "raise"
    min_size: int = 1


@dataclass(slots=True, eq=False)
class _Call:
    """A call on its way through the queue."""

    work: Work
    native: Native
    build: Build
    result: Result
    label: str | None
    timeout: float
    root: int
    """The root's rank in the job, whichever place it has in the group now; -1: none."""
    inner: Work | None = None
    """The call on the group as it is now, while it can be cancelled."""
    kept: list[Array] = field(default_factory=list)
    """What the call's arrays were before it."""
    is_cancelled: bool = False
    source: tuple[CodeType | None, int] = (None, 0)
    """Where the program made it."""
    begin: Callable[[Group], Work] | None = None
    """What it is on the group as it is now, if that is not a collective."""


class ResilientGroup(Group):
    """A group for callers; see the module. It costs a copy of what calls write, and barriers."""

    def __init__(
        self, group: Group, regrouper: Regrouper, thread: LoopThread, policy: Policy
    ) -> None:
        super().__init__(group._engine, thread, group.timeout, group._recovery)
        self.objects = group.objects
        self._numbers = Order(group.timeout)
        self.order = self._numbers  # every call goes through the queue, whatever the ranks share
        self._loop_thread = thread
        self._regrouper = regrouper
        self._policy = policy
        self._now = group
        self._full = group.size
        """How many ranks there are to be again after a loss, with on_failure="wait"."""
        self._queue: deque[_Call] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._spare: list[Array] = []
        """Memory for copies, from the call before."""
        self._returned = self._computed = 0
        """Of the calls on the group as it is now: how many have ended, how many have a result."""
        self._is_settled = False
        """Whether it has been decided on the calls of a group that goes on no more."""
        self._news: MembershipChanged | None = None
        """What the next call says before anything happens, unless it is one to be made again."""
        self._end: PeerFailed | None = None
        """Why it cannot go on."""

    @functools.cached_property
    def here(self) -> Group:
        return self

    @property
    def epoch(self) -> int:
        """The membership's version as far as this rank has heard; grows with every change."""
        return self._regrouper.epoch

    @property
    def waiting(self) -> int:
        """How many processes wait to be taken in by `grow`."""
        return self._regrouper.waiting

    def shrink(self, *, timeout: Timeout = None) -> Group:
        """Go on with the ranks that are left; return the group itself. See `Group.shrink`."""
        self._loop_thread.run(self._change("shrink", 0, self._seconds(timeout)))
        return self

    def grow(self, count: int, *, timeout: Timeout = None) -> Group:
        """Take in newcomers; return the group itself. See `Group.grow`."""
        if count < 1:
            raise ValueError(f"a group grows by at least one rank, not {count}")
        self._loop_thread.run(self._change("grow", count, self._seconds(timeout)))
        return self

    def admit(self, *, timeout: Timeout = None) -> Group:
        """Take in whoever waits at this moment, nobody perhaps; return the group itself.

        All ranks that are left must call it; errors as of `grow`.
        """
        self._loop_thread.run(self._change("admit", 0, self._seconds(timeout)))
        return self

    def heal(self) -> None:
        """Go on with the ranks that are left where the group does not do so by itself."""
        if self._policy.on_failure == "raise":
            self.shrink()

    async def idle(self) -> None:
        """Return when every call made so far has ended; on the loop."""
        if self._runner is not None:
            await asyncio.wait([self._runner])

    # ------------------------------------------------------------ calls

    def _start(
        self,
        native: Native,
        build: Build,
        result: Result,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        seconds = max(self._seconds(timeout), _AT_ONCE)
        root = self._engine.ranks[native.root] if native.root >= 0 else -1
        return self._queue_up(
            lambda work: _Call(work, native, build, result, label, seconds, root),
            native.call,
            label,
        )

    def monitored_barrier(
        self,
        timeout: Timeout = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> Work:
        """End when every rank has called it; see `Group.monitored_barrier`."""
        seconds = max(self._seconds(timeout), _AT_ONCE)

        def begin(group: Group) -> Work:
            return group.monitored_barrier(seconds, wait_all_ranks, label=label)

        native = Native("barrier")
        return self._queue_up(
            lambda work: _Call(work, native, plan.barrier, None, label, seconds, -1, begin=begin),
            Call("monitored_barrier"),
            label,
        )

    def _chain(self, chain: Chain, timeout: Timeout, label: str | None) -> Work:
        seconds = max(self._seconds(timeout), _AT_ONCE)
        native = Native(chain.call.operation, targets=chain.targets)

        def begin(group: Group) -> Work:
            return group._chain(chain, seconds, label)

        return self._queue_up(
            lambda work: _Call(work, native, plan.barrier, None, label, seconds, -1, begin=begin),
            chain.call,
            label,
        )

    def _queue_up(self, make: Callable[[Work], _Call], what: Call, label: str | None) -> Work:
        """Give a call its number and hand it to the loop, in one step."""
        source = caller()
        with self.order.lock:
            if (clash := self.order.clash(label)) is not None:
                self._now._engine.refuse_clash(what.operation, clash)
            work = Work(what, self.order.take(), label, self.name, self._thread.callbacks)
            self.order.entered(work)
            call = make(work)
            call.source = source
            self._hand_over(work, self._submit, self._cancel, call)
        return work

    def _exchange(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: Timeout,
        label: str | None,
    ) -> Work:
        given = self._given(timeout)
        return self._now._exchange(operation, array, result, peer, tag, given, label)

    def _submit(self, call: _Call) -> None:
        self._queue.append(call)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queue(), name=f"calls of {self.name}")

    def _cancel(self, call: _Call) -> None:
        call.is_cancelled = True
        if call.inner is not None:
            call.inner.cancel()

    async def _run_queue(self) -> None:
        while self._queue:
            call = self._queue.popleft()
            try:
                await self._perform(call)
            except Exception as error:  # whatever it is belongs to the caller, not to the loop
                call.work.fail(error)
            else:
                call.work.succeed(call.result)
            finally:
                self._spare, call.kept = call.kept, []
                self._numbers.give_back()

    async def _perform(self, call: _Call) -> None:
        """Carry a call out, again if need be; where this raises its arrays are as before."""
        if self._end is not None:
            raise _ended_because(self._end)
        news, self._news = self._news, None
        if news is not None and (self._policy.on_failure == "wait" or not _is_repeated(call)):
            raise news
        await self._keep(call)
        while (error := await self._attempt(call)) is not None:
            try:
                if not isinstance(error, PeerFailed):
                    raise error
                if await self._outlive(call, error):
                    return
            except BaseException as failure:
                self._take_back(call)
                if isinstance(failure, AllhandsError):
                    failure.restored()
                raise
            self._take_back(call)

    async def _attempt(self, call: _Call) -> AllhandsError | None:
        """Make the call once, on the group as it is now; return what went wrong."""
        group = self._now
        try:
            call.inner = self._begin(call, group)
            _place(call.inner, call)
            result = await _ended(call.inner)
            if call.begin is not None:
                call.result = result
        except PeerFailed as error:
            return error
        except AllhandsError as error:
            group.pass_over("a call that failed")  # nobody is to wait for its confirmation
            return error
        finally:
            call.inner = None
        self._computed += 1
        try:
            confirming = group.barrier(timeout=_CONFIRM_SECONDS, label=call.label)
            _place(confirming, call)
            await _ended(confirming)
        except PeerFailed as error:
            return error
        except AllhandsError as error:
            self._computed -= 1  # somebody has no result, and nobody can have come out
            return error
        self._returned += 1
        return None

    def _begin(self, call: _Call, group: Group) -> Work:
        native, build = call.native, call.build
        if call.is_cancelled:
            group.pass_over(call.work.why)
            raise AllhandsError(f"{call.work} was cancelled by this rank")
        if call.begin is not None:
            return call.begin(group)
        if call.root >= 0:
            if call.root not in group._engine.ranks:
                raise PeerFailed(f"{call.work} cannot end: its root is gone", (call.root,))
            root = group._engine.ranks.index(call.root)
            if root != native.root:
                native, build = _rerooted(native, root, group)
        return group._start(native, build, call.result, call.timeout, call.label)

    # ------------------------------------------------------------ copies

    async def _keep(self, call: _Call) -> None:
        """Copy what the call will write."""
        targets = call.native.targets
        spare, self._spare = self._spare, []
        if [(one.dtype, one.size) for one in spare] != [(one.dtype, one.size) for one in targets]:
            spare = [np.empty_like(one) for one in targets]
        call.kept = spare
        if sum(one.nbytes for one in targets) > _COPY_ASIDE_BYTES:
            await asyncio.to_thread(_copy, call.kept, targets)
        else:
            _copy(call.kept, targets)

    def _take_back(self, call: _Call) -> None:
        _copy(call.native.targets, call.kept)

    # ------------------------------------------------------------ losses

    async def _outlive(self, call: _Call, error: PeerFailed) -> bool:
        """Do what is to be done after a loss; return whether the call is done for all.

        False: it is to be made again.

        Raises:
            AllhandsError: it is not done, and will not be.
        """
        if self._policy.on_failure == "raise":
            done = not self._is_settled and await self._settle()
            if not done:
                error.again = functools.partial(self._again, call)
                raise error
            return True
        old = self.epoch
        try:
            if self._policy.on_failure == "wait":
                done = await self._regroup("replace", self._full, self.timeout)
            else:
                done = await self._regroup("shrink", 0, self.timeout)
        except CollectiveTimeout as late:
            self._end = PeerFailed(f"{error}; {late}", error.failed_ranks)
            raise _ended_because(self._end) from late
        if self.size < self._policy.min_size:
            self._end = PeerFailed(
                f"{error}; {self.size} ranks are left, and min_size is {self._policy.min_size}",
                error.failed_ranks,
            )
            if done:
                return True
            raise _ended_because(self._end)
        changed = MembershipChanged(
            f"group {self.name!r} has {self.size} ranks now, this one is rank {self.rank}, and the "
            "call was made for others; its arrays are as they were",
            old_epoch=old,
            new_epoch=self.epoch,
        )
        if done:
            # Others may have been in the next call already: it ends here as it did there.
            self._news = changed
        elif self._policy.on_failure == "wait" or not _is_repeated(call):
            raise changed
        return done

    async def _settle(self) -> bool:
        """Decide on the latest call of a group that will not go on."""
        decided = await self._reform("agree", 0, self.timeout)
        self._is_settled = True
        return self._is_done(decided)

    async def _reform(self, kind: str, wanted: int, timeout: float) -> Reformed:
        """Decide with the ranks that are left, also on the calls that they are in."""
        proposal = Proposal(kind, wanted=wanted, returned=self._returned, computed=self._computed)
        return await self._regrouper.reform(self._now.name, proposal, timeout)

    def _is_done(self, decided: Reformed) -> bool:
        """Say whether the call that this rank is in counts as done."""
        return self._returned < self._computed <= decided.committed

    async def _regroup(self, kind: str, wanted: int, timeout: float) -> bool:
        """Go on as another group; return whether the latest call is done for all."""
        decided = await self._reform(kind, wanted, timeout)
        done, before = self._is_done(decided), self._now.name
        engine = await self._regrouper.regroup(decided, self.timeout)
        self._now = Group(engine, self._loop_thread, self.timeout, self._recovery)
        self._engine = engine
        self._returned = self._computed = 0
        self._is_settled = False
        await self._regrouper.close_group(before)
        return done

    async def _change(self, kind: str, wanted: int, timeout: float) -> None:
        """Change by hand, when the calls made so far have ended."""
        await self.idle()
        await self._regroup(kind, wanted, timeout)
        self._full = self.size

    def _again(self, call: _Call) -> Work:
        """Make a failed call once more, with the ranks that are left."""
        self.shrink()

        def make(work: Work) -> _Call:
            # With the root that it had: its number in the group may be another rank's now.
            return replace(call, work=work, inner=None, kept=[], is_cancelled=False)

        return self._queue_up(make, Call(call.work.operation), call.label)


def _place(work: Work, call: _Call) -> None:
    """Let what is recorded of a call say where the program made it."""
    if work.entry is not None:
        work.entry.made_by(call.source)


def _is_repeated(call: _Call) -> bool:
    return call.native.kind in _AGAIN


def _ended_because(end: PeerFailed) -> PeerFailed:
    error = PeerFailed(str(end), end.failed_ranks)
    error.is_final = True
    return error


def _rerooted(native: Native, root: int, group: Group) -> tuple[Native, Build]:
    """Return a call whose root has another place now."""
    array, wire = (*native.targets, *native.sources)[0], group._engine.wire
    target = native.targets[0] if native.targets else None

    def build(rank: int, size: int) -> list[Part]:
        if native.kind == "broadcast":
            return plan.broadcast(rank, size, array, root, wire)
        ordered = native.is_ordered(size, group.deterministic)
        return plan.reduce(rank, size, native.sources[0], target, root, ordered)

    return replace(native, root=root), build


def _copy(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    for target, source in zip(targets, sources, strict=True):
        np.copyto(target, source)


async def _ended(work: Work) -> Result:
    return await awaitable(work.get_future())
