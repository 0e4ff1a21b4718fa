"""The coordinator's second door: key-value calls in frames over TCP, see calls.proto.

What has come on a line in one turn of the loop is carried out in one go, and what is ready then is
written in one go. Requests, refusals and waits are those of the gRPC port.
"""

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

from google.protobuf.message import DecodeError

from allhands_proto import framing
from allhands_proto.line_proof import NONCE_BYTES, is_proof, new_nonce, prove
from allhands_proto.v1 import calls_pb2 as wire
from allhands_server import translation
from allhands_server.config import authority
from allhands_server.coordinator import Coordinator
from allhands_server.key_calls import KEY_CALLS
from allhands_server.machine.refusals import Refusal, Status

logger = logging.getLogger(__name__)

_LARGEST_HELLO = 256
_LONGEST = 1e8  # seconds; event loops do not count much further
_CALLS_PER_TURN = 256  # a millisecond or two: then the others get their turn
_BYTES_PER_FRAME = 256 * 1024
_BYTES_UNREAD = 1024 * 1024
"""Replies that the peer has not taken in. More are not written out, and no more calls done."""
_BACKLOG = 1024

_UNAUTHENTICATED = translation.CODES["UNAUTHENTICATED"]
_NO_PROOF = "this is no proof of the secret of its lines, which it tells to who has its token"
_NONSENSE = Refusal(
    Status.INVALID_ARGUMENT,
    "a call names what it wants, a timeout that is none below zero, and an id that no other has",
)

_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A host that vanished without a FIN: its lines end, and with them its waits.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)


class Lines:
    """The listener and its lines; lives on the coordinator's loop."""

    def __init__(self, coordinator: Coordinator, secret: bytes, hello_timeout: float) -> None:
        self._coordinator = coordinator
        self._hello_timeout = hello_timeout
        self._lines: set[Line] = set()
        self._server: asyncio.Server | None = None
        self.secret = secret
        self.port = 0

    async def listen(self, host: str, tls: ssl.SSLContext | None) -> None:
        """Take any free port of `host`.

        Raises:
            OSError: there is none.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(
            address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
        self.port = listening.getsockname()[1]
        self._server = await loop.create_server(
            self._line,
            sock=listening,
            ssl=tls,
            ssl_handshake_timeout=self._hello_timeout if tls is not None else None,
        )

    def close(self) -> None:
        """Take in nobody any more, and close the lines once what is ready has been written."""
        if self._server is not None:
            self._server.close()
        for line in list(self._lines):
            line.close()

    def abort(self) -> None:
        """Drop the lines that are still there."""
        for line in list(self._lines):
            line.abort()

    def _line(self) -> "Line":
        return Line(self._coordinator, self.secret, self._hello_timeout, self._lines)


class Line(asyncio.Protocol):
    """One connection: preface, hello, proof, then calls, carried out in their order."""

    def __init__(
        self,
        coordinator: Coordinator,
        secret: bytes,
        hello_timeout: float,
        lines: "set[Line]",
    ) -> None:
        self._coordinator = coordinator
        self._secret = secret
        self._hello_timeout = hello_timeout
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._hello_timer: asyncio.TimerHandle | None = None
        self._preface = framing.PREFACE  # what has not come of it yet
        self._cutter = framing.FrameCutter(_LARGEST_HELLO)
        self._todo: deque[Iterator[wire.Call]] = deque()
        self._asked: dict[int, tuple[int, str]] = {}  # ticket -> id, field of Reply
        self._waiting: dict[int, int] = {}  # id -> ticket
        self._ready: deque[tuple[int, str, Any]] = deque()  # id, field of Reply, answer
        self._nonces: tuple[bytes, bytes] | None = None  # the caller's, and ours
        self._is_known = False
        self._is_at_work = False
        self._is_choked = False
        self._is_paused = False
        self._is_closing = False

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not descend from asyncio's.
        self._transport = made = cast(asyncio.Transport, transport)
        self._lines.add(self)
        for level, option, value in _OPTIONS:
            made.get_extra_info("socket").setsockopt(level, option, value)
        made.set_write_buffer_limits(high=_BYTES_UNREAD)
        self._peer = authority(*transport.get_extra_info("peername")[:2])
        self._hello_timer = self._loop.call_later(self._hello_timeout, self._said_nothing)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._preface:
            begin = data[: len(self._preface)]
            if not self._preface.startswith(begin):
                self._refuse("what it says is not for this port")
                return
            self._preface = self._preface[len(begin) :]
            data = data[len(begin) :]
        try:
            for body in self._cutter.feed(data):
                if self._is_known:
                    self._todo.append(iter(wire.Calls.FromString(body).calls))
                else:
                    self._greeted(body)
        except (framing.Malformed, DecodeError) as error:
            self._refuse(str(error))
            return
        self._work()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._lines.discard(self)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._todo.clear()
        self._ready.clear()
        for ticket in self._waiting.values():
            self._coordinator.withdraw(ticket)
        self._waiting.clear()
        self._asked.clear()

    # ------------------------------------------------------------ coming and going

    def _greeted(self, body: bytes) -> None:
        if self._nonces is None:
            self._challenge(wire.LineHello.FromString(body).nonce)
        else:
            self._let_in(wire.LineProof.FromString(body).proof, *self._nonces)

    def _challenge(self, theirs: bytes) -> None:
        if len(theirs) != NONCE_BYTES:
            raise framing.Malformed(f"a nonce of {len(theirs)} bytes, not of {NONCE_BYTES}")
        ours = new_nonce()
        self._nonces = theirs, ours
        proof = prove(self._secret, "coordinator", theirs, ours)
        self._write(wire.LineChallenge(nonce=ours, proof=proof).SerializeToString())

    def _let_in(self, proof: bytes, theirs: bytes, ours: bytes) -> None:
        if not is_proof(proof, self._secret, "caller", theirs, ours):
            refused = wire.Refused(code=_UNAUTHENTICATED, text=_NO_PROOF)
            self._write(wire.LineWelcome(refused=refused).SerializeToString())
            raise framing.Malformed(_NO_PROOF)
        assert self._hello_timer is not None
        self._hello_timer.cancel()
        self._cutter.largest = framing.LARGEST_FRAME
        self._is_known = True
        self._write(wire.LineWelcome().SerializeToString())

    def _said_nothing(self) -> None:
        self._refuse(f"no hello within {self._hello_timeout:g} s")

    def _refuse(self, why: str) -> None:
        """Close the line because of what came on it."""
        logger.warning("refused a line from %s: %s", self._peer, why)
        self._todo.clear()
        self.close()

    def close(self) -> None:
        """Write what is ready, then close. Idempotent."""
        if self._is_closing or self._transport is None:
            return
        self._flush()
        self._is_closing = True
        self._transport.close()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    # ------------------------------------------------------------ calls

    def answered(self, ticket: int, reply: Any) -> None:
        """Take an answer; it goes out at the end of this turn."""
        id, kind = self._asked.pop(ticket)
        self._ended(id, kind, reply)

    def refused(self, ticket: int, refusal: Refusal) -> None:
        id, _ = self._asked.pop(ticket)
        self._ended(id, "refused", refusal)

    def _ended(self, id: int, kind: str, answer: Any) -> None:
        if self._waiting:
            self._waiting.pop(id, None)
        if not self._is_at_work and not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append((id, kind, answer))

    def _work(self) -> None:
        """Carry out calls, up to what fits into a turn; read on when none is left."""
        if self._is_closing or self._transport is None:
            return
        self._is_at_work = True
        try:
            self._carry_out(_CALLS_PER_TURN)
        finally:
            self._is_at_work = False
        self._flush()
        if bool(self._todo) != self._is_paused:
            self._is_paused = not self._is_paused
            if self._is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self._todo and not self._is_choked:
            self._loop.call_soon(self._work)

    def _carry_out(self, most: int) -> None:
        while self._todo and not self._is_choked:
            for call in self._todo[0]:
                self._ask(call)
                most -= 1
                if not most:
                    return
            self._todo.popleft()

    def _ask(self, call: wire.Call) -> None:
        kind = call.WhichOneof("call")
        id, timeout = call.id, call.timeout
        if kind == "withdraw":
            if (ticket := self._waiting.pop(id, None)) is not None:
                del self._asked[ticket]
                self._coordinator.withdraw(ticket)
            return
        if kind is None or not timeout >= 0 or id in self._waiting:
            self._ready.append((id, "refused", _NONSENSE))
            return
        request = KEY_CALLS[kind].asked(getattr(call, kind))
        remaining = None if not timeout else timeout if timeout < _LONGEST else _LONGEST
        ticket = self._coordinator.new_ticket()
        self._asked[ticket] = id, kind
        self._coordinator.post(ticket, request, remaining, self)
        if ticket in self._asked:
            self._waiting[id] = ticket

    # ------------------------------------------------------------ writing

    def _flush(self) -> None:
        """Write what is ready, as far as the peer takes it in."""
        if self._is_closing:
            return
        while self._ready and not self._is_choked:
            replies = wire.Replies()
            nbytes = 0
            while self._ready and nbytes < _BYTES_PER_FRAME:
                id, kind, answer = self._ready.popleft()
                reply = replies.replies.add()
                reply.id = id
                nbytes += _FILL[kind](getattr(reply, kind), answer)
            self._write(replies.SerializeToString())

    def _write(self, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(framing.framed(body))


def _fill_refused(message: wire.Refused, refusal: Refusal) -> int:
    message.code = translation.CODES[refusal.status.value]
    message.text = translation.bounded_text(refusal)
    return len(message.text)


_FILL = {"refused": _fill_refused, **{kind: call.fill for kind, call in KEY_CALLS.items()}}
