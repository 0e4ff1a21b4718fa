"""Resilient submission: calls are atomic, and continue after losses of ranks.

It stands for a row of plain groups, one for each epoch; calls go to the latest. A call on it is the
call on that group, and then a barrier: who comes out of the barrier knows that all have the result.
Until then each rank keeps a copy of what the call writes. When ranks are lost, those who are left
decide through the coordinator: if one of them has come out, or all of them have the result, the
call is done for all. Else all take their copies back, and it has not been.
"""

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from allhands.collectives import plan
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.collectives.staging import INLINE_COPY_BYTES, Staging
from allhands.engine.group_engine import GroupEngine
from allhands.engine.numbering import CallNumbering, SuccessiveNumbering
from allhands.engine.work.work import Work
from allhands.errors import AllhandsError, CollectiveTimeout, MembershipChanged, PeerFailed
from allhands.futures import wrap_for_loop
from allhands.group.group import Group
from allhands.group.interfaces import Submitter
from allhands.membership.callers_calls import CallersCalls
from allhands.membership.observed_work import ObservedWork
from allhands.membership.queued_call import (
    FailedCall,
    FailurePolicy,
    QueuedCall,
    change_root,
    make_final_error,
)
from allhands.membership.reform import GroupChange, GroupChangeRequest, MembershipChanger
from allhands.recorder.source import find_caller
from allhands.runtime.loop_thread import LoopThread
from allhands.verdicts import append_clause

_MIN_TIMEOUT = 0.001
"""Seconds for a call whose time is over when it is made: the others make it too."""
_CONFIRM_SECONDS = 60.0
"""How long a rank that has the result waits for the others: they fail, or are lost, before."""


class ResilientSubmitter:
    """Submits calls one after the other to the group of the ranks that are left, and again."""

    def __init__(
        self, group: Group, changer: MembershipChanger, thread: LoopThread, policy: FailurePolicy
    ) -> None:
        self.executor = thread
        self._callers_calls = CallersCalls(
            group.timeout, _CONFIRM_SECONDS, self._begin_confirmation, thread.call
        )
        self._numbering = CallNumbering(group.timeout)
        self._numbering.comm = self._numbering.direct_calls = self._callers_calls.core  # type: ignore[assignment]  # as it looks
        self.order = SuccessiveNumbering(self._numbering, lambda: self._current.submitter.order)
        self._recovery = group.recovery
        self._changer = changer
        self._policy = policy
        self._current = group
        self._epoch = self._seen_epoch = changer.epoch
        """Of the group as it is now; and the latest that the program has heard of."""
        self._full_size = group.size
        """How many ranks there are to be again after a loss, with on_failure="wait"."""
        self._queue: deque[QueuedCall] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._spare_buffers: list[Array] = []
        """Memory for copies, from the call before."""
        self._returned_calls = self._computed_calls = 0
        """Of the calls on the group as it is now: how many have ended, how many have a result."""
        self._is_last_call_decided = False
        """Whether it has been decided on the calls of a group that goes on no more."""
        self._pending_change: MembershipChanged | None = None
        """What the next call says before anything happens, unless it is one to be made again."""
        self._final_failure: PeerFailed | None = None
        """Why it cannot go on."""

    def set_method_caller(self, call: Callable[[str, tuple[Any, ...]], Work]) -> None:
        """Set how a call that failed on its caller's thread is made again, by its method's name."""
        self._callers_calls.make_again = call

    @property
    def engine(self) -> GroupEngine:
        return self._current.submitter.engine

    @property
    def size(self) -> int:
        return self._current.size

    @property
    def name(self) -> str:
        return self._current.name

    async def wait_idle(self) -> None:
        """Return when every call made so far has ended; on the loop."""
        await self._callers_calls.wait_idle(self.engine)
        if self._runner is not None:
            await asyncio.wait([self._runner])

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        seconds = self._limit_timeout(timeout)
        request = call.request
        root = self._find_job_rank(request.root)
        blocks = request.primitive.has_blocks
        return self._enqueue_call(
            lambda work: QueuedCall(
                work, request, call.build, call.result, label, seconds, root, blocks
            ),
            request.call,
            label,
            call.staging,
        )

    def start_monitored_barrier(
        self, timeout: CallTimeout, wait_all_ranks: bool, label: str | None
    ) -> Work:
        seconds = self._limit_timeout(timeout)

        def begin(submitter: Submitter) -> Work:
            return submitter.start_monitored_barrier(seconds, wait_all_ranks, label)

        request = CollectiveRequest("barrier")
        return self._enqueue_call(
            lambda work: QueuedCall(
                work, request, plan.barrier, None, label, seconds, -1, False, begin=begin
            ),
            CallSignature("monitored_barrier"),
            label,
        )

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        seconds = self._limit_timeout(timeout)
        number = -1 if composite.call.root is None else composite.call.root
        request = CollectiveRequest(
            composite.call.operation, targets=composite.targets, root=number
        )
        root = self._find_job_rank(number)

        # An attempt may have to be taken back: outputs are stored when the call is done for all.
        on_copies = composite._replace(staging=None)

        def begin(submitter: Submitter) -> Work:
            return submitter.start_composite(on_copies, seconds, label)

        blocks = composite.has_blocks
        return self._enqueue_call(
            lambda work: QueuedCall(
                work, request, plan.barrier, None, label, seconds, root, blocks, begin=begin
            ),
            composite.call,
            label,
            composite.staging,
        )

    def start_p2p(
        self,
        operation: str,
        array: Array,
        result: Result,
        peer: int | None,
        tag: int,
        timeout: CallTimeout,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        seconds = self.order.resolve_timeout(timeout)
        return self._current.submitter.start_p2p(
            operation, array, result, peer, tag, seconds, label, staging
        )

    def skip(self, reason: str) -> None:
        self._current.submitter.skip(reason)

    def change_ranks(self, kind: str, wanted: int, timeout: CallTimeout) -> None:
        """Change the group by hand, when the calls made so far have ended."""
        self.executor.run(self._change_when_idle(kind, wanted, self.order.clip_timeout(timeout)))
        self._seen_epoch = self._epoch

    def see_change(self, change: MembershipChanged) -> None:
        """Note that the program has got this error, so that its next calls are for the new group.

        From any thread.
        """
        self._seen_epoch = max(self._seen_epoch, change.new_epoch)

    def _find_job_rank(self, rank: int) -> int:
        """Return the rank in the job of a rank of the group; -1 where that is -1."""
        return self.engine.ranks[rank] if rank >= 0 else -1

    def _limit_timeout(self, timeout: CallTimeout) -> float:
        return max(self.order.clip_timeout(timeout), _MIN_TIMEOUT)

    def _enqueue_call(
        self,
        make: Callable[[Work], QueuedCall],
        signature: CallSignature,
        label: str | None,
        staging: Staging | None = None,
    ) -> Work:
        """Number a call and hand over to the loop, under one lock."""
        if (failed := self._callers_calls.find_failed()) is not None:
            return self._take_over(failed, make, signature, label)
        source = find_caller()
        with self.order.lock:
            if (clash := self.order.find_clash(label)) is not None:
                self.engine.refuse_clash(signature.operation, clash)
            call = self._number_call(make, signature, label)
            call.work.staging = staging
            call.source = source
            self.executor.call(self._submit, call)
        return call.work

    def _number_call(
        self, make: Callable[[Work], QueuedCall], signature: CallSignature, label: str | None
    ) -> QueuedCall:
        callbacks, number = self.executor.callbacks, self.order.take()
        work = ObservedWork(signature, number, label, self.name, callbacks, self.see_change)
        self.order.set_latest(work)
        call = make(work)
        call.group, call.epoch = self._current, self._epoch
        call.seen_epoch = self._seen_epoch
        work.own(lambda: self.executor.call(self._cancel, call))
        return call

    def _take_over(
        self,
        failed: FailedCall,
        make: Callable[[Work], QueuedCall],
        signature: CallSignature,
        label: str | None,
    ) -> Work:
        """Queue a call that failed on its caller's thread, ahead of all others; once."""
        if failed.queued is None:
            source = find_caller()
            with self.order.lock:
                failed.queued = self._number_call(make, signature, label)
            failed.queued.source = source
            failed.queued.backups = failed.split_backup(failed.queued.request.targets)
            failed.queued.failed = failed
        self.executor.call(self._submit_failed, failed.queued)
        return failed.queued.work

    def _submit_failed(self, call: QueuedCall) -> None:
        if not call.is_queued:
            call.is_queued = True
            self._queue.appendleft(call)
            self._callers_calls.note_taken_over()
            self._start_runner()

    def _submit(self, call: QueuedCall) -> None:
        self._queue.append(call)
        self._start_runner()

    def _start_runner(self) -> None:
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run_queue(), name=f"calls of {self.name}")

    def _cancel(self, call: QueuedCall) -> None:
        call.is_cancelled = True
        if call.current_work is not None:
            call.current_work.cancel_reason = call.work.cancel_reason
            call.current_work.cancel()

    async def _run_queue(self) -> None:
        while self._queue:
            await self._callers_calls.wait_idle(self.engine)
            call = self._queue.popleft()
            try:
                await self._perform(call)
                if (staging := call.work.staging) is not None:
                    await self._copy(staging, staging.store)
                    call.work.staging = None
            except Exception as error:  # whatever it is belongs to the caller, not to the loop
                call.work.fail(error)
            else:
                call.work.succeed(call.result)
            finally:
                if call.failed is None:
                    self._spare_buffers = call.backups
                call.backups = []
                self._offer_calls()
                self._numbering.release()

    def _offer_calls(self) -> None:
        """Let calls run on their callers' threads, if nothing is to be said before the next."""
        is_plain = (
            self._pending_change is None
            and self._final_failure is None
            and not self._is_last_call_decided
            and (self._policy.on_failure != "wait" or self._seen_epoch >= self._epoch)
        )
        self._callers_calls.offer(self.engine.order.direct_calls if is_plain else None)

    async def _perform(self, call: QueuedCall) -> None:
        """Carry a call out, again if need be; where this raises its arrays are as before."""
        if call.failed is not None:
            await self._go_on(call, await self._end_failed(call, call.failed))
            return
        if self._final_failure is not None:
            raise make_final_error(self._final_failure)
        news, self._pending_change = self._pending_change, None
        if news is not None and (self._policy.on_failure == "wait" or not call.is_repeatable):
            raise news
        if self._policy.on_failure == "wait" and call.seen_epoch < self._epoch:
            # The program did not know of the newcomers, which have made no such call: no number
            # is taken for it.
            raise self._make_change_error(call.seen_epoch)
        if call.work.staging is not None:
            await self._copy(call.work.staging, call.work.staging.load)
        await self._back_up(call)
        await self._go_on(call, await self._attempt(call))

    async def _go_on(self, call: QueuedCall, error: AllhandsError | None) -> None:
        """Make a call again, as often as need be, that has ended so."""
        while error is not None:
            try:
                if not isinstance(error, PeerFailed):
                    raise error
                if await self._handle_loss(call, error):
                    return
            except BaseException as failure:
                call.roll_back()
                if isinstance(failure, AllhandsError):
                    failure.restored()
                raise
            call.roll_back()
            error = await self._attempt(call)

    async def _end_failed(self, call: QueuedCall, failed: FailedCall) -> AllhandsError | None:
        """End the attempt that a caller's thread has made; return its error."""
        self._take_counts()
        confirmation, has_comm = failed.number + 1, self.engine.order.comm is not None
        if failed.was_left and has_comm:
            barrier = CollectiveRequest("barrier")
            return await self._confirm(
                self.engine.run_over_comm(barrier, confirmation, _CONFIRM_SECONDS, call.label)
            )
        if failed.was_left:
            confirming = failed.confirming or self._begin_confirmation(call.label)
            return await self._confirm(_await_work(confirming))
        if not has_comm:
            await self.engine.queue.wait_idle()  # until then the call may write its arrays
        error = failed.error
        if isinstance(error, PeerFailed):
            return error
        if failed.is_computed:
            self._computed_calls -= 1
        elif has_comm:  # nobody is to wait for its confirmation
            await self.engine.give_up(confirmation, "a call that failed")
        else:
            self._current.pass_over("a call that failed")
        if isinstance(error, AllhandsError):
            return error
        return AllhandsError(f"{call.work} was cancelled by this rank")

    def _take_counts(self) -> None:
        """Count the calls that were made on their callers' threads."""
        computed, returned = self._callers_calls.take_counts()
        self._computed_calls += computed
        self._returned_calls += returned

    async def _attempt(self, call: QueuedCall) -> AllhandsError | None:
        """Make the call once, on the current group; return its error."""
        group = self._current
        try:
            call.current_work = self._begin(call, group)
            call.set_call_site(call.current_work)
            result = await _await_work(call.current_work)
            if call.begin is not None:
                call.result = result
        except PeerFailed as error:
            return error
        except AllhandsError as error:
            group.pass_over("a call that failed")  # nobody is to wait for its confirmation
            return error
        finally:
            call.current_work = None
        self._computed_calls += 1
        confirming = self._begin_confirmation(call.label)
        call.set_call_site(confirming)
        return await self._confirm(_await_work(confirming))

    def _begin_confirmation(self, label: str | None = None) -> Work:
        """Begin the barrier behind a call."""
        return self._current.barrier(timeout=_CONFIRM_SECONDS, label=label)

    async def _confirm(self, confirming: Awaitable[object]) -> AllhandsError | None:
        """Wait until all ranks are known to have the result; return the error."""
        try:
            await confirming
        except PeerFailed as error:
            return error
        except AllhandsError as error:
            self._computed_calls -= 1  # somebody has no result, and nobody can have come out
            return error
        self._returned_calls += 1
        return None

    def _begin(self, call: QueuedCall, group: Group) -> Work:
        native, build = call.request, call.build
        if call.is_cancelled:
            group.pass_over(call.work.cancel_reason)
            raise AllhandsError(f"{call.work} was cancelled by this rank")
        if call.group is not group and not call.is_repeatable:
            # Another rank may have made its call for the group as it is now.
            group.pass_over("the call was made for the group before a change of its ranks")
            raise self._make_change_error(call.epoch)
        if call.root >= 0 and call.root not in group.submitter.engine.ranks:
            raise PeerFailed(f"{call.work} cannot end: its root is gone", (call.root,))
        if call.begin is not None:
            return call.begin(group.submitter)
        if call.root >= 0:
            root = group.submitter.engine.ranks.index(call.root)
            if root != native.root:
                native, build = change_root(native, root, group)
        return group.submitter.start(
            PrimitiveCall(native, build, call.result), call.timeout, call.label
        )

    async def _copy(self, staging: Staging, copy: Callable[[], None]) -> None:
        """Load or store the copies of a call."""
        if staging.nbytes > INLINE_COPY_BYTES:
            await asyncio.to_thread(copy)
        else:
            copy()

    async def _back_up(self, call: QueuedCall) -> None:
        """Copy the outputs of the call."""
        spare, self._spare_buffers = self._spare_buffers, []
        call.reserve_backups(spare)
        if sum(one.nbytes for one in call.backups) > INLINE_COPY_BYTES:
            await asyncio.to_thread(call.back_up)
        else:
            call.back_up()

    async def _handle_loss(self, call: QueuedCall, error: PeerFailed) -> bool:
        """Handle a loss of ranks; return whether the call is done on all ranks.

        False: it is to be made again.

        Raises:
            AllhandsError: it is not done, and will not be.
        """
        if self._policy.on_failure == "raise":
            done = not self._is_last_call_decided and await self._decide_last_call()
            if not done:
                error.again = functools.partial(self._repeat, call)
                raise error
            return True
        old = self._epoch
        try:
            if self._policy.on_failure == "wait":
                done = await self._change_group("replace", self._full_size, self.order.timeout)
            else:
                done = await self._change_group("shrink", 0, self.order.timeout)
        except CollectiveTimeout as late:
            self._final_failure = PeerFailed(
                append_clause(str(error), str(late)), error.failed_ranks
            )
            raise make_final_error(self._final_failure) from late
        if self.size < self._policy.min_size:
            self._final_failure = PeerFailed(
                append_clause(
                    str(error),
                    f"{self.size} ranks are left, and min_size is {self._policy.min_size}",
                ),
                error.failed_ranks,
            )
            if done:
                return True
            raise make_final_error(self._final_failure)
        changed = self._make_change_error(old)
        if done:
            # Others may have been in the next call already: it ends here as it did there.
            self._pending_change = changed
        elif self._policy.on_failure == "wait" or not call.is_repeatable:
            raise changed
        return done

    def _make_change_error(self, old_epoch: int) -> MembershipChanged:
        return MembershipChanged(
            f"group {self.name!r} has {self.size} ranks now, this one is rank "
            f"{self._current.rank}, and the call was made for others; its arrays are as they were",
            old_epoch=old_epoch,
            new_epoch=self._epoch,
        )

    async def _decide_last_call(self) -> bool:
        """Decide on the latest call of a group that will not go on."""
        decided = await self._decide_group_change("agree", 0, self.order.timeout)
        self._is_last_call_decided = True
        return self._is_done(decided)

    async def _decide_group_change(self, kind: str, wanted: int, timeout: float) -> GroupChange:
        """Decide on a group change with the remaining ranks, and on their calls under way."""
        self._callers_calls.offer(None)
        self._take_counts()
        proposal = GroupChangeRequest(
            kind, wanted=wanted, returned=self._returned_calls, computed=self._computed_calls
        )
        return await self._changer.decide_group_change(self._current.name, proposal, timeout)

    def _is_done(self, change: GroupChange) -> bool:
        """Return whether this rank's call under way counts as completed."""
        return self._returned_calls < self._computed_calls <= change.committed

    async def _change_group(self, kind: str, wanted: int, timeout: float) -> bool:
        """Go on as another group; return whether the latest call is done for all."""
        decided = await self._decide_group_change(kind, wanted, timeout)
        done, before = self._is_done(decided), self._current.name
        engine = await self._changer.apply_group_change(decided, self.order.timeout)
        self._current = Group(engine, self.executor, self.order.timeout, self._recovery)
        self._epoch = self._changer.epoch
        self._returned_calls = self._computed_calls = 0
        self._is_last_call_decided = False
        await self._changer.close_group(before)
        return done

    async def _change_when_idle(self, kind: str, wanted: int, timeout: float) -> None:
        self._callers_calls.offer(None)
        await self.wait_idle()
        await self._change_group(kind, wanted, timeout)
        self._full_size = self.size

    def _repeat(self, call: QueuedCall) -> Work:
        """Repeat a failed call on the remaining ranks.

        Raises:
            MembershipChanged: it has an item for each rank, or names one that has another number
                now and cannot be renumbered; the group has shrunk.
        """
        self.change_ranks("shrink", 0, None)
        ranks = self.engine.ranks
        is_renumbered = call.root in ranks and ranks.index(call.root) != call.request.root
        if call.has_blocks or (call.begin is not None and is_renumbered):
            raise self._make_change_error(call.epoch)

        def make(work: Work) -> QueuedCall:
            # With the root that it had: its number in the group may be another rank's now.
            return replace(
                call, work=work, current_work=None, backups=[], is_cancelled=False, failed=None
            )

        return self._enqueue_call(
            make, CallSignature(call.work.operation), call.label, call.work.staging
        )


async def _await_work(work: Work) -> Result:
    return await wrap_for_loop(work.get_future())
