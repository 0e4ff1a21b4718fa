"""A channel to several daemons of which one leads: calls go to the leader, and move with it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from allhands.coordinator.connecting import NoAnswer, find_answering
from allhands.coordinator.daemon_choice import (
    ASK_SECONDS,
    PAUSE_SECONDS,
    SILENCE_SECONDS,
    DaemonChoice,
    Decision,
    LeaderChanged,
    keep_kv_addresses,
)
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.protocol_versions import make_describe_request
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

Method = Any  # multi-callables, which the stubs type


class MovingChannel(grpc.Channel):
    """Channel whose unary calls find the leader, within their deadline.

    A call that a daemon did not carry out is made again; so is one that may be carried out twice.
    Another one fails with UNAVAILABLE where its daemon ends or is replaced meanwhile.
    """

    def __init__(self, config: ChannelConfig) -> None:
        self._choice = DaemonChoice(config)
        self._channels: dict[str, grpc.Channel] = {}
        self._answering: set[str] = set()
        """Targets that have answered, and of which no call has failed since for want of that."""
        self._lock = threading.Lock()
        self._is_closed = False

    def find_daemon(
        self, metadata: Any, deadline: float, is_cancelled: Callable[[], bool]
    ) -> ChannelConfig:
        """Return the daemon to call: the current one, unless another one answers first.

        Where none can be connected to, the current one: its failure has the reason.

        Raises:
            NoAnswer: some are silent at the deadline, and no other answers.
            grpc.FutureCancelledError: the call was cancelled meanwhile.
        """
        current = self._choice.current
        if current.target in self._answering:
            return current
        candidates = (current, *self._choice.list_others())
        channels = [(one, partial(self.get, one)) for one in candidates]
        try:
            found = find_answering(channels, metadata, deadline, is_cancelled)
        except TimeoutError as error:
            raise NoAnswer([one.target for one in candidates]) from error
        if found is None:
            return current
        self._answering.add(found.target)
        self._choice.on_answer(current, found)
        return found

    def on_failure(self, called: ChannelConfig, error: grpc.RpcError, method: str) -> Decision:
        """Say what becomes of a call that failed."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._answering.discard(called.target)
        return self._choice.on_failure(called, error, method)

    def get(self, config: ChannelConfig) -> grpc.Channel:
        """Return the channel to one daemon, opened if it is not open."""
        with self._lock:
            if (known := self._channels.get(config.target)) is None:
                known = self._channels[config.target] = config.open()
                if self._is_closed:
                    known.close()
            return known

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: Any = False,
    ) -> Any:
        def make(channel: grpc.Channel) -> Method:
            return channel.unary_unary(method, request_serializer, response_deserializer)

        return _MovingCall(self, self._choice, method.rpartition("/")[2], make)

    def unary_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: Any = False,
    ) -> Any:
        def call(request: object, timeout: float, metadata: Any) -> Iterator[Any]:
            self.find_leader(timeout, metadata)
            channel = self.get(self._choice.current)
            made = channel.unary_stream(method, request_serializer, response_deserializer)
            return made(request, timeout=timeout, metadata=metadata)

        return call

    def find_leader(self, timeout: float, metadata: Any) -> None:
        """Make the leader the current daemon, by a request that any other refuses."""
        stub = coordinator_pb2_grpc.CoordinatorStub(self)
        stub.ListJobs(wire.ListJobsRequest(), timeout=timeout, metadata=metadata)

    def has_other_leader(self, metadata: Any) -> bool:
        """Ask the other daemons who leads; return whether one of these does, current from now."""
        for one in self._choice.list_others():
            stub = coordinator_pb2_grpc.CoordinatorStub(self.get(one))
            with contextlib.suppress(grpc.RpcError):
                told = stub.DescribeCoordinator(
                    make_describe_request(), timeout=ASK_SECONDS, metadata=metadata
                )
                if told.role == "leader":
                    self._choice.on_leader(one.target)
                    return True
        return False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for channel in self._channels.values():
                channel.close()

    def __enter__(self) -> "MovingChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stream_unary(self, *_: Any, **__: Any) -> Any:
        return _refuse_streams  # the coordinator has none

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        return _refuse_streams  # sessions are of asyncio

    def subscribe(self, callback: Any, try_to_connect: bool | None = None) -> None:
        raise NotImplementedError("the states of several connections are no state")

    def unsubscribe(self, callback: Any) -> None:
        raise NotImplementedError("the states of several connections are no state")


class _MovingCall:
    """A unary method of the daemon that leads."""

    def __init__(
        self,
        channel: MovingChannel,
        choice: DaemonChoice,
        name: str,
        make: Callable[[grpc.Channel], Method],
    ) -> None:
        self._channel = channel
        self._choice = choice
        self._name = name
        self._make = make

    def __call__(self, request: object, timeout: float, metadata: Any) -> Any:
        return self.future(request, timeout, metadata).result()

    def future(self, request: object, timeout: float, metadata: Any) -> "_MovingFuture":
        """Prepare a call, which another thread may cancel."""
        deadline = time.monotonic() + timeout
        return _MovingFuture(self, request, deadline, metadata)

    def begin(self, called: ChannelConfig, request: object, timeout: float, metadata: Any) -> Any:
        """Make the call at one daemon; return gRPC's future."""
        method = self._make(self._channel.get(called))
        return method.future(request, timeout=timeout, metadata=metadata)

    def find_daemon(
        self, metadata: Any, deadline: float, is_cancelled: Callable[[], bool]
    ) -> ChannelConfig:
        """Return the daemon to call, as the channel does."""
        return self._channel.find_daemon(metadata, deadline, is_cancelled)

    def decide(self, called: ChannelConfig, error: grpc.RpcError) -> Decision:
        """Say what becomes of a call that failed."""
        return self._channel.on_failure(called, error, self._name)

    def check_leader(self, called: ChannelConfig, metadata: Any) -> None:
        """Check that no other daemon leads than the one that is silent.

        Raises:
            LeaderChanged: another one does.
        """
        if self._channel.has_other_leader(metadata):
            raise LeaderChanged(called.target)


class _MovingFuture:
    """A call, made by the thread that asks for its result; any other may cancel it."""

    def __init__(self, call: _MovingCall, request: object, deadline: float, metadata: Any) -> None:
        self._call = call
        self._request = request
        self._deadline = deadline
        self._metadata = metadata
        self._under_way: Any = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Cancel the call; its result raises `grpc.FutureCancelledError`. Idempotent."""
        self._is_cancelled = True
        if self._under_way is not None:
            self._under_way.cancel()

    def result(self) -> Any:
        """Make the call, at one daemon after the other; return the reply.

        Raises:
            grpc.RpcError: it failed, and another attempt would not help, or could do harm.
        """
        while True:
            called = self._call.find_daemon(
                self._metadata, self._deadline, lambda: self._is_cancelled
            )
            try:
                reply = self._attempt(called)
            except grpc.RpcError as error:
                decision = self._call.decide(called, error)
                pause = PAUSE_SECONDS if decision is Decision.PAUSE else 0.0
                if decision is Decision.FAIL or time.monotonic() + pause >= self._deadline:
                    raise
                time.sleep(pause)
                continue
            if isinstance(reply, wire.CoordinatorDescription):
                keep_kv_addresses(reply, called)
            return reply

    def _attempt(self, called: ChannelConfig) -> Any:
        """Make the call at one daemon; give it up where that is silent and another one leads."""
        remaining = max(self._deadline - time.monotonic(), 0.0)
        self._under_way = future = self._call.begin(
            called, self._request, remaining, self._metadata
        )
        try:
            while not self._is_cancelled:
                try:
                    return future.result(timeout=SILENCE_SECONDS)
                except grpc.FutureTimeoutError:
                    self._call.check_leader(called, self._metadata)
            raise grpc.FutureCancelledError
        finally:
            future.cancel()  # of no effect where it is done


def _refuse_streams(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("no such method of the coordinator is called by threads")
