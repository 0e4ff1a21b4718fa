"""Facade of one group's calls on one rank: the queue, its runner, the watchdog and events."""

import asyncio
import threading
import time
from asyncio import events
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.hierarchical_plan import Allocate, HostLayout, SliceScratch
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import hash_group
from allhands.collectives.two_level_plan import get_limit
from allhands.engine.call_runner import CallRunner
from allhands.engine.context import EngineContext
from allhands.engine.direct_calls import DirectCallParts, DirectCalls
from allhands.engine.failures import call_errors
from allhands.engine.failures.call_errors import ErrorFactory, PeerDirectory
from allhands.engine.failures.losses import FailureLog
from allhands.engine.failures.tracker import FailureTracker
from allhands.engine.group_events import GroupEvents
from allhands.engine.group_recorder import DEFAULT_SIZE, GroupRecorder
from allhands.engine.hosts.hierarchical import HierarchicalRunner
from allhands.engine.hosts.two_level import TwoLevelCalls
from allhands.engine.inline_limits import InlineLimits
from allhands.engine.link_calls import LinkCalls
from allhands.engine.numbering import CallNumbering, Clash
from allhands.engine.operation import GroupProgress, Operation
from allhands.engine.p2p.direct_messages import DirectMessages
from allhands.engine.p2p.interface import P2PRouter
from allhands.engine.p2p.over_links import P2POverLinks
from allhands.engine.p2p.router import ShmOrLinksRouter
from allhands.engine.queue import CallQueue
from allhands.engine.result_check import COMPARISON_PART, ResultCheck, count_digest_bytes
from allhands.engine.shm.group_channel import GroupChannel
from allhands.engine.shm.host_group import HostGroup
from allhands.engine.shm.local_board import LocalBoard
from allhands.engine.watchdog import Watchdog
from allhands.errors import AllhandsError
from allhands.recorder.record import format_source
from allhands.recorder.source import find_caller, locate
from allhands.runtime.callbacks import Callbacks
from allhands.runtime.helper_threads import HelperThreads
from allhands.runtime.job_thread import JobThread
from allhands.runtime.loop_thread import LoopThread
from allhands.shm.areas import GroupAreas
from allhands.transport.mesh import Mesh
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import DueTimer, LinkCollectives, ShmComm

_SETTLE_SECONDS = 0.003
"""That making a group waits for other ranks that make it, so that the first call need not."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of one group's engine."""

    timeout: float = 30.0
    """Default time of a call, in seconds."""
    deterministic: bool = False
    areas: GroupAreas | None = None
    """Shared memory of all ranks of the group; with a `layout`, of the ranks on this host."""
    board_areas: GroupAreas | None = None
    """With a `layout`, memory of the ranks on this host for the board of their small calls."""
    digest_areas: GroupAreas | None = None
    """Likewise for that on which they compare results."""
    layout: HostLayout | None = None
    """Hosts of the ranks, for a group that spans several."""
    allocate: Allocate = bytearray
    """Allocator of slice scratch, best readable by the other ranks of the host."""
    caller_ranks: Sequence[int] | None = None
    """Number of each rank in callers' arguments; None: its world rank."""
    recorder_size: int = DEFAULT_SIZE
    verify: bool = False
    """Whether results are compared between ranks."""
    open_composite_areas: Callable[[], GroupAreas | None] = lambda: None
    """Opens a second shared memory of the same ranks, at most once, for composite steps."""


_DEFAULT_CONFIG = EngineConfig()


class GroupEngine:
    """Calls of one group on one rank, one after the other; point to point beside them.

    Event loop only, except for methods that say otherwise.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        rank: int,
        mesh: Mesh,
        directory: PeerDirectory,
        threads: HelperThreads,
        config: EngineConfig = _DEFAULT_CONFIG,
    ) -> None:
        """Connect the parts of the engine; `ranks` are world ranks, `rank` an index of them.

        What the engine starts of `threads` ends after `close`.
        """
        self.name = name
        self.ranks = tuple(ranks)
        """World rank of each group rank."""
        self.caller_ranks = (
            self.ranks if config.caller_ranks is None else tuple(config.caller_ranks)
        )
        """Number of each group rank in callers' arguments."""
        self.rank = rank
        self.hash = hash_group(name)
        self.deterministic = config.deterministic
        self.order = CallNumbering(config.timeout)
        self.recorder = GroupRecorder(name, ranks, self.order, config.recorder_size)
        self._directory = directory
        self._mesh = mesh
        self._loop = asyncio.get_running_loop()
        self._progress = GroupProgress()
        self._settling: asyncio.Task[None] | None = None
        losses = self._losses = FailureLog()
        self._failures = FailureTracker(
            name, self.ranks, rank, self.hash, mesh, directory, self._describe_activity, losses
        )
        self._failures.find_call_site = self.recorder.find_call_site
        self._job_thread = JobThread(f"allhands group {name}", threads)
        self._channel = GroupChannel(
            name,
            rank,
            self.order,
            self._job_thread,
            self._failures,
            config.areas if config.layout is None else None,
            self.recorder,
            self._on_clash,
            config.verify,
        )
        context = self._context = self._make_context(mesh)
        self._watchdog = Watchdog(context, verifies=config.verify)
        self._result_check = self._make_result_check(config, mesh) if config.verify else None
        self._hierarchical_runner = self._make_hierarchical_runner(config, mesh)
        self._two_level = None
        if config.layout is not None:
            self._two_level = self._make_two_level_calls(
                config, mesh, config.board_areas, get_limit(config.layout)
            )
        self._link_calls = LinkCalls(context, self._watchdog, self._two_level)
        self._runner = CallRunner(
            context,
            self._watchdog,
            self._link_calls,
            self._hierarchical_runner,
            self._result_check,
            config.open_composite_areas,
        )
        self.queue = CallQueue(
            context, self._watchdog, self._link_calls, self._runner, self._result_check
        )
        self.p2p_router = self._make_p2p_router(mesh, losses, threads)
        self.events = GroupEvents(context, self._watchdog, self.p2p_router, lambda: self.progress)

    def _make_context(self, mesh: Mesh) -> EngineContext:
        return EngineContext(
            self.name,
            self.ranks,
            self.rank,
            self.hash,
            self.deterministic,
            mesh,
            self._directory,
            self.order,
            self.recorder,
            self._progress,
            self._failures,
            self._channel,
            self._job_thread,
        )

    def _make_p2p_router(self, mesh: Mesh, losses: FailureLog, threads: HelperThreads) -> P2PRouter:
        return ShmOrLinksRouter(
            self.name,
            self.ranks,
            self.rank,
            self.order,
            self._channel,
            P2POverLinks(self.hash, self.ranks, self.rank, mesh, self._directory, losses),
            self._directory,
            losses,
            lambda: self._progress.last_ended,
            self.caller_ranks,
            threads,
        )

    def _make_result_check(self, config: EngineConfig, mesh: Mesh) -> ResultCheck:
        return ResultCheck(
            mesh,
            self.ranks,
            self.rank,
            self.hash,
            self._make_two_level_calls(
                config,
                mesh,
                config.digest_areas,
                count_digest_bytes(len(self.ranks)),
                COMPARISON_PART,
            ),
            self._find_last_ended,
            self._watchdog.interrupt_call,
        )

    def _make_hierarchical_runner(
        self, config: EngineConfig, mesh: Mesh
    ) -> HierarchicalRunner | None:
        if (layout := config.layout) is None:
            return None
        host_group = HostGroup(
            layout.local_ranks, layout.local_rank, self._job_thread, config.areas, config.timeout
        )
        scratch = SliceScratch(config.allocate)
        return HierarchicalRunner(layout, host_group, scratch, mesh, self.ranks, self.hash)

    def _make_two_level_calls(
        self,
        config: EngineConfig,
        mesh: Mesh,
        areas: GroupAreas | None,
        capacity: int,
        first_part: int = 0,
    ) -> TwoLevelCalls | None:
        """Make calls with a board in `areas`, of so many bytes a post."""
        if (layout := config.layout) is None:
            return None
        board = LocalBoard(layout.local_ranks, layout.local_rank, self._job_thread, areas, capacity)
        return TwoLevelCalls(layout, board, mesh, self.ranks, self.hash, first_part)

    @property
    def link_cost(self) -> LinkCost | None:
        """Measured cost of the world's links, the same on every rank."""
        return self._link_calls.link_cost

    @link_cost.setter
    def link_cost(self, link_cost: LinkCost | None) -> None:
        self._link_calls.link_cost = link_cost

    @property
    def explanation(self) -> str:
        """Description of the latest hierarchical call."""
        return self._link_calls.explanation

    @property
    def verifies(self) -> bool:
        """Whether data is checked on its way, and results are compared."""
        return self._result_check is not None

    @property
    def progress(self) -> GroupProgress:
        """Where this rank is in the group."""
        comm = self.order.comm
        if comm is None or (
            self._watchdog.current is not None
            and self._watchdog.current.composite_state is not None
        ):
            return self._progress
        shared = GroupProgress(*comm.progress())
        if shared.sequence >= self._progress.sequence:
            return shared
        # The next one waits for its turn, or was passed over.
        completed = max(shared.last_completed, self._progress.last_completed)
        return replace(self._progress, last_completed=completed)

    def _find_last_ended(self) -> int:
        """Return the number of the latest call that has ended, with all of its steps."""
        ended, current = self._progress.last_ended, self._watchdog.current
        if self.order.comm is None:
            return ended
        in_memory = self.order.comm.progress()[1]
        if current is not None:  # its first step may have ended, of several
            in_memory = min(in_memory, current.work.sequence - 1)
        return max(ended, in_memory)

    @property
    def is_on_loop(self) -> bool:
        """Whether this runs on the loop on which the engine lives."""
        return events._get_running_loop() is self._loop

    # ------------------------------------------------------------ calls

    def submit(self, operation: Operation) -> None:
        """Queue a call; runs after all calls before it have ended."""
        self.queue.submit(operation)

    def open_comm_queue(
        self, comm: "ShmComm", callbacks: Callbacks, call_on_loop: Callable[..., object]
    ) -> None:
        """Let a communicator queue calls that nobody waits for at once; on any thread."""
        from allhands import _native
        from allhands.engine.work.shm_work import (  # needs the core
            ShmReadWork,
            ShmWork,
            ShmWorkContext,
        )

        def cancel(work: ShmWork) -> None:
            call_on_loop(self.queue.cancel_shm_call, work)

        def get_timer() -> "DueTimer":
            return callbacks.get_due_timer(_native)

        context = ShmWorkContext(self.name, callbacks, cancel, self.queue.on_skipped)
        comm.set_async(ShmWork, ShmReadWork, context, get_timer)

    def skip(self, operation: Operation, reason: str) -> None:
        """Use up the number of a call that is not made, and send peers the reason."""
        operation.is_cancelled = True
        self._failures.send_give_up(operation.work.sequence, reason)
        self.submit(operation)

    async def give_up(self, sequence: int, reason: str) -> None:
        """Use up a number over shared memory of a call that is not made; send peers the reason."""
        self._failures.record_own_call(sequence, "a call that it gave up before it began")
        self._failures.send_give_up(sequence, reason)
        await self._channel.skip(sequence)

    async def run_over_comm(
        self, request: CollectiveRequest, sequence: int, seconds: float, label: str | None
    ) -> None:
        """Run a call that has a number over shared memory."""
        comm, due = self.order.comm, time.monotonic() + seconds
        assert comm is not None, "which gave the number"
        await self._channel.run(comm, partial(request.run, comm, sequence, seconds, due, label))

    async def wait_inline(self) -> None:
        """Return when no call runs on its caller's thread."""
        await self._channel.wait_idle()

    def can_run_inline(self, request: CollectiveRequest, limits: InlineLimits) -> bool:
        """Say whether a call is worth the caller's own thread, if it `is_next`."""
        is_small = _count_bytes(request) <= limits.nbytes
        is_for_core = limits.takes_staged and self._is_for_core(request)
        return (is_small or is_for_core) and not self._has_phases(request)

    def can_run_composite_inline(self, composite: CompositeCall, limits: InlineLimits) -> bool:
        """Say likewise of a composite call, whose steps run no code of users."""
        return (
            not self.verifies
            and composite.core_call is not None
            and _count_bytes(composite) + composite.object_bytes <= limits.step_bytes
        )

    def can_run_step_inline(self, request: CollectiveRequest, limits: InlineLimits) -> bool:
        """Say likewise of a step of such a call."""
        return _count_bytes(request) <= limits.step_bytes and not self._has_phases(request)

    def _has_phases(self, request: CollectiveRequest) -> bool:
        runner = self._hierarchical_runner
        if self._two_level is not None and self._two_level.applies_to(request):
            return False
        return runner is not None and bool(runner.plan_phases(request, self.link_cost))

    def _is_for_core(self, request: CollectiveRequest) -> bool:
        return self._link_calls.has_lent and self._link_calls.goes_unasked(request)

    def pump(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Receive over links until something is over, or for so long; the loop is lent."""
        self._mesh.pump(is_over, seconds)

    def make_direct_messages(self, thread: LoopThread) -> DirectMessages | None:
        """Return the way of blocking messages over links; None: there is none."""
        if self._mesh.lent_links is None or not self.p2p_router.is_plain_links:
            return None
        return DirectMessages(
            thread,
            self.order,
            self._mesh,
            self._mesh.lent_links,
            self.hash,
            self.ranks,
            self.rank,
            self.caller_ranks,
            lambda: self.p2p_router.is_plain_links,
            self._failures.has_left,
            self.recorder.size,
        )

    def make_direct_calls(self, thread: LoopThread) -> "LinkCollectives | None":
        """Return the way of plain collectives over links; None: there is none."""
        native_calls = self._link_calls.get_native_calls()
        if (
            native_calls is None
            or self._mesh.lent_links is None
            or not self.p2p_router.is_plain_links
        ):
            return None
        parts = DirectCallParts(
            self._context,
            self._link_calls,
            self.queue,
            self._mesh.lent_links,
            native_calls,
            lambda: self.p2p_router.is_plain_links,
            self._has_phases,
            self._runner.find_failure,
            self._result_check,
        )
        return DirectCalls(thread, parts).native

    async def wait_idle(self) -> None:
        """Return when every call submitted so far has ended, point to point included."""
        await self.queue.wait_idle()
        await self.p2p_router.wait_idle(self._job_thread.submit)

    async def settle(self) -> None:
        """Find out whether the ranks share memory, if they all make the group about now.

        Waits for a few milliseconds, and goes on looking for a while beside.
        """
        if self._channel.is_undecided:
            self._settling = asyncio.create_task(self._settle(), name=f"way of {self.name}")
            await asyncio.wait([self._settling], timeout=_SETTLE_SECONDS)

    async def _settle(self) -> None:
        await self._channel.negotiate_early(lambda: self._progress.last_ended)
        self.p2p_router.open_early()

    def close(self, lost_ranks: Collection[int] = ()) -> None:
        """Release the group's shared memory; every call has ended.

        World ranks in `lost_ranks` are gone and release nothing.
        """
        if self._settling is not None:
            self._settling.cancel()
        self._job_thread.close()
        self.p2p_router.close()
        self._channel.close(lost_ranks)
        self._runner.close(lost_ranks)
        if self._two_level is not None:
            self._two_level.close(lost_ranks)

    # ------------------------------------------------------------ failure of the group

    def fail(self, failure: ErrorFactory) -> None:
        """End the group: the current call, those queued, and all to come.

        They are told the first failure of the group that is known; see `losses`.
        """
        if self._failures.fail(failure):
            self._end()

    def shut_down(self, failure: ErrorFactory) -> None:
        """Close the group on this rank, unless already failed."""
        if self._failures.close(failure):
            self._end()

    def get_next_error(self) -> AllhandsError | None:
        """Return why the next call would fail; None: for nothing that is known yet."""
        reason = self._failures.find_failure(self.order.latest_sequence + 1)
        return None if reason is None else reason(f"a call of group {self.name!r}")

    def find_message_failure(self, peer: int, what: str) -> AllhandsError | None:
        """Return why a message of that name from a group rank cannot come; None: nothing is known.

        For any thread.
        """
        if self._losses.is_quiet:
            return None
        failure = self._losses.find_message_failure(self.ranks[peer], ())
        return None if failure is None else failure(what)

    def replace_failure(self, failure: ErrorFactory) -> None:
        """Let all calls to come say this, also where something else has ended the group before."""
        self._failures.replace_failure(failure)
        self._end()

    def abort(self, reason: str) -> None:
        """Abort the group on all its ranks."""
        self._directory.abort(self.name, reason)

    def refuse_clash(self, operation: str, clash: Clash) -> NoReturn:
        """Fail the group after two threads made the same call at once; on any thread.

        Ranks number their calls in the order in which they come: a rank with the two in the
        opposite order would silently get the wrong numbers.
        """
        here = format_source(*locate(*find_caller()))
        there = self.recorder.find_call_site(clash.sequence)
        reason = (
            f"two threads called at the same time: {_name_thread(clash.thread)} was in "
            f"{clash.operation} #{clash.sequence}{there and f' at {there}'} when "
            f"{_name_thread(threading.get_ident())} called {operation}{here and f' at {here}'}; "
            "the "
            "other ranks cannot tell which of the calls belong together: give each thread a group "
            "of its own (new_group), or let them call in turn, in the same order on every rank"
        )
        self._loop.call_soon_threadsafe(self._directory.abort, self.name, reason)
        if (comm := self.order.comm) is not None:
            comm.close()  # so that no call begins before the loop has heard of it
        by = self._directory.describe_rank(self.ranks[self.rank])
        raise call_errors.build_aborted_error(f"{operation} of group {self.name!r}", by, reason)

    def _on_clash(self, operation: str, thread: int, sequence: int, other: str) -> NoReturn:
        self.refuse_clash(operation, Clash(thread, sequence, other))

    def _end(self) -> None:
        """End the calls under way with the failure from `losses`."""
        if self._watchdog.current is not None:
            self._watchdog.interrupt_current(
                self._failures.find_failure(self._watchdog.current.work.sequence)
            )
        self._channel.fail()
        self.p2p_router.fail()

    def _describe_activity(self) -> str:
        """Describe this rank's present activity in the group; for people."""
        position = self.progress
        if position.operation:
            return f"is in {position.operation} #{position.sequence}"
        return (
            f"is outside any call since #{position.last_ended}"
            if position.last_ended
            else "has made none"
        )


def _name_thread(ident: int) -> str:
    """Name a thread, for people."""
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0]!r}" if names else f"thread {ident}"


def _count_bytes(call: CollectiveRequest | CompositeCall) -> int:
    """Return the bytes of all arrays of a call."""
    return sum(array.nbytes for array in (*call.sources, *call.targets))
