"""Calls to an etcd cluster: several endpoints, a deadline for each call, a user's token."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from allhands_proto import forks
from allhands_proto.etcd import rpc_pb2 as wire
from allhands_proto.etcd import rpc_pb2_grpc as stubs
from allhands_server.etcd_address import EtcdAddress
from allhands_server.log.errors import LogFull, LogUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_SECONDS = 2.0
"""Until a call fails, at all endpoints together."""
_ATTEMPT_SECONDS = 0.5
"""First wait for one endpoint; doubled when all endpoints have been tried."""
_PAUSE_SECONDS = 0.05
"""Between two rounds through the endpoints: nothing tells of one that comes back."""
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 500),
    # etcd drops who pings more often than each 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),
)
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
_NO_SPACE = "database space exceeded"


class _Endpoint:
    """A channel to one member of the cluster."""

    def __init__(self, target: str, channel: grpc.aio.Channel) -> None:
        self.target = target
        self.channel = channel
        self.kv = stubs.KVStub(channel)
        self.watch = stubs.WatchStub(channel)
        self.auth = stubs.AuthStub(channel)


class EtcdClient:
    """Client of a cluster; all methods belong to one event loop.

    A call that fails at an endpoint goes to the next one; what it did at the first is unknown
    then, so requests have to be such that a second time does no harm.
    """

    def __init__(self, address: EtcdAddress) -> None:
        """Prepare the channels, which connect with their first call.

        Raises:
            OSError: a file of the TLS settings cannot be read.
        """
        self.address = address
        forks.use_grpc()
        credentials = _read_credentials(address)
        self._endpoints = [
            _Endpoint(one, _open_channel(one, credentials)) for one in address.endpoints
        ]
        self._chosen = 0
        self._token = ""
        self._metadata: tuple[tuple[str, str], ...] = ()

    async def range(self, request: wire.RangeRequest) -> wire.RangeResponse:
        """Return the keys asked for, as of some moment after the call began.

        Raises:
            LogUnavailable: no endpoint has answered in time, or the cluster refuses.
        """
        return await self._call(
            lambda one, timeout: one.kv.Range(request, timeout=timeout, metadata=self._metadata)
        )

    async def txn(self, request: wire.TxnRequest) -> wire.TxnResponse:
        """Carry out a transaction, perhaps more than once.

        Raises:
            LogFull: the cluster has no room; nothing was written.
            LogUnavailable: the outcome is unknown.
        """
        return await self._call(
            lambda one, timeout: one.kv.Txn(request, timeout=timeout, metadata=self._metadata)
        )

    async def watch(
        self, request: wire.WatchRequest, quiet_seconds: float
    ) -> AsyncGenerator[wire.WatchResponse, None]:
        """Iterate over the responses of a watch at one endpoint.

        Ends after so long without any, and where watch or connection end, for whatever reason:
        the caller reads what it may have missed, and that fails where nothing can be reached.
        """
        endpoint = self._endpoints[self._chosen]
        call = endpoint.watch.Watch(metadata=self._metadata)
        try:
            await call.write(request)
            while True:
                async with asyncio.timeout(quiet_seconds):
                    response = await call.read()
                if not isinstance(response, wire.WatchResponse) or response.canceled:
                    return  # the stream has ended, or the watch
                yield response
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the channels. Idempotent."""
        for one in self._endpoints:
            await one.channel.close()

    # ------------------------------------------------------------ attempts

    async def _call(self, attempt: Callable[[_Endpoint, float], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_SECONDS
        failures: dict[str, str] = {}
        timeout, tried = _ATTEMPT_SECONDS, 0
        while (remaining := deadline - loop.time()) > 0:
            endpoint = self._endpoints[self._chosen]
            try:
                return await self._try(endpoint, attempt, min(timeout, remaining))
            except grpc.aio.AioRpcError as error:
                failures[endpoint.target] = _describe(error)
                self._check_passing(error, endpoint, has_failed_before=tried > 0)
            self._chosen = (self._chosen + 1) % len(self._endpoints)
            tried += 1
            if tried % len(self._endpoints) == 0:
                timeout *= 2
                await asyncio.sleep(_PAUSE_SECONDS)
        found = "; ".join(f"{target}: {why}" for target, why in failures.items())
        raise LogUnavailable(f"{self.address} does not answer: {found}")

    async def _try(
        self, endpoint: _Endpoint, attempt: Callable[[_Endpoint, float], Awaitable[T]], limit: float
    ) -> T:
        if self.address.user and not self._token:
            await self._authenticate(endpoint, limit)
        token = self._token
        try:
            return await attempt(endpoint, limit)
        except grpc.aio.AioRpcError as error:
            if not self.address.user or not _is_of_token(error):
                raise
        # Tokens end by idleness, and where any user of the cluster is changed.
        if self._token == token:
            await self._authenticate(endpoint, limit)
        return await attempt(endpoint, limit)

    async def _authenticate(self, endpoint: _Endpoint, limit: float) -> None:
        request = wire.AuthenticateRequest(name=self.address.user, password=self.address.password)
        response = await endpoint.auth.Authenticate(request, timeout=limit)
        self._token = response.token
        self._metadata = (("token", self._token),)

    def _check_passing(
        self, error: grpc.aio.AioRpcError, endpoint: _Endpoint, has_failed_before: bool
    ) -> None:
        """Raise an error that another attempt would not cure."""
        where = f"{self.address}: {endpoint.target}: {_describe(error)}"
        if _NO_SPACE in (error.details() or ""):
            if has_failed_before:  # an earlier attempt may have written
                raise LogUnavailable(where) from error
            raise LogFull(f"{where}: compact and defragment etcd, then disarm its alarm") from error
        if error.code() not in _PASSING:
            raise LogUnavailable(where) from error


def _is_of_token(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call failed for want of a valid token."""
    return any(words in (error.details() or "") for words in _OLD_TOKEN)


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name} ({error.details()})"


def _read_credentials(address: EtcdAddress) -> grpc.ChannelCredentials | None:
    if address.ca is None:
        return None
    cert, key = (
        None if path is None else Path(path).read_bytes() for path in (address.cert, address.key)
    )
    return grpc.ssl_channel_credentials(Path(address.ca).read_bytes(), key, cert)


def _open_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
