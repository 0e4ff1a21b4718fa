"""The ranks of one host: the asynchronous shell around `supervision`."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path

from allhands.launcher.child import Child
from allhands.launcher.embedded import make_client_endpoint
from allhands.launcher.exit_reports import ExitReporter
from allhands.launcher.forking import ForkRefused, ForkServer, check_way, fork_ranks
from allhands.launcher.join_watch import JoinWatch
from allhands.launcher.output import OutputPriority, Pump, Writer
from allhands.launcher.own_events import Note, ignore_note
from allhands.launcher.plan import LaunchPlan
from allhands.launcher.processes import RankProcess, ReaperProcess, choose_input, start_rank
from allhands.launcher.supervision import (
    Action,
    BlamedRank,
    Event,
    FirstFailure,
    JobStalled,
    LaunchBroken,
    PeerLossReported,
    RankExited,
    RankExiting,
    RankFailure,
    SendSignal,
    SignalReceived,
    StartTimer,
    StopWaiting,
    Supervisor,
    TimerExpired,
    describe,
    describe_status,
    name_signal,
)
from allhands.runtime.exit_notice import (
    ExitNoticeListener,
    FailingNotice,
    FailureCause,
    LeavingNotice,
)

logger = logging.getLogger(__name__)

_STDOUT, _STDERR = 1, 2
_PRIORITY_SECONDS = 0.5


class RankSet:
    """The running ranks of this host and the tasks that attend to them."""

    def __init__(
        self,
        plan: LaunchPlan,
        supervisor: Supervisor | None = None,
        writer: Writer | None = None,
        note: Note = ignore_note,
        fork_server: ForkServer | None = None,
    ) -> None:
        """Prepare a launch; by default it is supervised here, and written to standard output.

        `fork_server`: one that has been started for these ranks; it is closed by `run`.
        """
        self._plan = plan
        self._fork_server = fork_server
        self._note = note
        self._count = plan.placement.local_size
        self._supervisor = supervisor or Supervisor(self._count, plan.min_size, plan.grace)
        self._children: dict[int, Child] = {}
        self._unflushed: set[int] = set()
        """Ranks whose output is not out yet."""
        self._pids: dict[int, int] = {}
        self._last_signal: int | None = None
        self._writer = writer or Writer()
        self._output_priority = OutputPriority()
        self._abandoned = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._exit_reporter = ExitReporter(plan.endpoint, plan.report_exit)

    @property
    def may_restart(self) -> bool:
        """Whether new ranks may succeed; call after `run`."""
        return self._supervisor.may_restart

    async def run(self) -> int:
        """Start the ranks, wait for all, and return the launcher's exit status.

        Raises:
            OSError: the launch could not begin.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._writer.close)
            work = self._prepare(stack)
            watch = self._watch_stalls()
            stack.push_async_callback(_cancel, watch)
            stack.push_async_callback(_cancel, self._watch_joining())
            await _run_until_first(work, self._abandoned.wait())
            if self._timer is not None:
                self._timer.cancel()
        return self._supervisor.compute_exit_status()

    def _prepare(self, stack: AsyncExitStack) -> Awaitable[None]:
        """Return what runs the ranks; what it needs ends with the stack.

        Raises:
            OSError: the launch could not begin.
        """
        stack.callback(self._exit_reporter.close)
        announcements = stack.enter_context(closing(ExitNoticeListener(self._plan.directory)))
        loop = asyncio.get_running_loop()
        loop.add_reader(announcements, self._read_notices, announcements)
        stack.callback(loop.remove_reader, announcements)
        reaper = ReaperProcess(self._plan.directory)
        stack.push_async_callback(reaper.finish)
        for name, text in self._plan.files.items():
            path = Path(self._plan.directory, name)
            path.touch(mode=0o600)
            path.write_text(text)
        return self._run_all(reaper, announcements)

    def _watch_stalls(self) -> "asyncio.Task[None] | None":
        # One launcher of several is enough: a job that is aborted ends on all nodes.
        if (policy := self._plan.stall) is None or self._plan.placement.node:
            return None
        from allhands.launcher.stall_watch import StallWatch  # which few launches need

        endpoint = make_client_endpoint(self._plan.endpoint)
        job = self._plan.endpoint.job
        watch = StallWatch(policy, endpoint, job, self.handle, self.print, self._note)
        return asyncio.create_task(watch.run())

    def _watch_joining(self) -> "asyncio.Task[None] | None":
        # A log file has no use for progress, and one launcher of several is enough.
        if not os.isatty(_STDERR) or self._plan.placement.node:
            return None
        watch = JoinWatch(
            make_client_endpoint(self._plan.endpoint),
            self._plan.endpoint.job,
            self._plan.placement.world_size,
            self.print,
        )
        return asyncio.create_task(watch.run())

    async def _run_all(self, reaper: ReaperProcess, notices: ExitNoticeListener) -> None:
        async with asyncio.TaskGroup() as attendants:
            async for process in self._start_ranks():
                self._register(process, reaper)
                listen = partial(self._read_notices, notices)
                attendants.create_task(self._attend(process, reaper, listen))
        if text := self._summarize():
            await self.print(text)

    async def print(self, text: str) -> None:
        """Write a text of the launcher's to stderr, among the output of the ranks."""
        with suppress(OSError):  # nobody is left to be told
            await self._writer.write([(_STDERR, f"allhands: {text}\n".encode())])

    async def _start_ranks(self) -> AsyncIterator[RankProcess]:
        """Start all ranks, or those before the first that cannot be started."""
        plan = self._plan
        environments = {rank: plan.make_environment(rank) for rank in plan.placement.ranks}
        if plan.start != "exec":
            try:
                for process in await self._fork(environments):
                    yield process
                return
            except (ForkRefused, OSError, TimeoutError) as error:
                if plan.start == "fork":
                    self.handle(LaunchBroken(f"the ranks could not be forked: {error}"))
                    return
                logger.info("ranks are started one by one: %s", error)
        for rank, environment in environments.items():
            try:
                stdin = choose_input(rank)
                yield start_rank(rank, plan.program, environment, plan.cpus.get(rank), stdin)
            except OSError as error:
                self.handle(LaunchBroken(f"rank {rank} could not be started: {error}"))
                return

    async def _fork(self, environments: Mapping[int, Mapping[str, str]]) -> list[RankProcess]:
        plan, server = self._plan, self._fork_server
        if server is None:
            common = plan.make_common_environment()
            check_way(plan.program, common, plan.placement, plan.start, is_python=plan.is_python)
            server = ForkServer.start(plan.program, common, plan.placement.ranks.start)
        return await fork_ranks(server, environments, plan.cpus)

    def _register(self, process: RankProcess, reaper: ReaperProcess) -> None:
        rank, child = process.rank, process.child
        reaper.add_group(child.pid)
        self._pids[rank] = child.pid
        self._exit_reporter.add_process(child.pid)
        self._children[rank] = child
        self._unflushed.add(rank)
        if self._last_signal is not None:  # sent while this one was being started
            child.send_signal(self._last_signal)

    async def _attend(
        self, process: RankProcess, reaper: ReaperProcess, read_notices: Callable[[], None]
    ) -> None:
        """Forward the output of a rank until the rank has ended and all output is written."""
        rank = process.rank
        tee = self._plan.tees.get(rank)
        pumps = [
            Pump(rank, source, target, tee, self._writer, self._output_priority, read_notices)
            for source, target in ((process.stdout, _STDOUT), (process.stderr, _STDERR))
        ]
        async with asyncio.TaskGroup() as streams:
            for pump in pumps:
                streams.create_task(self._run_pump(pump))
            await process.child.wait_ended()
            read_notices()
            status = self._reap(process.child, rank, reaper)
            # Now: what others announce because of it comes while it is reported.
            self.handle(RankExiting(rank, is_failing=False))
            if not self._supervisor.has_signalled:  # else it is this launcher that ends them
                await self._exit_reporter.report_exit(process.child.pid, status)
            self.handle(RankExited(rank, status))
            for pump in pumps:
                pump.on_rank_exit()
        await self._finish_rank(rank, status)

    async def _finish_rank(self, rank: int, status: int) -> None:
        """Note that all output of an ended rank is out."""
        if status and self._supervisor.problem is None:
            await self.print(
                f"rank {rank} failed: {self._describe_end(rank, status)}; the others go on"
            )
        self._unflushed.discard(rank)
        self._output_priority.release(self._find_speaker(rank))

    def _find_speaker(self, rank: int) -> int:
        """Return the number under which a rank's output has its turn."""
        return rank

    def _reap(self, child: Child, rank: int, reaper: ReaperProcess) -> int:
        """Kill the rest of an ended rank's process group; return the rank's status."""
        child.send_signal(signal.SIGKILL)
        reaper.remove_group(child.pid)
        del self._children[rank]
        return child.reap()

    async def _run_pump(self, pump: Pump) -> None:
        try:
            await pump.run()
        except OSError as error:
            reason = f"the output of rank {pump.rank} could not be written: {error.strerror}"
            self.handle(LaunchBroken(reason))

    def handle(self, event: Event) -> None:
        """Pass an event to the supervisor and carry out the decision at once."""
        orders = self._supervisor.handle(event)
        # The last words of a rank come before what the others have to say about its end.
        if isinstance(event, RankExiting):
            self._output_priority.grant(self._find_speaker(event.rank))
            # It may have left its job and go on, with nothing wrong: then nobody waits for long.
            asyncio.get_running_loop().call_later(
                _PRIORITY_SECONDS, self._expire_priority, event.rank
            )
        for rank in self._list_suspects():
            if rank in self._unflushed:
                self._output_priority.grant(self._find_speaker(rank))
        for order in orders:
            self._execute(order)

    def _list_suspects(self) -> tuple[int, ...]:
        trouble = self._supervisor.problem
        return trouble.suspects if isinstance(trouble, RankFailure) else ()

    def _expire_priority(self, rank: int) -> None:
        if rank not in self._list_suspects():
            self._output_priority.release(self._find_speaker(rank))

    def _read_notices(self, notices: ExitNoticeListener) -> None:
        """Read exit notices before output and exits that follow from the failures."""
        if not (received := [*notices.read_notices()]):
            return
        ended = [(rank, child) for rank, child in self._children.items() if child.has_ended()]
        received += notices.read_notices()  # so that those of all that had ended are among them
        announced = {one.pid for one in received if isinstance(one, LeavingNotice)}
        for rank, child in ended:
            # A rank that was killed announces nothing, but may be what the others fail of.
            if child.pid not in announced:
                self.handle(RankExiting(rank, is_failing=False))
        for announcement in received:
            for rank, child in [*self._children.items()]:
                if child.pid == announcement.pid:
                    match announcement:
                        case LeavingNotice(_, failing):
                            self.handle(RankExiting(rank, failing))
                        case FailingNotice(_, cause):
                            of = None if cause is None else self._resolve_blamed(cause)
                            self.handle(PeerLossReported(rank, of))

    def _resolve_blamed(self, cause: FailureCause) -> BlamedRank:
        """Return the blamed rank, by local rank if the process is of this launch."""
        if cause.host == socket.gethostname():
            for rank, pid in self._pids.items():
                if pid == cause.pid:
                    return BlamedRank(rank, True, cause.state, cause.text)
        return BlamedRank(cause.rank, False, cause.state, cause.text)

    def _execute(self, action: Action) -> None:
        match action:
            case SendSignal(signum, spare):
                self.send_signal(signum, spare)
            case StartTimer(seconds):
                if self._timer is not None:
                    self._timer.cancel()
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(seconds, self.handle, TimerExpired())
            case StopWaiting():
                self._abandoned.set()

    def send_signal(self, signum: int, spare: Collection[int] = ()) -> None:
        """Send a signal to the groups of all ranks but some."""
        self._last_signal = signum
        for rank, child in self._children.items():
            if rank not in spare:
                child.send_signal(signum)

    def _describe_end(self, rank: int, status: int | None) -> str:
        return f"{describe_status(status)} ({self._describe_process(rank)})"

    def _describe_process(self, rank: int) -> str:
        return f"host {socket.gethostname()}, pid {self._pids[rank]}"

    def _summarize(self) -> str:
        """Describe the failure of the launch; empty if there was none."""
        match self._supervisor.problem:
            case None:
                return ""
            case RankFailure() as failure:
                return self._describe_failure(self._supervisor.find_first_failure(failure))
            case SignalReceived(signum):
                return f"ended by {name_signal(signum)}, and the ranks with it"
            case LaunchBroken(reason):
                return f"{reason}; the ranks were ended"
            case JobStalled(verdict, restarts):
                how = "" if restarts else "the job was aborted, and "
                return f"stalled: {verdict}; {how}the ranks were ended"

    def _describe_failure(self, first: FirstFailure) -> str:
        rank = first.rank
        failed = "was waited for in vain" if first.is_late else "failed first"
        if not first.is_here:
            return f"rank {rank} {failed}: {describe(first, '')}; the ranks here were ended"
        how = describe(first, self._describe_process(rank))
        if self._count == 1:
            return f"rank {rank} failed: {how}"
        then = ""
        if first.victim is not None and (first.is_late or not first.status):
            victim, status = first.victim
            then = f"; then rank {victim}: {describe_status(status)}"
        return f"rank {rank} {failed}: {how}{then}; the others were ended"


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task, and raise the error with which it had ended before."""
    if task is None:
        return
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _run_until_first(*works: Awaitable[object]) -> None:
    """Run until one task ends, cancel the rest, and raise the error of the first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
