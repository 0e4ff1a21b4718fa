"""A group's communicator over shared memory, and how a call there ends."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from allhands.collectives.reduction import OPS
from allhands.collectives.request import Native, call_of
from allhands.collectives.signature import Call, Shape
from allhands.engine.failures.call_errors import Failure
from allhands.engine.failures.slow_calls import Stall
from allhands.engine.failures.tracker import HISTORY, LATE, Endings, Found, first, stop
from allhands.engine.group_recorder import Recording
from allhands.engine.numbering import Order
from allhands.engine.work import explanations
from allhands.errors import AllhandsError
from allhands.runtime.job_thread import Aside
from allhands.runtime.termination import reason_of
from allhands.shm.areas import Grounds

if TYPE_CHECKING:
    from allhands._native import ShmComm, ShmP2P

logger = logging.getLogger(__name__)

_JUDGE_SECONDS = 10.0
"""More than any judgement takes: who waits for one should not outlive the loop that makes it."""
_ALL = (1 << 64) - 1
_WAIT_SECONDS = 0.1
"""How long the thread that waits for entries looks at one rank's."""


class Shared:
    """Lives on the loop; calls run on the thread beside it, or on the threads of callers."""

    def __init__(
        self,
        name: str,
        rank: int,
        order: Order,
        aside: Aside,
        endings: Endings,
        grounds: Grounds | None,
        recording: Recording,
        on_clash: Callable[[str, int, int, str], NoReturn],
    ) -> None:
        """`on_clash` is that of `ShmComm`."""
        self._name = name
        self._rank = rank
        self._order = order
        self._aside = aside
        self._endings = endings
        self._grounds = grounds
        self.recording = recording
        self._on_clash = on_clash
        self._loop = asyncio.get_running_loop()
        self._settling = asyncio.Lock()
        self._has_failed = False
        self._reasons: dict[int, Failure] = {}
        self._asking: dict[int, asyncio.Task[Found]] = {}
        self._stalls: dict[int, Stall] = {}
        self._waiting: dict[int, Sequence[int]] = {}
        """Whom a blocked call waits for, by its number, as told last."""
        self._calls: dict[int, Call] = {}
        """The latest calls of which steps went over shared memory, by the numbers of those."""

    @property
    def is_open(self) -> bool:
        """Whether it is yet to be found out whether the ranks share memory."""
        return self._grounds is not None and self._order.comm is None

    def missing(self) -> list[int]:
        """Return the ranks of the group that have not said whether they take part."""
        return [] if self._grounds is None else self._grounds.missing()

    async def settle(self, ended: Callable[[], int]) -> None:
        """Find out, as all ranks will; make the communicator. Calls up to `ended()` are over."""
        async with self._settling:
            if self.is_open:
                await self._settle(ended)

    async def _settle(self, ended: Callable[[], int]) -> None:
        grounds = self._grounds
        assert grounds is not None
        while missing := grounds.missing():
            await self._aside.run(partial(grounds.wait, missing[0], _WAIT_SECONDS))
        if refusal := grounds.refusal():
            logger.warning("group %r talks over links: %s", self._name, refusal)
            self._grounds = None
            return
        with self._order.lock:
            taken, queued = self._order.counted()
            self._order.comm = grounds.make_comm(
                rank=self._rank,
                timeout=self._order.timeout,
                ops=OPS,
                on_failure=self._on_failure,
                on_slow=self._on_slow,
                records=self.recording.size,
                on_clash=self._on_clash,
                last_number=taken,
                queued=queued,
            )
        if self._has_failed:
            self._order.comm.close()
        for completed in self._endings.limits():
            self._order.comm.limit(completed)
        if over := ended():  # before there was a communicator in which others could see it
            await self._aside.run(partial(self._order.comm.skip, over))

    def p2p_maker(self) -> "Callable[..., ShmP2P] | None":
        """Return the function that makes the ShmP2P of this rank; None: messages go over links."""
        if self._grounds is None or self._order.comm is None:
            return None
        size = self.recording.size
        timeout = self._order.timeout
        return partial(self._grounds.make_p2p, rank=self._rank, timeout=timeout, records=size)

    async def run(
        self,
        comm: "ShmComm",
        native: Native,
        sequence: int,
        timeout: float,
        deadline: float,
        label: str | None,
        call: Call | None = None,
    ) -> str:
        """Run a call from the queue; return how it was carried out.

        Where it is a step of another `call` it travels under its signature, and is named as that.
        """
        signature = None
        if call is not None:
            signature = call.signature
            self._calls[sequence] = call
            for old in [one for one in self._calls if one <= sequence - HISTORY]:
                del self._calls[old]
        await self._aside.run(
            partial(native.run, comm, sequence, timeout, deadline, label, signature)
        )
        last = comm.last_call()
        return "" if last is None else explanations.shared(last)

    async def pass_over(self, sequence: int) -> None:
        """Tell the others that a call will not be made here."""
        if (comm := self._order.comm) is not None:
            await self._aside.run(partial(comm.skip, sequence))

    def said(self, sequence: int) -> str | None:
        """Return what this rank called under a number, if that is not long ago."""
        comm = self._order.comm
        record = None if comm is None else comm.describe(sequence)
        if record is None:
            return None
        return self._endings.row(sequence, self._calls.get(sequence) or call_of(*record))

    # ------------------------------------------------------------ ends

    def interrupt(self, sequence: int, failure: Failure | None) -> None:
        """End a call from the queue, because of what is given, or of what others called."""
        if (comm := self._order.comm) is not None:
            if failure is not None:
                self._reasons[sequence] = failure
            comm.interrupt(sequence)

    def interrupt_current(self, sequence: int) -> None:
        """End the call with that number if it is under way on a caller's thread."""
        if (comm := self._order.comm) is not None and sequence == comm.progress()[0]:
            comm.interrupt(sequence)

    def give_up(self, sequence: int) -> None:
        """End the call with that number, under way on a caller's thread or next to begin there.

        One that is still further ahead ends where it finds that another rank gave it up.
        """
        if (comm := self._order.comm) is not None and sequence <= comm.progress()[1] + 1:
            comm.interrupt(sequence)

    def limit(self, completed: int) -> None:
        """End what needs a rank that left after call number `completed`."""
        if (comm := self._order.comm) is not None:
            comm.limit(completed)
            if (begun := comm.progress()[0]) > completed:
                comm.interrupt(begun)

    def fail(self) -> None:
        """End what runs, and turn down all to come."""
        self._has_failed = True
        if self._order.comm is not None:
            self._order.comm.close()

    async def idle(self) -> None:
        """Return when no call runs."""
        if (comm := self._order.comm) is not None:
            await self._aside.run(comm.wait_idle)

    def close(self, gone: Collection[int]) -> None:
        """Give the group's part of the memory up; every call has ended, these ranks are gone."""
        for asking in self._asking.values():
            asking.cancel()
        for stall in self._stalls.values():
            stall.end(well=False)
        comm, self._order.comm = self._order.comm, None
        if comm is not None and gone:
            comm.skip(_ALL)  # who has been expelled finds that, if it ever looks again
        if comm is not None:
            comm.leave()  # before the memory is given back: works may hold it for longer
        grounds, self._grounds = self._grounds, None
        if grounds is not None:
            grounds.close(gone)

    # ------------------------------------------------------------ on the thread of a call

    def _on_slow(self, sequence: int, operation: str, waiting: int, deadline: float) -> None:
        """Learn that a call has been blocked for a while, or has ended.

        Where an exception of a signal handler ended it the deadline is negative, and `operation`
        is the exception's name.
        """
        self._loop.call_soon_threadsafe(self._watch, sequence, operation, waiting, deadline)

    def _on_failure(
        self,
        status: str,
        sequence: int,
        operation: str,
        dtype: "np.dtype[np.generic] | None",
        count: int,
        op: int,
        root: int,
        shares: list[int] | None,
        shape: Shape | None,
        waiting: int,
        culprits: int,
        timeout: float,
        label: str | None,
        met: bool,
    ) -> None:
        """Raise what the failure of a call means; `met`: its outputs may have been touched."""
        call = self._calls.get(sequence) or call_of(
            operation, dtype, count, op, root, shares, shape, label
        )
        judging = self._judge(
            status, sequence, call, _places(waiting), _places(culprits), timeout, label
        )
        try:
            asyncio.run_coroutine_threadsafe(judging, self._loop).result(_JUDGE_SECONDS)
        except BaseException as error:
            if isinstance(error, AllhandsError):
                error.add_intact(not met, say=status != "mismatch" and dtype is not None)
            if (comm := self._order.comm) is not None:
                self.recording.failed_inline(comm, sequence, error)
            raise

    # ------------------------------------------------------------ on the loop

    def _watch(self, sequence: int, operation: str, waiting: int, deadline: float) -> None:
        if not waiting:
            self._unwatch(sequence, well=deadline >= 0)
            if (asked := self._asking.pop(sequence, None)) is not None:
                asked.cancel()
            if deadline < 0:
                self._endings.tell(sequence, reason_of(operation))
            return
        self._waiting[sequence] = places = _places(waiting)
        comm = self._order.comm
        if sequence in self._asking or comm is None or comm.progress()[1] >= sequence:
            return  # known, or over meanwhile
        self._asking[sequence] = self._endings.ask(sequence, operation, places, deadline)
        self._stalls[sequence] = self._endings.watch(
            operation,
            sequence,
            None,
            lambda: self._waiting.get(sequence, ()),
            comm.progress()[4],
            deadline,
            comm.wait_times(),
        )

    def _unwatch(self, sequence: int, *, well: bool) -> None:
        self._waiting.pop(sequence, None)
        if (stall := self._stalls.pop(sequence, None)) is not None:
            stall.end(well=well)

    async def _judge(
        self,
        status: str,
        sequence: int,
        call: Call,
        waiting: Sequence[int],
        culprits: Sequence[int],
        timeout: float,
        label: str | None,
    ) -> NoReturn:
        endings = self._endings
        what = endings.named(call.operation, sequence, label)
        self._unwatch(sequence, well=False)
        asking = self._asking.pop(sequence, None)
        try:
            if status == "abandoned":
                await endings.hear_why()
            reason = endings.reason(sequence) or self._reasons.pop(sequence, None)
            if reason is not None:
                raise reason(what)
            if status == "mismatch" or endings.is_refused(sequence):
                await endings.disagree(what, sequence, call)
            if status == "abandoned":
                raise await endings.given_up(call.operation, sequence, label, culprits)
            if status == "interrupted":
                raise AllhandsError(f"{what} was interrupted")
            if asking is not None:
                await first(asking, timeout=LATE)
            raise endings.timed_out(call.operation, sequence, label, timeout, asking, waiting)
        finally:
            if asking is not None:
                await stop(asking)
            endings.conclude(sequence)


def _places(bits: int) -> list[int]:
    """Return the ranks of a set."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
