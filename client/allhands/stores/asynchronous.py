"""The store of a job for asyncio: the methods of `Store`, awaited."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self, cast

import grpc
from google.protobuf.message import DecodeError

from allhands.coordinator.attempts import RETRY_SECONDS
from allhands.coordinator.blocking_versions import check_grpc_description
from allhands.coordinator.endpoint import Endpoint, configure_channel, tls_context
from allhands.coordinator.http2.grpc_failures import GrpcCallFailed
from allhands.coordinator.http2.stub import make_stub
from allhands.coordinator.kv.asynchronous import AsyncKvConnection
from allhands.coordinator.kv.blocking import CONNECT_SECONDS
from allhands.coordinator.kv.calls import (
    KvCallError,
    describe_call,
    find_pause,
    is_past_deadline,
    make_deadline_error,
    may_come_back,
    read_kv_port,
)
from allhands.coordinator.kv.request_numbers import RequestNumbers
from allhands.coordinator.kv.values import encode, pair_up
from allhands.coordinator.probing import explain_failure
from allhands.coordinator.protocol_versions import make_describe_request
from allhands.coordinator.session_channel import open_channel
from allhands.coordinator.status_errors import translate_error, translate_status
from allhands.deadlines import Timeout, clip_or_raise, to_seconds
from allhands.tracebacks import trims_tracebacks
from allhands_proto import forks
from allhands_proto.call_metadata import add_call_metadata
from allhands_proto.framing import MalformedFrame
from allhands_proto.kv_verbs import KvVerb, P, Q, find_verb
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)


@trims_tracebacks
class AsyncCoordinatorStore:
    """The methods of the `Store` contract as coroutines of one loop; for `async with`.

    Concurrent calls share packets: with many under way (`asyncio.gather` or tasks), each costs a
    few microseconds. The coordinator carries calls out in the order in which they began. A
    cancelled call stops waiting, but may have been carried out.
    """

    def __init__(self, endpoint: Endpoint, *, job: str, timeout: Timeout = 30.0) -> None:
        self._channel_config = configure_channel(endpoint)
        self._endpoint = self._channel_config.endpoint
        self._channel = open_channel(self._channel_config, GrpcCallFailed)
        self._stub = make_stub(self._channel)
        self._job = job
        self._timeout = to_seconds(timeout)
        self._connection: AsyncKvConnection | None = None
        self._open_lock = asyncio.Lock()
        self._numbers = RequestNumbers()
        self._is_durable = False
        """Whether the coordinator has its state again after a restart, as far as is known."""
        self._is_kv_unavailable = False  # no line is to be had: all calls are gRPC
        forks.hold(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; waiting calls raise CoordinatorUnavailable. Idempotent."""
        if self._connection is not None:
            self._connection.close()
        await self._channel.close()

    @property
    def timeout(self) -> float:
        return self._timeout

    def set_timeout(self, timeout: Timeout) -> None:
        self._timeout = to_seconds(timeout)

    async def set(self, key: str, value: bytes | str) -> None:
        request = wire.SetRequest(job=self._job, key=key, value=encode(value))
        await self.call_kv(request, wire.SetReply)

    async def get(self, key: str) -> bytes:
        request = wire.GetRequest(job=self._job, key=key, wait=True)
        return (await self.call_kv(request, wire.GetReply)).value

    async def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None:
        limit = self._timeout if timeout is None else to_seconds(timeout)
        if keys:
            await self.call_kv(wire.WaitRequest(job=self._job, keys=keys), wire.WaitReply, limit)

    async def add(self, key: str, amount: int) -> int:
        request = wire.AddRequest(job=self._job, key=key, amount=amount)
        return (await self.call_kv(request, wire.AddReply)).value

    async def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        request = wire.CompareSetRequest(
            job=self._job, key=key, expected=encode(expected), desired=encode(desired)
        )
        found = await self.call_kv(request, wire.CompareSetReply)
        return found.value if found.exists else encode(expected)

    async def append(self, key: str, value: bytes | str) -> None:
        request = wire.AppendRequest(job=self._job, key=key, value=encode(value))
        await self.call_kv(request, wire.AppendReply)

    async def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not keys:
            return []
        request = wire.MultiGetRequest(job=self._job, keys=keys, wait=True)
        return [*(await self.call_kv(request, wire.MultiGetReply)).values]

    async def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        if pairs := pair_up(keys, values):
            put = [wire.KeyValue(key=key, value=value) for key, value in pairs.items()]
            await self.call_kv(wire.MultiSetRequest(job=self._job, pairs=put), wire.MultiSetReply)

    async def delete_key(self, key: str) -> bool:
        request = wire.DeleteRequest(job=self._job, key=key)
        return (await self.call_kv(request, wire.DeleteReply)).deleted

    async def num_keys(self) -> int:
        return (await self.call_kv(wire.CountRequest(job=self._job), wire.CountReply)).count

    async def list_keys(self, prefix: str = "") -> list[str]:
        request = wire.ListRequest(job=self._job, prefix=prefix)
        return [*(await self.call_kv(request, wire.ListReply)).keys]

    async def check(self, keys: Sequence[str]) -> bool:
        # As `CoordinatorStore.check`.
        for key in keys:
            if key not in await self.list_keys(key):
                return False
        return True

    async def queue_push(self, key: str, value: bytes | str) -> None:
        request = wire.QueuePushRequest(job=self._job, key=key, value=encode(value))
        await self.call_kv(request, wire.QueuePushReply)

    async def queue_pop(self, key: str, block: bool = True) -> bytes:
        request = wire.QueuePopRequest(job=self._job, key=key, wait=block)
        return (await self.call_kv(request, wire.QueuePopReply)).value

    async def queue_len(self, key: str) -> int:
        request = wire.QueueLengthRequest(job=self._job, key=key)
        return (await self.call_kv(request, wire.QueueLengthReply)).length

    async def call_kv(self, request: Q, reply_type: type[P], timeout: float | None = None) -> P:
        """Make a key-value call; return the reply.

        Raises:
            AllhandsError: the call failed; a change may or may not have happened, unless the
                coordinator refused.
        """
        verb = find_verb(request, reply_type)
        limit = self._timeout if timeout is None else timeout
        limit = clip_or_raise(lambda: describe_call(verb, request), limit)
        try:
            return await self._repeat(verb, request, limit)
        except KvCallError as error:
            doing = f"{describe_call(verb, request)} of job {self._job!r}"
            has_answered = self._connection is not None or self._is_kv_unavailable
            reason = await self._explain(error.code, has_answered)
            raise translate_status(
                *(error.code, error.details, doing),
                target=self._channel_config.target,
                reason=reason,
                retry_after=error.retry_after,
            ) from error
        except grpc.RpcError as error:
            doing = f"{describe_call(verb, request)} of job {self._job!r}"
            reason = await self._explain(error.code(), has_answered=True)
            raise translate_error(
                error, doing, target=self._channel_config.target, reason=reason
            ) from error

    async def _explain(self, code: grpc.StatusCode, has_answered: bool) -> str:
        """Return why the coordinator cannot be reached, as far as can be found out."""
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return ""
        explain = partial(explain_failure, has_answered=has_answered)
        return await asyncio.to_thread(explain, code, self._endpoint)

    async def _repeat(self, verb: KvVerb[Q, P], request: Q, limit: float) -> P:
        """Make a call, and further attempts while it is above a rate or the coordinator away.

        Raises:
            KvCallError, grpc.RpcError: the last one failed.
        """
        deadline = time.monotonic() + limit
        while True:
            try:
                return await self._repeat_while_away(verb, request, deadline)
            except (KvCallError, grpc.RpcError) as error:
                if (pause := find_pause(error, deadline)) is None:
                    raise
            await asyncio.sleep(pause)

    async def _repeat_while_away(self, verb: KvVerb[Q, P], request: Q, deadline: float) -> P:
        """Make a call, and further attempts while a durable coordinator is being restarted.

        Raises:
            KvCallError, grpc.RpcError: the last one failed; or one before, as the coordinator was
                away, and the last got no answer in the time that was left.
        """
        limit = max(deadline - time.monotonic(), 0.0)
        if self._connection is None and not self._is_kv_unavailable:
            await self._get_connection(limit)  # whose description says whether it is durable
        if not self._is_durable:
            return await self._attempt(verb, request, deadline, None)
        absence: KvCallError | grpc.RpcError | None = None
        with self._numbers.open() if verb.is_write else contextlib.nullcontext() as origin:
            while True:
                try:
                    return await self._attempt(verb, request, deadline, origin)
                except (KvCallError, grpc.RpcError) as error:
                    if absence is not None and not verb.is_wait and is_past_deadline(error):
                        raise absence from error
                    if not may_come_back(error):
                        raise
                    if time.monotonic() + RETRY_SECONDS > deadline:
                        raise
                    absence = error
                if origin is not None:
                    origin.is_repeated = True
                await asyncio.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
                self._is_kv_unavailable = False

    async def _attempt(
        self, verb: KvVerb[Q, P], request: Q, deadline: float, origin: wire.Origin | None
    ) -> P:
        line = self._connection
        if line is None or line.failure is not None:
            line = await self._get_connection(deadline - time.monotonic())
        limit = deadline - time.monotonic()
        if line is not None and line.takes(verb):
            return await line.call(verb, request, limit, origin)
        method = getattr(self._stub, verb.method)
        grace = verb.grace_seconds
        metadata = add_call_metadata(self._channel_config.metadata, origin, grace)
        return cast(P, await method(request, timeout=limit + grace, metadata=metadata))

    async def _get_connection(self, limit: float) -> AsyncKvConnection | None:
        """Return a key-value connection, opened if absent; None: the port is unreachable."""
        try:
            async with asyncio.timeout(limit):
                async with self._open_lock:
                    if self._is_kv_unavailable:
                        return None
                    if self._connection is None or self._connection.failure is not None:
                        self._connection = await self._open_connection(limit)
                    return self._connection
        except TimeoutError as error:
            raise make_deadline_error() from error

    async def _open_connection(self, limit: float) -> AsyncKvConnection | None:
        request = make_describe_request()
        try:
            found = await self._stub.DescribeCoordinator(
                request, timeout=limit, metadata=self._channel_config.metadata
            )
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            found = wire.CoordinatorDescription()  # an older one
        check_grpc_description(found)
        self._is_durable = found.is_durable
        if (port := read_kv_port(found)) is None:
            self._is_kv_unavailable = True
            return None
        try:
            tls = None
            if self._endpoint.tls_ca is not None:
                tls = tls_context(self._endpoint)
            async with asyncio.timeout(CONNECT_SECONDS):
                return await AsyncKvConnection.open(self._endpoint, port, tls)
        except (OSError, MalformedFrame, DecodeError) as error:
            logger.info(
                "no line to port %d of the coordinator at %s (%s): its key-value calls go by gRPC",
                port.port,
                self._channel_config.target,
                error,
            )
            self._is_kv_unavailable = True
            return None
