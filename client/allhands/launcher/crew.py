"""The ranks of one host at work: the shell around `supervision`."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing, suppress
from functools import partial

from allhands.launcher.child import Child
from allhands.launcher.output import Floor, Pump, Writer
from allhands.launcher.plan import Launch
from allhands.launcher.processes import Guardian, RankProcess, start_rank
from allhands.launcher.reports import Reports
from allhands.launcher.supervision import (
    Abandon,
    Blamed,
    Broken,
    Culprit,
    Event,
    Failure,
    Order,
    PatienceOver,
    RankEnded,
    RankEnding,
    RankFails,
    SignalReceived,
    Supervisor,
    Tell,
    Wait,
    describe,
    describe_status,
    signal_name,
)
from allhands.runtime.exit_notice import Announcements, Cause, Failing, Leaving

_STDOUT, _STDERR = 1, 2
_FLOOR_SECONDS = 0.5


class Crew:
    """The ranks of this host, and what is going on with them."""

    def __init__(self, plan: Launch) -> None:
        self._plan = plan
        self._supervisor = Supervisor(plan.placement.local_size, plan.least, plan.grace)
        self._running: dict[int, Child] = {}
        self._attended: set[int] = set()
        """Ranks whose output is not out yet."""
        self._pids: dict[int, int] = {}
        self._reports = Reports(plan.rendezvous)
        self._writer = Writer()
        self._floor = Floor()
        self._abandoned = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """Start the ranks, see them to their end, and return the launcher's exit status.

        Raises:
            OSError: the launch could not begin.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._writer.close)
            stack.callback(self._reports.close)
            announcements = stack.enter_context(closing(Announcements(self._plan.directory)))
            loop = asyncio.get_running_loop()
            loop.add_reader(announcements, self._listen, announcements)
            stack.callback(loop.remove_reader, announcements)
            guardian = Guardian(self._plan.directory)
            stack.push_async_callback(guardian.finish)
            await _first_of(self._run_all(guardian, announcements), self._abandoned.wait())
            if self._alarm is not None:
                self._alarm.cancel()
        return self._supervisor.exit_status()

    async def _run_all(self, guardian: Guardian, announcements: Announcements) -> None:
        async with asyncio.TaskGroup() as attendants:
            for rank in self._plan.placement.ranks:
                if (process := self._start(rank)) is None:
                    break
                guardian.guard(process.child.pid)
                listen = partial(self._listen, announcements)
                attendants.create_task(self._attend(process, guardian, listen))
        if text := self._account():
            await self._say(text)

    async def _say(self, text: str) -> None:
        with suppress(OSError):  # nobody is left to be told
            await self._writer.write([(_STDERR, f"allhands: {text}\n".encode())])

    def _start(self, rank: int) -> RankProcess | None:
        try:
            process = start_rank(rank, self._plan.program, self._plan.environment_of(rank))
        except OSError as error:
            self.take(Broken(f"rank {rank} could not be started: {error}"))
            return None
        self._pids[rank] = process.child.pid
        self._reports.begun(process.child.pid)
        self._running[rank] = process.child
        self._attended.add(rank)
        return process

    async def _attend(
        self, process: RankProcess, guardian: Guardian, listen: Callable[[], None]
    ) -> None:
        """Carry the output of a rank until it has ended and everything it wrote is out."""
        rank = process.rank
        tee = self._plan.tees.get(rank)
        pumps = [
            Pump(rank, source, target, tee, self._writer, self._floor, listen)
            for source, target in ((process.stdout, _STDOUT), (process.stderr, _STDERR))
        ]
        async with asyncio.TaskGroup() as streams:
            for pump in pumps:
                streams.create_task(self._carry(pump))
            await process.child.ended()
            listen()
            status = self._bury(process.child, rank, guardian)
            # Now: what others announce because of it comes while it is reported.
            self.take(RankEnding(rank, failing=False))
            if not self._supervisor.tells:  # else it is this launcher that ends them
                await self._reports.ended(process.child.pid, status)
            self.take(RankEnded(rank, status))
            for pump in pumps:
                pump.rank_ended()
        if status and self._supervisor.trouble is None:
            await self._say(f"rank {rank} failed: {self._how(rank, status)}; the others go on")
        self._attended.discard(rank)
        self._floor.release(rank)

    def _bury(self, child: Child, rank: int, guardian: Guardian) -> int:
        """End what a rank that has ended left in its group; return the rank's status."""
        child.tell(signal.SIGKILL)
        guardian.dismiss(child.pid)
        del self._running[rank]
        return child.reap()

    async def _carry(self, pump: Pump) -> None:
        try:
            await pump.run()
        except OSError as error:
            reason = f"the output of rank {pump.rank} could not be written: {error.strerror}"
            self.take(Broken(reason))

    def take(self, event: Event) -> None:
        """Let the supervisor decide about an event, and do what it says, at once."""
        orders = self._supervisor.handle(event)
        # The last words of a rank come before what the others have to say about its end.
        if isinstance(event, RankEnding):
            self._floor.give(event.rank)
            # It may have left its job and go on, with nothing wrong: then nobody waits for long.
            asyncio.get_running_loop().call_later(_FLOOR_SECONDS, self._lapse, event.rank)
        for rank in self._suspects():
            if rank in self._attended:
                self._floor.give(rank)
        for order in orders:
            self._obey(order)

    def _suspects(self) -> tuple[int, ...]:
        trouble = self._supervisor.trouble
        return trouble.suspects if isinstance(trouble, Failure) else ()

    def _lapse(self, rank: int) -> None:
        if rank not in self._suspects():
            self._floor.release(rank)

    def _listen(self, announcements: Announcements) -> None:
        """Take in which ranks are about to end, before anything that follows from it is shown."""
        for announcement in announcements.heard():
            # A rank that was killed announces nothing, but may be what this one fails of.
            for rank, child in self._running.items():
                if child.has_ended():
                    self.take(RankEnding(rank, failing=False))
            for rank, child in [*self._running.items()]:
                if child.pid == announcement.pid:
                    match announcement:
                        case Leaving(_, failing):
                            self.take(RankEnding(rank, failing))
                        case Failing(_, cause):
                            of = None if cause is None else self._blamed(cause)
                            self.take(RankFails(rank, of))

    def _blamed(self, cause: Cause) -> Blamed:
        """Return whom a rank blames: one of this launch goes by the rank that it has here."""
        if cause.host == socket.gethostname():
            for rank, pid in self._pids.items():
                if pid == cause.pid:
                    return Blamed(rank, True, cause.state, cause.text)
        return Blamed(cause.rank, False, cause.state, cause.text)

    def _obey(self, order: Order) -> None:
        match order:
            case Tell(signum, spare):
                for rank, child in self._running.items():
                    if rank not in spare:
                        child.tell(signum)
            case Wait(seconds):
                if self._alarm is not None:
                    self._alarm.cancel()
                loop = asyncio.get_running_loop()
                self._alarm = loop.call_later(seconds, self.take, PatienceOver())
            case Abandon():
                self._abandoned.set()

    def _how(self, rank: int, status: int | None) -> str:
        return f"{describe_status(status)} ({self._process(rank)})"

    def _process(self, rank: int) -> str:
        return f"host {socket.gethostname()}, pid {self._pids[rank]}"

    def _account(self) -> str:
        """Say what went wrong; empty if nothing did."""
        match self._supervisor.trouble:
            case None:
                return ""
            case Failure() as failure:
                return self._blame(self._supervisor.culprit(failure))
            case SignalReceived(signum):
                return f"ended by {signal_name(signum)}, and the ranks with it"
            case Broken(reason):
                return f"{reason}; the ranks were ended"

    def _blame(self, culprit: Culprit) -> str:
        rank = culprit.rank
        if not culprit.is_here:
            return f"rank {rank} failed first: {describe(culprit, '')}; the ranks here were ended"
        how = describe(culprit, self._process(rank))
        if self._plan.placement.local_size == 1:
            return f"rank {rank} failed: {how}"
        then = ""
        if culprit.victim is not None and not culprit.status:
            victim, status = culprit.victim
            then = f"; then rank {victim}: {describe_status(status)}"
        return f"rank {rank} failed first: {how}{then}; the others were ended"


async def _first_of(*works: Awaitable[object]) -> None:
    """Run until one of them is done, and cancel the others; what it raised is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
