"""A line to the coordinator for asyncio: any number of calls under way, in their order.

What is called in one turn of the loop goes out in one go, and so come the replies: callers who
keep many calls under way share the cost of a message among them.
"""

import asyncio
import itertools
import math
import ssl
from typing import TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

from allhands.coordinator.dialling import connect_on_thread
from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.kv.blocking import CONNECT_SECONDS, SOCKET_OPTIONS
from allhands.coordinator.kv.calls import (
    KvCallError,
    KvPort,
    answer_challenge,
    decode_reply,
    encode_call,
    list_kv_addresses,
    make_deadline_error,
)
from allhands_proto import framing
from allhands_proto.kv_handshake import CallerHandshake
from allhands_proto.kv_verbs import KvVerb, P, Q
from allhands_proto.v1 import coordinator_pb2 as wire

_MAX_FRAME_BYTES = 256 * 1024
_MAX_UNSENT_BYTES = 1024 * 1024

PendingReply: TypeAlias = "tuple[asyncio.Future[wire.Reply], float]"  # and the loop's time when due


class AsyncKvConnection(asyncio.Protocol):
    """A key-value connection; used on the loop of its `open`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._cutter = framing.FrameDecoder()
        self._handshake_frames: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self._is_authenticated = False
        self._is_paused = False
        self._ids = itertools.count(1)
        self._outgoing: list[bytes] = []
        self._pending: dict[int, PendingReply] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._port: KvPort | None = None
        self.failure: KvCallError | None = None
        """Why the line is over, once it is."""

    @classmethod
    async def open(
        cls, endpoint: Endpoint, port: KvPort, tls: ssl.SSLContext | None
    ) -> "AsyncKvConnection":
        """Connect, and authenticate both sides by the shared secret.

        Raises:
            OSError, framing.Malformed, DecodeError: no coordinator, or another one, listens there.
            KvCallError: the coordinator rejects this side's proof.
        """
        loop = asyncio.get_running_loop()
        addresses = await asyncio.to_thread(list_kv_addresses, endpoint, port)
        sock, host = await connect_on_thread(addresses, CONNECT_SECONDS)
        sock.setblocking(False)
        name = None if tls is None else endpoint.tls_name or host
        try:
            _, line = await loop.create_connection(cls, sock=sock, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        try:
            await line._authenticate(port)
        except BaseException:
            line.close("it was not opened")
            raise
        return line

    async def _authenticate(self, port: KvPort) -> None:
        handshake = CallerHandshake(port.secret, port.token_id)
        self._write(handshake.start())
        self._write(answer_challenge(handshake, await self._read_handshake_frame()))
        if (refused := handshake.finish(await self._read_handshake_frame())) is not None:
            raise KvCallError.from_refusal(refused)
        self._is_authenticated = True
        self._port = port

    def takes(self, verb: KvVerb[Q, P]) -> bool:
        """Whether calls of a verb can be made on this connection; else they go by gRPC."""
        return self._port is not None and self._port.takes(verb)

    async def _read_handshake_frame(self) -> bytes:
        come = await self._handshake_frames.get()
        if isinstance(come, Exception):
            raise come
        return come

    async def call(
        self, verb: KvVerb[Q, P], request: Q, timeout: float, origin: wire.Origin | None = None
    ) -> P:
        """Make a call, sent before the first wait; cancelling withdraws the call.

        Raises:
            KvCallError: the coordinator refused, the connection broke, or the deadline passed.
        """
        if self.failure is not None:
            raise self.failure
        if timeout <= 0:
            raise make_deadline_error()
        id = next(self._ids)
        self._send(encode_call(verb, id, request, timeout, origin))
        reply: asyncio.Future[wire.Reply] = self._loop.create_future()
        due = self._loop.time() + timeout + verb.grace_seconds
        self._pending[id] = reply, due
        if due < self._timer_due:
            self._set_timer(due)
        try:
            return decode_reply(verb, await reply)
        except asyncio.CancelledError:
            if self._pending.pop(id, None) is not None and self.failure is None:
                withdrawn = wire.Call(id=id, cancel=wire.Cancel())
                self._send(wire.Calls(calls=[withdrawn]).SerializeToString())
            raise

    def close(self, why: str = "this client has been closed") -> None:
        """Close the connection; waiting calls raise KvCallError. Idempotent."""
        self._fail(grpc.StatusCode.CANCELLED, why)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not descend from asyncio's.
        self._transport = made = cast(asyncio.Transport, transport)
        for level, option, value in SOCKET_OPTIONS:
            made.get_extra_info("socket").setsockopt(level, option, value)
        made.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._cutter.feed(data):
                if self._is_authenticated:
                    for reply in wire.Replies.FromString(body).replies:
                        self._complete(reply)
                else:
                    self._handshake_frames.put_nowait(body)
        except (framing.MalformedFrame, DecodeError) as error:
            self._handshake_frames.put_nowait(error)
            self.close(f"the line carries something else: {error}")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        what = error or ConnectionError("the coordinator closed the connection")
        self._handshake_frames.put_nowait(what)
        self._fail(grpc.StatusCode.UNAVAILABLE, f"the line broke: {what}")

    def _complete(self, reply: wire.Reply) -> None:
        waiting = self._pending.pop(reply.id, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(reply)

    def _send(self, message: bytes) -> None:
        if not self._outgoing and not self._is_paused:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _flush(self) -> None:
        """Write the queued messages, joined into frames up to a maximum size."""
        if self.failure is not None:
            return
        outgoing, self._outgoing = self._outgoing, []
        begin = nbytes = 0
        for end, message in enumerate(outgoing):
            if nbytes and nbytes + len(message) > _MAX_FRAME_BYTES:
                self._write(framing.encode_frame(b"".join(outgoing[begin:end])))
                begin, nbytes = end, 0
            nbytes += len(message)
        if begin < len(outgoing):
            self._write(framing.encode_frame(b"".join(outgoing[begin:])))

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._expire_calls)

    def _expire_calls(self) -> None:
        """End the calls whose time is over: mostly the coordinator has done so before."""
        self._timer, self._timer_due = None, math.inf
        now = self._loop.time()
        for id, (reply, due) in list(self._pending.items()):
            if due <= now:
                del self._pending[id]
                if not reply.done():
                    reply.set_exception(make_deadline_error())
        if self._pending:
            self._set_timer(min(due for _, due in self._pending.values()))

    def _fail(self, code: grpc.StatusCode, why: str) -> None:
        if self.failure is not None:
            return
        self.failure = KvCallError(code, why)
        if self._timer is not None:
            self._timer.cancel()
        self._outgoing.clear()
        waiting, self._pending = self._pending, {}
        for reply, _ in waiting.values():
            if not reply.done():
                reply.set_exception(KvCallError(code, why))
