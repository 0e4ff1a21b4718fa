"""The same as `moving_channel` for asyncio, and with streams."""

import asyncio
import contextlib
from functools import partial
from typing import Any, Self

import grpc

from allhands.coordinator.call_failed import StatusCode
from allhands.coordinator.connecting import NoAnswer, find_answering_async
from allhands.coordinator.daemon_choice import (
    ASK_SECONDS,
    PAUSE_SECONDS,
    SILENCE_SECONDS,
    DaemonChoice,
    Decision,
    LeaderChanged,
    keep_kv_addresses,
)
from allhands.coordinator.direct_channel import open_direct_channel
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.http2.grpc_failures import GrpcCallFailed
from allhands.coordinator.http2.stub import Channel, make_stub
from allhands.coordinator.protocol_versions import make_describe_request
from allhands_proto.v1 import coordinator_pb2 as wire

Method = Any  # multi-callables, which the stubs type

_WATCH_SECONDS = 1.0
"""Between two looks for another leader than that of a stream. A stream has to be at the new one
within the heartbeat window, or its member is lost."""


class MovingAioChannel:
    """Channel of one loop whose unary calls find the leader, within their deadline.

    A stream goes to the daemon that is thought to lead; its failure says which one the next goes
    to.
    """

    def __init__(self, config: ChannelConfig) -> None:
        self._choice = DaemonChoice(config)
        self._channels: dict[str, Channel] = {}
        self._answering: set[str] = set()
        """Targets that have answered, and of which no call has failed since for want of that."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def find_daemon(self, metadata: Any, timeout: float | None = None) -> ChannelConfig:
        """Return the daemon to call: the current one, unless another one answers first.

        Where none can be connected to, the current one: its failure has the reason.

        Raises:
            NoAnswer: some are silent after the timeout, and no other answers.
        """
        current = self._choice.current
        if current.target in self._answering:
            return current
        candidates = (current, *self._choice.list_others())
        channels = [(one, partial(self.get, one)) for one in candidates]
        try:
            found = await find_answering_async(channels, metadata, timeout)
        except TimeoutError as error:
            raise NoAnswer([one.target for one in candidates]) from error
        if found is None:
            return current
        self._answering.add(found.target)
        self._choice.on_answer(current, found)
        return found

    def _on_failure(self, called: ChannelConfig, error: grpc.RpcError, method: str) -> Decision:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._answering.discard(called.target)
        return self._choice.on_failure(called, error, method)

    def get(self, config: ChannelConfig) -> Channel:
        """Return the channel to one daemon, opened if it is not open."""
        if (known := self._channels.get(config.target)) is None:
            known = open_direct_channel(config, GrpcCallFailed)
            self._channels[config.target] = known
        return known

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
    ) -> Any:
        name = method.rpartition("/")[2]

        async def call(request: object, timeout: float, metadata: Any) -> Any:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout
            while True:
                called = await self.find_daemon(metadata, max(deadline - loop.time(), 0.0))
                channel = self.get(called)
                made = channel.unary_unary(method, request_serializer, response_deserializer)
                try:
                    remaining = max(deadline - loop.time(), 0.0)
                    under_way = made(request, timeout=remaining, metadata=metadata)
                    reply = await self._await_reply(called, under_way, metadata)
                except grpc.RpcError as error:
                    decision = self._on_failure(called, error, name)
                    pause = PAUSE_SECONDS if decision is Decision.PAUSE else 0.0
                    if decision is Decision.FAIL or loop.time() + pause >= deadline:
                        raise
                    await asyncio.sleep(pause)
                    continue
                if isinstance(reply, wire.CoordinatorDescription):
                    keep_kv_addresses(reply, called)
                return reply

        return call

    async def _await_reply(self, called: ChannelConfig, under_way: Any, metadata: Any) -> Any:
        """Return the reply; give the call up where its daemon is silent and another one leads."""
        waiting = asyncio.ensure_future(under_way)
        try:
            while True:
                done, _ = await asyncio.wait([waiting], timeout=SILENCE_SECONDS)
                if done:
                    return waiting.result()
                if await self._has_other_leader(metadata):
                    raise LeaderChanged(called.target)
        finally:
            if not waiting.done():
                under_way.cancel()
                waiting.cancel()
                await asyncio.wait([waiting])

    async def _has_other_leader(self, metadata: Any) -> bool:
        for one in self._choice.list_others():
            stub = make_stub(self.get(one))
            with contextlib.suppress(grpc.RpcError):
                told = await stub.DescribeCoordinator(
                    make_describe_request(), timeout=ASK_SECONDS, metadata=metadata
                )
                if told.role == "leader":
                    self._choice.on_leader(one.target)
                    return True
        return False

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
    ) -> Any:
        def call(request_iterator: Any = None, **options: Any) -> Any:
            called = self._choice.current
            channel = self.get(called)
            made = channel.stream_stream(method, request_serializer, response_deserializer)
            stream = self._follow(called, made(request_iterator, **options))
            return _MovingStream(self, called, stream, options.get("metadata"))

        return call

    def watch_leader(self, stream: "_MovingStream", metadata: Any) -> None:
        """Break a stream when another daemon leads: one that is stopped does not end it."""

        async def watch() -> None:
            while not stream.done():
                await asyncio.sleep(_WATCH_SECONDS)  # nothing tells of a new leader
                if not stream.done() and await self._has_other_leader(metadata):
                    stream.break_off()

        self._keep(asyncio.ensure_future(watch()))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _follow(self, called: ChannelConfig, stream: Any) -> Any:
        """Have the end of a stream choose the daemon for the next one; return the stream."""

        async def note() -> None:
            code = await stream.code()
            if code is grpc.StatusCode.UNAVAILABLE:
                details, trailers = await stream.details(), await stream.trailing_metadata()
                error = GrpcCallFailed(code, details, trailers)
                self._on_failure(called, error, "")

        def on_done(_: object) -> None:
            self._keep(asyncio.ensure_future(note()))

        stream.add_done_callback(on_done)
        return stream

    async def close(self, grace: float | None = None) -> None:
        for task in list(self._tasks):
            task.cancel()
        for channel in self._channels.values():
            await channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _MovingStream:
    """A stream to one daemon, which breaks when another one leads."""

    def __init__(
        self, channel: MovingAioChannel, called: ChannelConfig, stream: Any, metadata: Any
    ) -> None:
        self._stream = stream
        self._called = called
        self._is_broken_off = False
        channel.watch_leader(self, metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def break_off(self) -> None:
        """End the stream as if its daemon had ended."""
        self._is_broken_off = True
        self._stream.cancel()

    async def read(self) -> Any:
        try:
            return await self._stream.read()
        except asyncio.CancelledError:
            self._check_leader()
            raise

    async def write(self, request: Any) -> None:
        try:
            await self._stream.write(request)
        except asyncio.CancelledError:
            self._check_leader()
            raise

    def _check_leader(self) -> None:
        """Raise an error where the stream was broken off, not its reader cancelled."""
        if self._is_broken_off:
            text = f"{self._called.target} is silent and leads no more"
            raise GrpcCallFailed(StatusCode.UNAVAILABLE, text) from None
