"""A group's communicator over shared memory, and how a call there ends."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from allhands.collectives.reduction import OPS
from allhands.collectives.request import read_call_signature
from allhands.collectives.signature import CallSignature, CoalescedSignature
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.engine.failures.slow_calls import SlowCall
from allhands.engine.failures.tracker import (
    CALL_HISTORY,
    VERDICT_GRACE,
    FailureTracker,
    VerdictReply,
    cancel_and_wait,
    wait_first,
)
from allhands.engine.group_recorder import GroupRecorder
from allhands.engine.numbering import CallNumbering
from allhands.engine.work import explanations
from allhands.errors import AllhandsError
from allhands.runtime.job_thread import JobThread
from allhands.runtime.loop_call import LoopCall
from allhands.runtime.termination import get_cancel_reason
from allhands.shm.areas import GroupAreas
from allhands.tracebacks import hide_traceback

if TYPE_CHECKING:
    from allhands._native import ShmComm, ShmP2P
    from allhands.shm.failures import CallFailure

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FAILURE_SECONDS = 10.0
"""More than any judgement takes: who waits for one should not outlive the loop that makes it."""
_ALL_CALLS = (1 << 64) - 1
_EARLY_LOOKS = (0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds between looks at whether all ranks have made a new group."""
_PREFAULT_DELAY = 0.01
"""Seconds from the making of a group to when it touches the memory of calls yet to come."""
_WAIT_SECONDS = 0.1
"""How long the thread that waits for entries looks at one rank's."""


class GroupChannel:
    """Lives on the loop; calls run on the thread beside it, or on the threads of callers."""

    def __init__(
        self,
        name: str,
        rank: int,
        order: CallNumbering,
        job_thread: JobThread,
        failures: FailureTracker,
        areas: GroupAreas | None,
        recorder: GroupRecorder,
        on_clash: Callable[[str, int, int, str], NoReturn],
        verifies: bool,
    ) -> None:
        """`on_clash` and `verifies` are those of `ShmComm`."""
        self._name = name
        self._rank = rank
        self._order = order
        self._job_thread = job_thread
        self._failures = failures
        self._areas = areas
        self.recorder = recorder
        self._on_clash = on_clash
        self._verifies = verifies
        self._loop = asyncio.get_running_loop()
        self._negotiation_lock = asyncio.Lock()
        self._has_failed = False
        self._prefaulting: asyncio.Task[None] | None = None
        self._interrupt_failures: dict[int, ErrorFactory] = {}
        self._verdict_tasks: dict[int, tuple[asyncio.Task[VerdictReply], float]] = {}
        """Of blocked calls, by their numbers, with the deadlines at which verdicts come."""
        self._slow_calls: dict[int, SlowCall] = {}
        self._awaited: dict[int, Sequence[int]] = {}
        """Whom a blocked call waits for, by its number, as told last."""
        self._composite_calls: dict[int, CallSignature] = {}
        """The latest calls of which steps went over shared memory, by the numbers of those."""

    @property
    def is_undecided(self) -> bool:
        """Whether it is yet to be found out whether the ranks share memory."""
        return self._areas is not None and self._order.comm is None

    def list_missing(self) -> list[int]:
        """Return the group's ranks with no decision yet on shared memory."""
        return [] if self._areas is None else self._areas.list_missing()

    async def negotiate(self, get_last_ended: Callable[[], int]) -> None:
        """Find out, as all ranks will; make the communicator. Calls up to `ended()` are over."""
        async with self._negotiation_lock:
            if self.is_undecided:
                await self._negotiate(get_last_ended)

    async def negotiate_early(self, get_last_ended: Callable[[], int]) -> None:
        """Find out before the first call, where the ranks make the group at about the same time.

        What others write in shared memory makes no event of the loop, and a thread that waits for
        it would outlast its use: so this looks a few times, and leaves the rest to the first call.
        """
        for seconds in _EARLY_LOOKS:
            if not self.is_undecided:
                return
            if not self.list_missing():
                await self.negotiate(get_last_ended)
                if self._areas is not None and self._areas.prefault_slots():
                    self._prefaulting = asyncio.create_task(
                        self._prefault(self._areas), name=f"memory of {self._name}"
                    )
                return
            await asyncio.sleep(seconds)

    async def _prefault(self, areas: GroupAreas) -> None:
        """Touch the memory of the first calls, step by step, so that the loop has its turn.

        A program that goes on at once is not held up: its calls touch what they need.
        """
        await asyncio.sleep(_PREFAULT_DELAY)
        for _ in areas.prefault():
            await asyncio.sleep(0)

    async def _negotiate(self, get_last_ended: Callable[[], int]) -> None:
        grounds = self._areas
        assert grounds is not None
        while missing := grounds.list_missing():
            await self._job_thread.run(partial(grounds.wait_entry, missing[0], _WAIT_SECONDS))
        if refusal := grounds.get_refusal():
            logger.warning("group %r talks over links: %s", self._name, refusal)
            self._areas = None
            return
        with self._order.lock:
            taken, queued = self._order.get_counts()
            self._order.comm = grounds.make_comm(
                rank=self._rank,
                timeout=self._order.timeout,
                ops=OPS,
                on_failure=self._on_failure,
                on_slow=self._on_slow,
                records=self.recorder.size,
                on_clash=self._on_clash,
                verifies=self._verifies,
                last_number=taken,
                queued=queued,
            )
        if self._has_failed:
            self._order.comm.close()
        for completed in self._failures.list_last_calls():
            self._order.comm.limit(completed)
        if over := get_last_ended():  # before there was a communicator in which others could see it
            await self._job_thread.run(partial(self._order.comm.skip, over))

    def p2p_maker(self) -> "Callable[..., ShmP2P] | None":
        """Return the function that makes the ShmP2P of this rank; None: messages go over links."""
        if self._areas is None or self._order.comm is None:
            return None
        size = self.recorder.size
        timeout = self._order.timeout
        return partial(self._areas.make_p2p, rank=self._rank, timeout=timeout, records=size)

    async def run(self, comm: "ShmComm", call: Callable[[], T]) -> tuple[T, str]:
        """Run a queued call; return its result, and the explanation of how it was carried out."""
        result = await self._job_thread.run(call)
        last = comm.last_call()
        return result, "" if last is None else explanations.explain_shm(last)

    def note_composite(self, sequence: int, call: CallSignature) -> None:
        """Note the call of which a step goes over shared memory under that number."""
        self._composite_calls[sequence] = call
        for old in [one for one in self._composite_calls if one <= sequence - CALL_HISTORY]:
            del self._composite_calls[old]

    async def skip(self, sequence: int) -> None:
        """Notify the peers that this rank will not make a call."""
        if (comm := self._order.comm) is not None:
            await self._job_thread.run(partial(comm.skip, sequence))

    def find_own_call(self, sequence: int) -> str | None:
        """Return this rank's recent call under a number; None: unknown or too old."""
        comm = self._order.comm
        record = None if comm is None else comm.describe(sequence)
        if record is None:
            return None
        return self._failures.format_row(
            sequence, self._composite_calls.get(sequence) or read_call_signature(*record)
        )

    # ------------------------------------------------------------ ends

    def interrupt(self, sequence: int, failure: ErrorFactory | None) -> None:
        """End a queued call with `failure`, or because of peers' different calls."""
        if (comm := self._order.comm) is not None:
            if failure is not None:
                self._interrupt_failures[sequence] = failure
            comm.interrupt(sequence)

    def interrupt_current(self, sequence: int) -> None:
        """End the call with that number if under way on a caller's thread."""
        if (comm := self._order.comm) is not None and sequence == comm.progress()[0]:
            comm.interrupt(sequence)

    def interrupt_next(self, sequence: int) -> None:
        """End the call with that number, under way on a caller's thread or next to begin there.

        One that is still further ahead ends where it finds that another rank gave it up.
        """
        if (comm := self._order.comm) is not None and sequence <= comm.progress()[1] + 1:
            comm.interrupt(sequence)

    def limit(self, completed: int) -> None:
        """End the calls that need a rank departed after call number `completed`."""
        if (comm := self._order.comm) is not None:
            comm.limit(completed)
            if (begun := comm.progress()[0]) > completed:
                comm.interrupt(begun)

    def fail(self) -> None:
        """End the running call, and refuse all later calls."""
        self._has_failed = True
        if self._order.comm is not None:
            self._order.comm.close()

    async def wait_idle(self) -> None:
        """Return when no call runs."""
        if (comm := self._order.comm) is not None:
            await self._job_thread.run(comm.wait_idle)

    def close(self, lost_ranks: Collection[int]) -> None:
        """Give the group's part of the memory up; every call has ended, these ranks are gone."""
        if self._prefaulting is not None:
            self._prefaulting.cancel()
        for asking, _ in self._verdict_tasks.values():
            asking.cancel()
        for stall in self._slow_calls.values():
            stall.end(has_succeeded=False)
        comm, self._order.comm = self._order.comm, None
        if comm is not None and lost_ranks:
            comm.skip(_ALL_CALLS)  # who has been expelled finds that, if it ever looks again
        if comm is not None:
            comm.leave()  # before the memory is given back: works may hold it for longer
        grounds, self._areas = self._areas, None
        if grounds is not None:
            grounds.close(lost_ranks)

    # ------------------------------------------------------------ on the thread of a call

    def _on_slow(self, sequence: int, operation: str, awaited_mask: int, deadline: float) -> None:
        """Learn that a call has been blocked for a while, or has ended.

        Where an exception of a signal handler ended it the deadline is negative, and `operation`
        is the exception's name.
        """
        self._loop.call_soon_threadsafe(self._watch, sequence, operation, awaited_mask, deadline)

    def _on_failure(self, failure: "CallFailure") -> None:
        """Raise the error of a failed call."""
        call = self._composite_calls.get(failure.sequence) or read_call_signature(
            failure.operation,
            failure.dtype,
            failure.count,
            failure.op,
            failure.root,
            failure.splits,
            failure.shape,
            failure.label,
        )
        raising = LoopCall(self._loop, partial(self._raise_failure, failure, call))
        try:
            raising.submit()
            raising.wait(_FAILURE_SECONDS)
        except BaseException as error:
            if isinstance(error, AllhandsError):
                has_outputs = not isinstance(
                    failure.dtype, CallSignature | CoalescedSignature | None
                )
                says = failure.status != "mismatch" and has_outputs
                error.add_intact(not failure.touches_output or not has_outputs, say=says)
            if (comm := self._order.comm) is not None:
                self.recorder.failed_inline(comm, failure.sequence, error)
            hide_traceback(error)
            raise

    # ------------------------------------------------------------ on the loop

    def _watch(self, sequence: int, operation: str, awaited_mask: int, deadline: float) -> None:
        if not awaited_mask:
            self._unwatch(sequence, has_succeeded=deadline >= 0)
            if (asked := self._verdict_tasks.pop(sequence, None)) is not None:
                asked[0].cancel()
            if deadline < 0:
                self._failures.send_give_up(sequence, get_cancel_reason(operation))
            return
        self._awaited[sequence] = places = _decode_ranks(awaited_mask)
        comm = self._order.comm
        if sequence in self._verdict_tasks or comm is None or comm.progress()[1] >= sequence:
            return  # known, or over meanwhile
        asking = self._failures.request_verdict(sequence, operation, places, deadline)
        self._verdict_tasks[sequence] = asking, deadline
        self._slow_calls[sequence] = self._failures.watch(
            operation,
            sequence,
            None,
            lambda: self._awaited.get(sequence, ()),
            comm.progress()[4],
            deadline,
            comm.wait_times(),
        )

    def _unwatch(self, sequence: int, *, has_succeeded: bool) -> None:
        self._awaited.pop(sequence, None)
        if (stall := self._slow_calls.pop(sequence, None)) is not None:
            stall.end(has_succeeded=has_succeeded)

    async def _raise_failure(self, failure: "CallFailure", call: CallSignature) -> NoReturn:
        endings, sequence = self._failures, failure.sequence
        what = endings.name_call(call.operation, sequence, failure.label)
        self._unwatch(sequence, has_succeeded=False)
        asking, deadline = self._verdict_tasks.pop(sequence, (None, 0.0))
        try:
            if failure.status == "different":
                raise endings.make_results_differ(sequence, _decode_ranks(failure.offenders))(what)
            if failure.status == "abandoned":
                await endings.await_failure_reason()
            reason = endings.find_failure(sequence)
            interrupt = self._interrupt_failures.pop(sequence, None)
            if reason is None and interrupt is not None:
                raise interrupt(what)
            if failure.status == "mismatch" or endings.has_mismatch(sequence):
                # Ranks that have found it may be gone by now: that says less.
                await endings.raise_mismatch(what, sequence, call)
            if reason is not None:
                if not await endings.is_timed_out_elsewhere(sequence, asking, deadline):
                    raise reason(what)
            elif failure.status == "abandoned":
                raise await endings.await_abandoned_error(
                    call.operation, sequence, failure.label, _decode_ranks(failure.offenders)
                )
            elif failure.status == "interrupted":
                raise AllhandsError(f"{what} was interrupted")
            elif asking is not None:
                await wait_first(asking, timeout=VERDICT_GRACE)
            raise endings.build_timeout_error(
                call.operation,
                sequence,
                failure.label,
                failure.timeout,
                asking,
                _decode_ranks(failure.waiting),
            )
        finally:
            if asking is not None:
                await cancel_and_wait(asking)
            endings.conclude(sequence)


def _decode_ranks(bits: int) -> list[int]:
    """Return the ranks of a set."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
