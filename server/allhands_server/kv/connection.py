"""A connection of the key-value port: handshake, then calls in order.

Calls of one turn run together, and their replies are written together; see `turns`. Requests,
refusals and waits are those of the gRPC port.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from functools import partial
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from allhands_proto import framing
from allhands_proto.authority import format_authority
from allhands_proto.kv_handshake import CoordinatorHandshake, HandshakeRefused
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.access import Access, find_verb
from allhands_server.coordinator import Coordinator
from allhands_server.kv.calls import KV_CALLS, NOT_SLOWED
from allhands_server.kv.client_load import ClientLoad, LogLoad
from allhands_server.kv.incoming import IncomingFrames, NoRoom
from allhands_server.kv.receive_load import ReceiveLoad
from allhands_server.kv.turns import Turns
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.completions import measure_answer
from allhands_server.machine.events import Origin
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.refusal_status import CODES, bound_text
from allhands_server.request_origin import decode_origin

_MOST_NOTED = 1_000
STALL_SECONDS = 30.0
"""For which a peer may leave replies unread, above what the system's buffers hold."""
_REFUSAL_NBYTES = 256
_LONGEST = 1e8  # seconds; event loops do not count much further
_BYTES_PER_FRAME = 256 * 1024
_BYTES_UNREAD = 1024 * 1024
"""Replies that the peer has not taken in. More are not written out, and no more calls done."""

_NONSENSE = Refusal(
    Status.INVALID_ARGUMENT,
    "a call names what it wants, a timeout that is none below zero, and an id that no other has",
)
_UNDECODABLE = Refusal(Status.INVALID_ARGUMENT, "what came is no call: it cannot be decoded")


class Owner(Protocol):
    """The listener of an accepted connection."""

    coordinator: Coordinator
    access: Access
    secret: bytes
    hello_timeout: float
    """Seconds for the handshake."""
    turns: Turns
    """Of all its connections."""
    log_load: LogLoad
    receive_load: ReceiveLoad

    def on_proven(self, connection: "KvConnection") -> None:
        """Note an authenticated connection."""

    def on_closed(self, connection: "KvConnection") -> None:
        """Forget a closed connection."""

    def warn(self, name: str, why: str) -> None:
        """Log the refusal of a connection."""


class KvConnection(asyncio.Protocol):
    """A connection: preface, mutual proof, then calls in order."""

    def __init__(self, listener: Owner, connection: socket.socket, host: str, port: int) -> None:
        self._listener = listener
        self._coordinator = listener.coordinator
        self._access = listener.access
        self._handshake = CoordinatorHandshake(listener.secret)
        self._token_id = ""
        self._noted: set[tuple[str, str]] = set()
        """Verbs and jobs of this connection that are in the audit log."""
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._host = host
        self.name = format_authority(host, port)
        """Of the peer."""
        self._hello_timer: asyncio.TimerHandle | None = None
        self._todo = IncomingFrames(self, listener.receive_load, self._refuse_undecodable)
        self.job = ""
        """Of the last call that was carried out."""
        self._requests: dict[int, tuple[int, str]] = {}  # ticket -> id, field of Reply
        self._waiting: dict[int, int] = {}  # id -> ticket
        self._ready: deque[tuple[int, str, Any, int]] = deque()  # id, field of Reply, answer, bytes
        self._load = ClientLoad(listener.coordinator.limits, listener.log_load)
        self._stall_timer: asyncio.TimerHandle | None = None
        self._late_timer: asyncio.TimerHandle | None = None
        """Of the call that is slowed."""
        self._is_at_work = False
        self._is_choked = False
        self._is_paused = False
        self._is_closing = False

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not descend from asyncio's.
        self._transport = made = cast(asyncio.Transport, transport)
        if self._is_closing:
            made.abort()
            return
        made.set_write_buffer_limits(high=_BYTES_UNREAD)
        self._hello_timer = self._loop.call_later(
            self._listener.hello_timeout, self._on_handshake_timeout
        )

    @property
    def is_open(self) -> bool:
        """Whether the connection has a transport."""
        return self._transport is not None

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        try:
            if not self._handshake.is_complete:
                data = self._handshake.strip_preface(data)
            for body in self._todo.feed(data):
                if self._handshake.is_complete:
                    self._todo.add_calls(body)
                else:
                    self._on_handshake(body)
            self._todo.reserve(self._token_id or self._host)
        except (framing.MalformedFrame, DecodeError, NoRoom) as error:
            self._refuse(str(error))
            return
        if self._todo or self._ready:
            self._listener.turns.run(self)
        elif self._todo.awaits_room:
            self._pause_or_resume()

    def on_room(self) -> None:
        """Read on: there is room for the frame that has begun."""
        self._todo.on_room()
        self._pause_or_resume()

    def pause_writing(self) -> None:
        self._is_choked = True
        if self._todo:
            self._listener.receive_load.note_slow(self)
        self._stall_timer = self._loop.call_later(STALL_SECONDS, self._on_stall)

    def resume_writing(self) -> None:
        self._is_choked = False
        self._listener.receive_load.note_prompt(self)
        _cancel(self._stall_timer)
        self._listener.turns.run(self)

    def _on_stall(self) -> None:
        self.drop(f"its peer has read nothing for {STALL_SECONDS:g} s, and replies wait for it")

    def drop(self, why: str) -> None:
        """Drop the connection at once because of what its peer does, or does not."""
        self._listener.warn(self.name, why)
        self.abort()
        self._todo.clear()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._listener.on_closed(self)
        self._listener.turns.discard(self)
        for timer in (self._hello_timer, self._stall_timer, self._late_timer):
            _cancel(timer)
        self._todo.clear()
        self._ready.clear()
        self._load.close()
        for ticket in self._waiting.values():
            self._coordinator.cancel(ticket)
        self._waiting.clear()
        self._requests.clear()

    # ------------------------------------------------------------ coming and going

    def _on_handshake(self, body: bytes) -> None:
        assert self._transport is not None
        assert self._hello_timer is not None
        try:
            reply = self._handshake.answer(body)
        except HandshakeRefused as refused:
            self._access.refused["wrong_token"] += 1
            self._transport.write(refused.reply)
            raise
        if self._handshake.is_complete:
            self._token_id = self._handshake.token_id
            self._hello_timer.cancel()
            self._todo.accept_calls()
            self._listener.on_proven(self)
        self._transport.write(reply)

    def _on_handshake_timeout(self) -> None:
        self._access.refused["silent"] += 1
        self._refuse(f"no hello within {self._listener.hello_timeout:g} s")

    def _refuse(self, why: str) -> None:
        """Close the connection because of invalid data."""
        self._listener.warn(self.name, why)
        self._todo.clear()
        self.close()

    def evict(self, why: str) -> None:
        """Drop the connection at once, in favour of a newer connection."""
        self._listener.warn(self.name, why)
        self._listener.on_closed(self)
        self.abort()

    def close(self) -> None:
        """Write pending replies, then close. Idempotent."""
        if self._is_closing:
            return
        if self._transport is None:
            self.abort()
            return
        self._flush()
        self._is_closing = True
        self._transport.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()
        else:
            # In a handshake of TLS, which ends at once where the connection does.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------ calls

    def on_answer(self, ticket: int, reply: Any) -> None:
        """Queue an answer, to be written at the end of this turn of the loop."""
        id, kind = self._requests.pop(ticket)
        if self._load.held:
            self._release(ticket)
        self._queue_reply(id, kind, reply)

    def on_refusal(self, ticket: int, refusal: Refusal) -> None:
        id, _ = self._requests.pop(ticket)
        if self._load.held:
            self._release(ticket)
        self._queue_reply(id, "refused", refusal)

    def _release(self, ticket: int) -> None:
        """Note the end of a call that may have waited for the log, and go on behind it."""
        was_full = self._load.is_log_full
        self._load.release(ticket)
        if was_full and not self._load.is_log_full:
            self._loop.call_soon(self._listener.turns.run, self)

    def _queue_reply(self, id: int, kind: str, answer: Any) -> None:
        if self._waiting:
            self._waiting.pop(id, None)
        nbytes = _measure(answer)
        if self._load.add_reply(nbytes) and self._is_choked:
            self.drop(self._load.describe_replies())
            return
        if not self._is_at_work and not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append((id, kind, answer, nbytes))

    def _refuse_call(self, id: int, refusal: Refusal) -> None:
        self._load.add_reply(_REFUSAL_NBYTES)
        self._ready.append((id, "refused", refusal, _REFUSAL_NBYTES))

    def run_calls(self, most: int, until: float) -> bool:
        """Carry out calls; see `TurnTaker`."""
        if self._is_closing:
            return False
        self._is_at_work = True
        try:
            self._run_some(most, until)
        except DecodeError as error:  # behind the first calls of a large frame
            self._refuse(str(error))
            return False
        finally:
            self._is_at_work = False
        return bool(self._todo) and not self._is_blocked

    @property
    def _is_blocked(self) -> bool:
        """Whether no call is carried out, for a peer that does not read, the log, or its rate."""
        return (
            self._is_closing
            or self._is_choked
            or self._late_timer is not None
            or self._load.is_log_full
        )

    def end_turn(self) -> None:
        """Write pending replies; read on when no call is left."""
        if self._is_closing or self._transport is None:
            return
        self._flush()
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """Read unless calls are left, or a frame waits for room."""
        if self._is_closing or self._transport is None:
            return
        if (bool(self._todo) or self._todo.awaits_room) != self._is_paused:
            self._is_paused = not self._is_paused
            if self._is_paused:
                self._transport.pause_reading()
                self._todo.note_pause(is_of_peer=self._is_choked)
            else:
                self._transport.resume_reading()
                self._todo.note_reading()

    def _refuse_undecodable(self, id: int) -> None:
        self._listener.warn(self.name, "a call that cannot be decoded")
        self._refuse_call(id, _UNDECODABLE)

    def _run_some(self, most: int, until: float) -> None:
        while self._todo and not self._is_blocked:
            for call in self._todo.iterate_first():
                self._submit(call)
                most -= 1
                if self._load.reply_nbytes > _BYTES_UNREAD:
                    self._flush()
                if not most or self._is_blocked or time.monotonic() >= until:
                    return
            self._todo.drop_first()

    def _submit(self, call: wire.Call) -> None:
        kind = call.WhichOneof("call")
        id, timeout = call.id, call.timeout
        if kind == "cancel":
            if (ticket := self._waiting.pop(id, None)) is not None:
                del self._requests[ticket]
                self._release(ticket)
                self._coordinator.cancel(ticket)
            return
        if kind is None or not timeout >= 0 or id in self._waiting:
            self._refuse_call(id, _NONSENSE)
            return
        try:
            request = KV_CALLS[kind].parse(getattr(call, kind))
            origin = decode_origin(call.origin) if call.HasField("origin") else None
        except Refused as refused:
            self._refuse_call(id, refused.refusal)
            return
        if (self._token_id or self._access.is_audited) and not self._is_allowed(id, kind, call):
            return
        remaining = None if not timeout else timeout if timeout < _LONGEST else _LONGEST
        self.job = getattr(request, "job", "")
        if self._coordinator.rates.is_limited and kind not in NOT_SLOWED:
            patience = _LONGEST if remaining is None else remaining
            try:
                wait = self._coordinator.rates.admit(
                    self.job, self.name, patience, time.monotonic()
                )
            except Refused as refused:
                self._refuse_call(id, refused.refusal)
                return
            if wait > 0:
                left = None if remaining is None else remaining - wait
                late = partial(self._post_late, id, kind, call, request, left, origin)
                self._late_timer = self._loop.call_later(wait, late)
                return
        self._post(id, kind, call, request, remaining, origin)

    def _post_late(self, *posted: Any) -> None:
        """Carry out a call that was slowed, and go on with the others."""
        self._late_timer = None
        self._post(*posted)
        self._listener.turns.run(self)

    def _post(
        self,
        id: int,
        kind: str,
        call: wire.Call,
        request: Any,
        remaining: float | None,
        origin: Origin | None,
    ) -> None:
        ticket = self._coordinator.new_ticket()
        self._requests[ticket] = id, kind
        self._coordinator.post(ticket, request, remaining, self, origin)
        if ticket not in self._requests:
            return
        self._waiting[id] = ticket
        if self._coordinator.is_being_logged(ticket):
            self._load.hold(ticket, call.ByteSize())
        elif (refusal := self._load.check_waiters(len(self._waiting))) is not None:
            self._coordinator.cancel(ticket)
            del self._requests[ticket]
            del self._waiting[id]
            self._refuse_call(id, refusal)

    def _is_allowed(self, id: int, kind: str, call: wire.Call) -> bool:
        """Check a call of a caller with a token for one job, and queue its refusal.

        The audit log gets the first call of each verb and job of a connection, and refused ones.
        """
        method = KV_CALLS[kind].verb.method
        job = str(getattr(getattr(call, kind), "job", ""))
        verb = find_verb(method)
        try:
            if (verb, job) in self._noted:
                if self._token_id:
                    self._access.check_call(self._token_id, verb, job)
            else:
                self._access.check(self._token_id, method, job, self.name)
                if len(self._noted) < _MOST_NOTED:
                    self._noted.add((verb, job))
        except Refused as refused:
            self._refuse_call(id, refused.refusal)
            return False
        return True

    # ------------------------------------------------------------ writing

    def _flush(self) -> None:
        """Write pending replies, as far as the peer reads."""
        if self._is_closing:
            return
        while self._ready and not self._is_choked:
            replies = wire.Replies()
            nbytes = 0
            while self._ready and nbytes < _BYTES_PER_FRAME:
                id, kind, answer, counted = self._ready.popleft()
                self._load.reply_nbytes -= counted
                reply = replies.replies.add()
                reply.id = id
                nbytes += _FILL[kind](getattr(reply, kind), answer)
            self._write(replies.SerializeToString())

    def _write(self, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(framing.encode_frame(body))


def _measure(answer: Any) -> int:
    """Return about how many bytes a reply takes."""
    if isinstance(answer, int):
        return 16
    if isinstance(answer, KeyPut):
        return 16 + len(answer.value)
    return measure_answer(answer)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _fill_refused(message: wire.Refused, refusal: Refusal) -> int:
    message.code = CODES[refusal.status.value]
    message.text = bound_text(refusal)
    if refusal.leader is not None:
        message.leader = refusal.leader
    if refusal.retry_after is not None:
        message.retry_after = refusal.retry_after
    return len(message.text)


_FILL = {"refused": _fill_refused, **{kind: call.fill for kind, call in KV_CALLS.items()}}
