"""A server of etcd's API in memory that takes only the requests that kine takes.

Those are: one key looked up, created, replaced or deleted by its revision, all keys with a prefix
listed, and watched.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from allhands_proto.etcd import rpc_pb2 as wire
from allhands_proto.etcd import rpc_pb2_grpc as stubs
from allhands_server.etcd_address import EtcdAddress

_LARGEST_REQUEST = 1 << 20 | 1 << 19  # etcd's own limit
_NO_CHANGE = wire.TxnResponse()


@dataclass
class Fault:
    """A failure of the next transactions."""

    count: int
    is_done: bool
    """Whether the transaction is carried out before its answer is lost."""
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    text: str = "etcdserver: request timed out"
    following: "Fault | None" = None
    """Failure of those after these."""


class FakeEtcd(stubs.KVServicer, stubs.WatchServicer, stubs.AuthServicer):
    """Keys with revisions, and their history."""

    def __init__(self) -> None:
        self.keys: dict[bytes, wire.KeyValue] = {}
        self.revision = 1
        self.events: list[tuple[int, wire.Event]] = []
        self.fault = Fault(0, False)
        self.token = ""
        """That calls need; empty: none."""
        self.authentications = 0
        self.transactions = 0
        self.is_watched = asyncio.Event()
        self._changed = asyncio.Condition()
        self._server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", _LARGEST_REQUEST)]
        )
        self.port = 0

    async def start(self) -> None:
        stubs.add_KVServicer_to_server(self, self._server)
        stubs.add_WatchServicer_to_server(self, self._server)
        stubs.add_AuthServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def get_address(self, path: str = "test", user: str = "", password: str = "") -> EtcdAddress:
        endpoints = (f"127.0.0.1:{self.port}",)
        return EtcdAddress(endpoints, path, user=user, password=password)

    async def put(self, key: bytes, value: bytes, is_seen: bool = True) -> None:
        """Write as another client does; watches do not see some of it."""
        async with self._changed:
            self._put(key, value)
            if is_seen:
                self._changed.notify_all()
            else:
                self.events.pop()

    # ------------------------------------------------------------ the API

    async def Authenticate(
        self, request: wire.AuthenticateRequest, context: Any
    ) -> wire.AuthenticateResponse:
        self.authentications += 1
        if request.password != "right":
            text = "etcdserver: authentication failed, invalid user ID or password"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return wire.AuthenticateResponse(token=self.token)

    async def Range(self, request: wire.RangeRequest, context: Any) -> wire.RangeResponse:
        await self._check_token(context)
        header = wire.ResponseHeader(revision=self.revision)
        if not request.range_end:
            found = self.keys.get(request.key)
            return wire.RangeResponse(header=header, kvs=[] if found is None else [found])
        await self._check_prefix(request.key, request.range_end, context)
        listed = [self.keys[one] for one in sorted(self.keys) if one >= request.key]
        listed = [one for one in listed if one.key < request.range_end]
        limit = request.limit or len(listed)
        return wire.RangeResponse(header=header, kvs=listed[:limit], more=len(listed) > limit)

    async def Txn(self, request: wire.TxnRequest, context: Any) -> wire.TxnResponse:
        await self._check_token(context)
        self.transactions += 1
        fault = self.fault
        if not fault.count and fault.following is not None:
            fault = self.fault = fault.following
        if fault.count and not fault.is_done:
            fault.count -= 1
            await context.abort(fault.code, fault.text)
        async with self._changed:
            response = self._carry_out(request)
            self._changed.notify_all()
        if response is _NO_CHANGE:
            await context.abort(grpc.StatusCode.UNKNOWN, "unsupported transaction")
        if fault.count:
            fault.count -= 1
            await context.abort(fault.code, fault.text)
        return response

    async def Watch(
        self, requests: AsyncIterator[wire.WatchRequest], context: Any
    ) -> AsyncIterator[wire.WatchResponse]:
        await self._check_token(context)
        asked = (await anext(requests)).create_request
        await self._check_prefix(asked.key, asked.range_end, context)
        self.is_watched.set()
        yield wire.WatchResponse(created=True)
        seen = asked.start_revision - 1
        while True:
            async with self._changed:
                while self.revision <= seen:
                    await self._changed.wait()
                coming = [
                    event
                    for revision, event in self.events
                    if revision > seen and event.kv.key.startswith(asked.key)
                ]
                seen = self.revision
            if coming:
                header = wire.ResponseHeader(revision=seen)
                yield wire.WatchResponse(header=header, events=coming)

    # ------------------------------------------------------------ keys

    def _carry_out(self, request: wire.TxnRequest) -> wire.TxnResponse:
        """Carry out a transaction; `_NO_CHANGE` for a shape that kine does not take."""
        if len(request.compare) != 1 or len(request.success) != 1 or len(request.failure) > 1:
            return _NO_CHANGE
        compare, action = request.compare[0], request.success[0]
        if compare.target != wire.Compare.MOD or compare.result != wire.Compare.EQUAL:
            return _NO_CHANGE
        is_create = compare.mod_revision == 0
        if is_create != (not request.failure) or action.WhichOneof("request") == "request_range":
            return _NO_CHANGE
        there = self.keys.get(compare.key)
        if (there.mod_revision if there is not None else 0) != compare.mod_revision:
            return wire.TxnResponse(header=wire.ResponseHeader(revision=self.revision))
        if action.WhichOneof("request") == "request_put":
            self._put(action.request_put.key, action.request_put.value)
        else:
            assert there is not None
            assert not action.request_delete_range.range_end
            self.revision += 1
            event = wire.Event(type=wire.Event.DELETE, kv=self.keys.pop(there.key))
            self.events.append((self.revision, event))
        header = wire.ResponseHeader(revision=self.revision)
        return wire.TxnResponse(header=header, succeeded=True)

    def _put(self, key: bytes, value: bytes) -> None:
        self.revision += 1
        self.keys[key] = wire.KeyValue(key=key, value=value, mod_revision=self.revision)
        self.events.append((self.revision, wire.Event(kv=self.keys[key])))

    async def _check_token(self, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get("token", "")
        if shown != self.token:
            text = "etcdserver: invalid auth token"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    async def _check_prefix(self, key: bytes, end: bytes, context: Any) -> None:
        prefix = end[:-1] + bytes([end[-1] - 1])
        if not prefix.endswith(b"/") or not key.startswith(prefix):
            await context.abort(grpc.StatusCode.UNKNOWN, f"no range of a prefix: {key!r} {end!r}")
