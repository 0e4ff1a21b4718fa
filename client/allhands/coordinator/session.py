"""The stream between a worker and the coordinator: join, heartbeats, events, leave."""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias, cast

from allhands.coordinator import report_encoder
from allhands.coordinator.attempts import RETRY_SECONDS
from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands.coordinator.conditions import decode_condition, list_conditions
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.forming_world import SIZE_ADVICE, explain_not_formed
from allhands.coordinator.http2.call import Http2Call
from allhands.coordinator.http2.stub import Channel
from allhands.coordinator.section_codec import write_section
from allhands.coordinator.session_channel import choose_daemon, open_channel
from allhands.coordinator.session_greetings import check_joined, check_resumed, make_resume
from allhands.coordinator.session_listener import SessionListener, make_heartbeat
from allhands.coordinator.session_pending import PendingRequests
from allhands.coordinator.session_requests import INQUIRY_SECONDS, SessionRequests
from allhands.coordinator.status_errors import translate_error
from allhands.coordinator.world_member import list_departures, pack_ranks, read_members
from allhands.errors import (
    CoordinatorUnavailable,
    JoinRefused,
)
from allhands.runtime.sections import SectionPosition
from allhands_proto import process, stack_channel
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdict_codec import decode_cancellation, decode_verdict

logger = logging.getLogger(__name__)

Stream: TypeAlias = "Http2Call[wire.SessionRequest, wire.SessionEvent]"

_Code = StatusCode
_REFUSALS = (
    _Code.NOT_FOUND,
    _Code.UNAUTHENTICATED,
    _Code.PERMISSION_DENIED,
    _Code.INVALID_ARGUMENT,
    _Code.FAILED_PRECONDITION,
    _Code.UNIMPLEMENTED,
)
"""Statuses of a coordinator that does not know a session."""
_ATTEMPTS = 3
"""Attempts to resume a session whose refusal gRPC may not have delivered."""
_LEAVE_SECONDS = 2.0
_DURABLE_LEAVE_SECONDS = 10.0
"""The same where the coordinator may be down for a restart."""
_RESUME_SECONDS = 5.0
_LONGEST_DELAY = 1.0
"""Seconds between two attempts to resume a session, at most."""
_MAX_REFUSED_CALLERS = 16
"""Callers of which a rank that waits for its world remembers that they were refused."""
_NO_SIZE_WARNING_SECONDS = 2.0
WORLD_EVENTS = (
    "member_lost",
    "member_left",
    "members_left",
    "broken_links",
    "aborted",
    "condition",
    "conditions",
)
"""Events that peers forward to a rank out of the coordinator's reach."""


class Session(SessionRequests):
    """A membership: from `join` to `leave`, or until somebody is lost."""

    def __init__(self, channel_config: ChannelConfig, channel: Channel, job: str) -> None:
        super().__init__(channel_config, channel, job)
        self._channel = channel
        self._stream: Stream | None = None
        self._unread_events: deque[wire.SessionEvent] = deque()  # of a batch
        self._tasks: list[asyncio.Task[None]] = []
        self._leave_accepted = asyncio.Event()
        self._refused_callers: dict[str, str] = {}  # callers at other addresses, and why
        self._pending = PendingRequests()
        self._write_tasks: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()  # gRPC takes one write at a time
        self._is_leaving = False
        self.group = ""
        """The group that took this worker in while its world ran; empty: it was there before."""

    @classmethod
    async def join(
        cls,
        channel_config: ChannelConfig,
        request: wire.Join,
        timeout: float,
        channel: Channel | None = None,
    ) -> "Session":
        """Join the job and wait until its world is complete, over a new or given channel.

        Raises:
            JoinRefused: the job would not have this worker.
            CollectiveTimeout: others never joined; it names them.
            CoordinatorUnavailable, Unauthenticated: nobody there, or not for us.
        """
        session = cls(channel_config, channel or open_channel(channel_config), request.job)
        joining = asyncio.create_task(session._join(request))
        try:
            # Not cancelled at the deadline: the job still counts us while it is asked who is there.
            await asyncio.wait([joining], timeout=timeout)
            if not joining.done():
                raise await explain_not_formed(
                    session._stub, channel_config, request, timeout, session._refused_callers
                )
            joining.result()
        except BaseException:
            joining.cancel()
            await asyncio.wait([joining])
            await session.aclose()
            raise
        return session

    def start(self, listener: SessionListener) -> None:
        """Begin to beat and to listen."""
        self._tasks = [
            asyncio.create_task(self._listen(listener), name="session events"),
            asyncio.create_task(self._send_heartbeats(listener), name="heartbeats"),
        ]

    async def open_group(self, name: str, ranks: Sequence[int]) -> None:
        spans = pack_ranks(ranks) if self.joined.takes_spans else []
        opened = wire.OpenGroup(group=name, ranks=[] if spans else ranks, spans=spans)
        await self._send_and_wait(wire.SessionRequest(open_group=opened))

    async def close_group(self, name: str) -> None:
        await self._send_and_wait(wire.SessionRequest(close_group=wire.CloseGroup(group=name)))

    async def report_broken_link(self, rank: int, reason: str, shares_memory: bool) -> None:
        report = wire.LinkBroken(rank=rank, reason=reason, shares_memory=shares_memory)
        await self._send_and_wait(wire.SessionRequest(link_broken=report))

    @property
    def report_nbytes(self) -> int:
        """Maximum size in bytes of this worker's last report; 0: none."""
        return self.joined.report_nbytes

    def send_last_report(
        self,
        progress: Sequence[wire.Progress],
        section: SectionPosition | None,
        report: Callable[[int], bytes],
    ) -> None:
        """Send this worker's last position and report; `report` takes a size limit in bytes."""
        beat = wire.Heartbeat(progress=progress, sent_at=time.monotonic())
        write_section(beat, section)

        async def send_both() -> None:
            await self._send_and_wait(wire.SessionRequest(heartbeat=beat))
            if self.report_nbytes and not self._is_leaving:
                last = wire.LastReport(report=report(self.report_nbytes))
                await self._send_and_wait(wire.SessionRequest(last_report=last))

        self._start_task(send_both())

    async def leave(self, leave: wire.Leave) -> None:
        """End the membership in order: peers can finish the calls that this rank completed."""
        self._is_leaving = True
        if self._stream is not None and (self.is_durable or not self._stream.done()):
            await self._send_and_wait(wire.SessionRequest(leave=leave))
            limit = _DURABLE_LEAVE_SECONDS if self.is_durable else _LEAVE_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._leave_accepted.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """Drop the stream. Idempotent."""
        self._is_leaving = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()

    async def _join(self, request: wire.Join) -> None:
        await choose_daemon(self._channel, self._channel_config)
        stream: Stream = cast(Any, self._stub).Session(metadata=self._channel_config.metadata)
        self._stream = stream
        try:
            request.takes_batches = request.takes_conditions = True
            request.takes_packed_members = request.takes_members_left = True
            await stream.write(wire.SessionRequest(join=request))
            self.joined = (await self._read_event(stream)).joined
            check_joined(self.joined, self._channel_config.target)
            self._pending.is_enabled = self.joined.takes_resume
            with self._warn_if_sizeless(request):
                while not (event := await self._read_event(stream)).HasField("world_formed"):
                    await self._answer_while_forming(stream, event)
        except (CallFailed, asyncio.InvalidStateError) as error:
            raise await self._translate(stream, error) from error
        self.epoch = event.world_formed.epoch
        self.group = event.world_formed.group
        self.members = read_members(event.world_formed)

    @contextlib.contextmanager
    def _warn_if_sizeless(self, request: wire.Join) -> Iterator[None]:
        """Warn where the world may wait for ever, unless it is formed before."""
        if request.world_size or self.joined.world_size:
            yield
            return
        text = "still waiting in job %s, which had no size when this rank joined: unless another "
        timer = asyncio.get_running_loop().call_later(
            _NO_SIZE_WARNING_SECONDS,
            logger.warning,
            text + "rank brings one, %s",
            self.job,
            SIZE_ADVICE,
        )
        try:
            yield
        finally:
            timer.cancel()

    async def _answer_while_forming(self, stream: Stream, event: wire.SessionEvent) -> None:
        if event.HasField("caller_refused"):
            self._warn_of_refused(event.caller_refused)
        if event.HasField("probe"):
            beat = wire.Heartbeat(probe=event.probe.probe)
            await stream.write(wire.SessionRequest(heartbeat=beat))

    def _warn_of_refused(self, caller: wire.CallerRefused) -> None:
        """Warn of a refused caller that may be one of the awaited ranks."""
        if self._refused_callers.get(caller.address) != caller.reason:
            while len(self._refused_callers) >= _MAX_REFUSED_CALLERS:
                del self._refused_callers[next(iter(self._refused_callers))]
            self._refused_callers[caller.address] = caller.reason
            logger.warning(
                "while job %s waits for its ranks, the coordinator refused a process at %s: %s",
                self.job,
                caller.address,
                caller.reason,
            )

    async def _translate(self, stream: Stream, error: Exception) -> Exception:
        """Translate the end of the stream before the world was complete."""
        doing = f"join job {self.job!r}"
        if isinstance(error, CallFailed):
            return translate_error(
                error, doing, target=self._channel_config.target, refused=JoinRefused
            )
        # The write met a stream that was over: its status has the reason.
        reason = CallFailed(
            await stream.code(), await stream.details(), await stream.trailing_metadata()
        )
        return translate_error(
            reason, doing, target=self._channel_config.target, refused=JoinRefused
        )

    async def _listen(self, listener: SessionListener) -> None:
        """Dispatch events until the session is over; resume it when its stream breaks."""
        while (reason := await self._dispatch_events(listener)) is not None:
            self._is_settled.clear()
            if self.joined.takes_resume:
                is_back = await self._resume(listener, reason)
            else:
                is_back = await self._ask_if_gone(listener, reason)
            self._is_over = not is_back
            self._is_settled.set()
            if not is_back:
                return
        self._is_over = True

    async def _dispatch_events(self, listener: SessionListener) -> str | None:
        """Dispatch the events of the stream; return why it broke, None: the session is over."""
        assert self._stream is not None
        try:
            while True:
                event = await self._read_event(self._stream)
                self.handle_event(event, listener)
                if event.WhichOneof("event") in WORLD_EVENTS:
                    listener.relay_event(event)
        except CallFailed as error:
            reason = error.details() or error.status.name
            if error.status is StatusCode.ABORTED:
                self._on_expelled(listener, reason)
                return None
        except CoordinatorUnavailable as error:
            reason = str(error)
        is_over = self._leave_accepted.is_set() or (self._is_leaving and not self.is_durable)
        return None if is_over else reason

    async def _resume(self, listener: SessionListener, reason: str) -> bool:
        """Resume the session on a new stream; return whether that has been done.

        A durable coordinator is waited for as long as this process lives: it is being restarted.
        """
        is_away, attempts, delay = False, 0, RETRY_SECONDS
        while True:
            attempts += 1
            try:
                await self._open_resumed(listener)
            except CallFailed as error:
                code, said = error.status, error.details() or ""
            except (TimeoutError, CoordinatorUnavailable):
                code, said = _Code.UNAVAILABLE, ""
            else:
                if is_away:
                    listener.on_coordinator_back()
                return True
            if code is _Code.ABORTED:
                self._on_expelled(listener, said)
                return False
            if code in _REFUSALS:
                if is_away:  # another one has taken its place
                    logger.error("the coordinator does not know this session any more: %s", said)
                elif not self._is_leaving:
                    listener.on_expelled(f"its session broke: {reason}")
                return False
            # gRPC says INTERNAL where a refusal comes while the first message is being written.
            is_told = code is not _Code.INTERNAL or attempts >= _ATTEMPTS
            if is_told and not is_away:
                is_away = True
                listener.on_coordinator_gone(reason)
            if is_told and not self.is_durable:
                return False
            await asyncio.sleep(delay)  # there is no event for "somebody listens"
            delay = min(delay * 1.5, _LONGEST_DELAY) * random.uniform(0.8, 1.0)

    async def _open_resumed(self, listener: SessionListener) -> None:
        """Open a stream with a Resume, and send the requests that may not have arrived.

        Raises:
            CallFailed, TimeoutError, CoordinatorUnavailable: it was refused, or not answered.
        """
        resume = make_resume(self.job, self.joined)
        async with asyncio.timeout(_RESUME_SECONDS):
            await choose_daemon(self._channel, self._channel_config)
        stream: Stream = cast(Any, self._stub).Session(metadata=self._channel_config.metadata)
        self._unread_events.clear()
        try:
            async with asyncio.timeout(_RESUME_SECONDS):
                with contextlib.suppress(asyncio.InvalidStateError):  # reading says why
                    await stream.write(wire.SessionRequest(resume=resume))
                event = await self._read_event(stream)
                if not event.HasField("resumed"):
                    raise CoordinatorUnavailable("the coordinator does not resume the session")
                check_resumed(event.resumed)
        except BaseException:
            stream.cancel()
            raise
        self._pending.on_received(event.resumed.received)
        self.epoch = max(self.epoch, event.resumed.epoch)
        async with self._write_lock:
            self._stream = stream
            for request in (make_heartbeat(listener), *self._pending.list_all()):
                with contextlib.suppress(CallFailed, asyncio.InvalidStateError):
                    await stream.write(request)

    def _on_expelled(self, listener: SessionListener, reason: str) -> None:
        """Note that this worker is no member any more, which it may have wanted."""
        if self._is_leaving:
            self._leave_accepted.set()
        else:
            listener.on_expelled(reason)

    async def _ask_if_gone(self, listener: SessionListener, reason: str) -> bool:
        """Find out whether the coordinator is gone, or only has no session with this rank.

        Returns False: in either case the session is over.

        For coordinators of versions that resume no session. gRPC does not always deliver the status
        with which the other side ended a stream.
        """
        try:
            job = await self._stub.DescribeJob(
                wire.DescribeJobRequest(job=self.job),
                timeout=INQUIRY_SECONDS,
                metadata=self._channel_config.metadata,
            )
        except CallFailed as error:
            if error.status is not StatusCode.NOT_FOUND:
                listener.on_coordinator_gone(reason)
                return False
            job = wire.Job()
        mine = [one for one in job.members if one.member_id == self.joined.member_id]
        known = next((one.reason for one in mine if one.reason), "")
        listener.on_expelled(known or f"its session broke: {reason}")
        return False

    def handle_event(self, event: wire.SessionEvent, listener: SessionListener) -> None:
        """Dispatch an event of the coordinator, received directly or relayed by a peer."""
        match event.WhichOneof("event"):
            case "member_lost":
                self.epoch = event.member_lost.epoch
                found = decode_verdict(event.member_lost.verdict)
                listener.on_member_lost(event.member_lost.rank, event.member_lost.reason, found)
            case "member_left":
                self.epoch = event.member_left.epoch or self.epoch
                listener.on_member_left(event.member_left)
            case "members_left":
                self.epoch = event.members_left.epoch or self.epoch
                for left in list_departures(event.members_left):
                    listener.on_member_left(left)
            case "probe":
                stack = listener.get_stack() if event.probe.stack else ""
                self.send(make_heartbeat(listener, event.probe.probe, stack))
            case "inspect_peer":
                self._start_task(self._inspect(event.inspect_peer))
            case "indirect_probe":
                listener.vouch(event.indirect_probe.rank)
            case "condition":
                listener.on_conditions([decode_condition(event.condition)])
            case "conditions":
                listener.on_conditions(list_conditions(event.conditions, listener.describe_rank))
            case "broken_links":
                ranks = event.broken_links.ranks
                pairs = list(zip(ranks[::2], ranks[1::2], strict=True))
                listener.on_ruling(decode_verdict(event.broken_links.verdict), pairs)
            case "silent_links":
                silent = event.silent_links
                between = list(zip(silent.ranks[::2], silent.ranks[1::2], strict=True))
                listener.on_links_silent(decode_verdict(silent.verdict), between, silent.is_over)
            case "aborted":
                aborted = event.aborted
                listener.on_aborted(aborted.group, aborted.by, aborted.reason)
            case "call_cancelled":
                given = event.call_cancelled
                listener.on_call_given_up(given.group, given.sequence, decode_cancellation(given))
            case "draining":
                logger.warning("the coordinator is going down: %s", event.draining.reason)
            case "newcomers":
                listener.on_newcomers(event.newcomers.count)
            case "received":
                self._pending.on_received(event.received.number)
            case "leave_accepted":
                self._leave_accepted.set()
            case "collect_report":
                self._start_task(self._send_report(event.collect_report, listener))
            case other:
                logger.warning("the coordinator says %r, which this worker does not know", other)

    async def _inspect(self, request: wire.InspectPeer) -> None:
        found = process.inspect_process(request.pid, request.start_ticks)
        inspected = wire.PeerInspected(member_id=request.member_id, process_state=found)
        await self._send_and_wait(wire.SessionRequest(peer_inspected=inspected))
        if request.stack_channel and found == "running":
            inspected.stack = await stack_channel.read(
                request.pid, request.start_ticks, request.stack_channel
            )
            inspected.process_state = process.inspect_process(request.pid, request.start_ticks)
            await self._send_and_wait(wire.SessionRequest(peer_inspected=inspected))

    async def flush(self) -> None:
        """Wait until queued requests are written or the session is over, for 2 s at most."""
        if self._write_tasks:
            await asyncio.wait(set(self._write_tasks), timeout=_LEAVE_SECONDS)

    def send(self, request: wire.SessionRequest) -> None:
        """Queue a request to the coordinator; requests keep their order."""
        self._start_write(request)

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _send_report(self, collect: wire.CollectReport, listener: SessionListener) -> None:
        await self._send_and_wait(make_heartbeat(listener))  # so that the coordinator knows as much
        report = listener.make_report(collect.operations, collect.nbytes)
        for part in report_encoder.split_report(collect.id, report):
            await self._send_and_wait(wire.SessionRequest(report_part=part))

    async def _send_heartbeats(self, listener: SessionListener) -> None:
        while True:
            await asyncio.sleep(self.joined.heartbeat_interval)
            await self._send_and_wait(make_heartbeat(listener))

    async def _send_and_wait(self, request: wire.SessionRequest) -> None:
        """Send a request and wait for the write, which outlives the waiter's cancellation."""
        # gRPC ends the whole stream when somebody is cancelled who waits for a write.
        await asyncio.shield(self._start_write(request))

    def _start_write(self, request: wire.SessionRequest) -> "asyncio.Task[None]":
        self._pending.add(request)
        task = asyncio.create_task(self._write(request))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)
        return task

    async def _write(self, request: wire.SessionRequest) -> None:
        """Write to the stream; errors of a broken stream are left to `_listen`."""
        assert self._stream is not None
        with contextlib.suppress(CallFailed, asyncio.InvalidStateError):
            async with self._write_lock:
                await self._stream.write(request)

    async def _read_event(self, stream: Stream) -> wire.SessionEvent:
        """Return the next event.

        Raises:
            CallFailed: the stream ended with an error.
            CoordinatorUnavailable: it ended without one.
        """
        if not self._unread_events:
            event = await stream.read()  # where an error ended the stream, this raises it
            if not isinstance(event, wire.SessionEvent):
                raise CoordinatorUnavailable("the coordinator ended the session")
            self._unread_events.extend(event.batch or (event,))
        return self._unread_events.popleft()
