"""Calls and messages between a rank and the coordinator, within one loop, under faults.

It stands where gRPC's channel and server stand: the rank's stub on one side, a servicer's methods
on the other, and between them messages as bytes.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn

from allhands.coordinator.call_failed import CallFailed, NamedCode, StatusCode
from allhands.coordinator.http2.call import END
from allhands.testing.faults import COORDINATOR
from allhands.testing.faulty_channel import FaultyChannels

_KEEPALIVE_SECONDS = 20.0
"""After which gRPC gives up a connection on which nothing passes."""
_PEER = "ipv4:127.0.0.1:1"

Parse = Callable[[bytes], Any]
Pack = Callable[[Any], bytes]
Metadata = Sequence[tuple[str, str]]


class _StatusAbort(Exception):
    """The servicer ended a call with a status."""


class FaultySession:
    """A rank's connection to the coordinator; it is one of the channels that `Session` takes."""

    def __init__(self, channels: FaultyChannels, rank: int, servicer: object) -> None:
        self._channels = channels
        self._rank = rank
        self._servicer = servicer
        self._to_coordinator = channels.get_channel(rank, COORDINATOR)
        self._to_rank = channels.get_channel(COORDINATOR, rank)
        self._calls: dict[_FaultyCall, None] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._is_down = False

    def stream_stream(
        self, path: str, request_serializer: Pack, response_deserializer: Parse, **_: object
    ) -> "Callable[..., _FaultyStream]":
        method = self._get_method(path)

        def call(*, metadata: Metadata = ()) -> _FaultyStream:
            made = _FaultyStream(self, method, request_serializer, response_deserializer, math.inf)
            made.start()
            return made

        return call

    def unary_unary(
        self, path: str, request_serializer: Pack, response_deserializer: Parse, **_: object
    ) -> Callable[..., Awaitable[Any]]:
        method = self._get_method(path)

        async def call(request: Any, *, timeout: float = math.inf, metadata: Metadata = ()) -> Any:
            made = _FaultyUnary(self, method, request_serializer, response_deserializer, timeout)
            return await made.run(request)

        return call

    def unary_stream(self, path: str, *_: object, **__: object) -> Callable[..., object]:
        """Refuse: no worker makes calls of this kind."""

        def call(*_: object, **__: object) -> object:
            raise NotImplementedError(path)

        return call

    async def close(self) -> None:
        """End every call, as the rank's own wish. Idempotent."""
        await self._end("the channel was closed", StatusCode.CANCELLED)

    async def sever(self) -> None:
        """Break the connection for good, for both sides. Idempotent."""
        self._is_down = True
        await self._end("the connection broke", StatusCode.UNAVAILABLE)
        served = list(self._serving)
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)

    def begin(self, call: "_FaultyCall") -> bool:
        """Count a call as under way; return whether the coordinator is there."""
        self._calls[call] = None
        return not self._is_down

    def serve(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Let the servicer work on a call."""
        task = asyncio.create_task(work, name="call to the coordinator")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    def end(self, call: "_FaultyCall") -> None:
        self._calls.pop(call, None)

    def send_to_coordinator(self, message: bytes, deliver: Callable[[bytes], None]) -> None:
        """Carry a message to the coordinator."""
        self._to_coordinator.put(message, deliver, self._on_cut)

    def send_to_rank(self, message: bytes, deliver: Callable[[bytes], None]) -> None:
        """Carry a message to the rank."""
        self._to_rank.put(message, deliver, self._on_cut)

    def run_at_coordinator(self, act: Callable[[], None]) -> None:
        self._to_coordinator.run_at_receiver(act)

    def run_at_rank(self, act: Callable[[], None]) -> None:
        self._to_rank.run_at_receiver(act)

    def is_passing(self) -> bool:
        """Return whether messages pass both ways; else the connection counts as dead."""
        now = self._channels.clock.now()
        ways = ((self._rank, COORDINATOR), (COORDINATOR, self._rank))
        return all(self._channels.plan.held_until(way, now) <= now for way in ways)

    def _get_method(self, path: str) -> Any:
        return getattr(self._servicer, path.rpartition("/")[2])

    def _on_cut(self) -> None:
        """The plan broke the connection: every call on it ends, and new ones find another."""
        for call in list(self._calls):
            call.sever("the connection was cut")

    async def _end(self, reason: str, code: StatusCode) -> None:
        calls = list(self._calls)
        for call in calls:
            call.sever(reason, code)
        await asyncio.gather(*(call.wait_ended() for call in calls))


class _FaultyCall:
    """A call under way: its two halves, and the servicer's task between them."""

    def __init__(
        self, session: FaultySession, method: Any, pack: Pack, parse: Parse, timeout: float
    ) -> None:
        self._session = session
        self._method = method
        self._pack = pack
        self._parse = parse
        self._loop = asyncio.get_running_loop()
        self.deadline = self._loop.time() + timeout
        self.failure: CallFailed | None = None
        self._task: asyncio.Task[None] | None = None

    def sever(self, reason: str, code: StatusCode = StatusCode.UNAVAILABLE) -> None:
        """End both halves at once. Idempotent."""
        if self._task is not None:
            self._task.cancel()
        self.fail(code, reason)

    def fail(
        self, code: StatusCode, details: str, trailers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """End the rank's half; the first reason counts."""
        self._session.end(self)
        if self.failure is None:
            self.failure = CallFailed(code, details, trailers)
            self.wake()

    def wake(self) -> None:
        """Wake the rank's half."""
        raise NotImplementedError

    async def wait_ended(self) -> None:
        """Wait until the servicer has finished the call."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def serve(self, work: Callable[["_FaultyContext"], Awaitable[None]]) -> None:
        """Run the servicer's handler, and carry the status to the rank."""

        async def run_work() -> None:
            context = _FaultyContext(self.deadline)
            try:
                await work(context)
            except _StatusAbort:
                status = context.status
                self._session.run_at_rank(lambda: self.fail(*status))
            else:
                self._session.run_at_rank(self.on_finished)

        self._task = self._session.serve(run_work())

    def on_finished(self) -> None:
        """Handle, at the rank's half, the servicer's normal end."""


class _FaultyContext:
    """Context of a call, as seen by a servicer."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.status: tuple[StatusCode, str, Sequence[tuple[str, bytes]]]

    def peer(self) -> str:
        return _PEER

    def invocation_metadata(self) -> Sequence[tuple[str, bytes]]:
        return ()

    def time_remaining(self) -> float | None:
        if math.isinf(self._deadline):
            return None
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)

    async def abort(
        self, code: StatusCode, details: str = "", trailers: Sequence[tuple[str, bytes]] = ()
    ) -> NoReturn:
        self.status = code, details, trailers
        raise _StatusAbort


class _FaultyUnary(_FaultyCall):
    """A unary call under a plan of faults."""

    async def run(self, request: Any) -> Any:
        self._answer: asyncio.Future[Any] = self._loop.create_future()
        try:
            if not self._session.begin(self):
                self.fail(StatusCode.UNAVAILABLE, "nobody listens there")
            else:
                self._session.send_to_coordinator(
                    self._pack(request), lambda _: self._on_request(request)
                )
            remaining = self.deadline - self._loop.time()
            await asyncio.wait(
                [self._answer], timeout=None if math.isinf(remaining) else max(remaining, 0)
            )
            if not self._answer.done():
                self.fail(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            if self.failure is not None:
                raise self.failure
            return self._answer.result()
        finally:
            self._session.end(self)
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])

    def wake(self) -> None:
        if not self._answer.done():
            self._answer.set_result(None)

    def _on_request(self, request: Any) -> None:
        if self.failure is not None or self._answer.done():
            return

        async def work(context: _FaultyContext) -> None:
            reply = await self._method(request, context)
            self._session.send_to_rank(reply.SerializeToString(), self._on_reply)

        self.serve(work)

    def _on_reply(self, reply: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(self._parse(reply))


class _FaultyStream(_FaultyCall):
    """A stream of messages each way; it passes for an `Http2Call`."""

    def start(self) -> None:
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._is_finished = False
        self._keepalive_task: asyncio.Task[None] | None = None
        if not self._session.begin(self):
            self.fail(StatusCode.UNAVAILABLE, "nobody listens there")
            return
        self._keepalive_task = asyncio.create_task(self._keep_alive(), name="keepalive")

        async def work(context: _FaultyContext) -> None:
            async for event in self._method(self._iterate_requests(), context):
                self._session.send_to_rank(event.SerializeToString(), self._events.put_nowait)

        self.serve(work)

    async def write(self, request: Any) -> None:
        if self.done():
            raise asyncio.InvalidStateError("the stream is over")
        self._session.send_to_coordinator(
            self._pack(request), lambda _: self._requests.put_nowait(request)
        )

    async def read(self) -> Any:
        event = None if self.done() and self._events.empty() else await self._events.get()
        if event is not None:
            return self._parse(event)
        self._events.put_nowait(None)  # for who reads on
        if self.failure is not None:
            raise self.failure
        return END

    def on_finished(self) -> None:
        self._is_finished = True
        self.wake()

    def done(self) -> bool:
        """Say whether the stream is over."""
        return self._is_finished or self.failure is not None

    def cancel(self) -> bool:
        self.fail(StatusCode.CANCELLED, "cancelled by this rank")
        self._session.run_at_coordinator(self._hang_up)
        return True

    async def code(self) -> NamedCode:
        return StatusCode.OK if self.failure is None else self.failure.code()

    async def details(self) -> str:
        return "" if self.failure is None else self.failure.details() or ""

    def wake(self) -> None:
        if self._keepalive_task is not None:
            self._keepalive_task.cancel()
        self._events.put_nowait(None)

    async def wait_ended(self) -> None:
        await super().wait_ended()
        if self._keepalive_task is not None:
            await asyncio.wait([self._keepalive_task])

    def _hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _iterate_requests(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _keep_alive(self) -> None:
        """Give the connection up once nothing has passed for long."""
        silent = 0.0
        while silent < _KEEPALIVE_SECONDS:
            await asyncio.sleep(1.0)
            silent = 0.0 if self._session.is_passing() else silent + 1.0
        self.sever("keepalive: nothing has passed for too long")
