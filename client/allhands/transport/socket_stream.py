"""Links as raw TCP streams of frames: one listening port per process, one connection per direction.

The greeting is that of `handshake`, each step behind a preamble of eight bytes. Then come frames
end to end; a frame of kind bye ends them. The acceptor answers only at the end: with a bye
once it has taken in everything before the dialler's, or with one that says what was wrong.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from allhands.transport import handshake
from allhands.transport.frame import (
    HEADER_BYTES,
    Frame,
    FrameError,
    Header,
    Key,
    Kind,
    extent,
    unpack,
)
from allhands.transport.handshake import HandshakeError, Identity
from allhands.transport.link import LinkBroken, Receiver, Sink, Unreachable
from allhands_proto.v1 import peer_pb2

logger = logging.getLogger(__name__)

Address = tuple[str, int]

CONNECT_SECONDS = 2.0
"""After this nobody listens there, or somebody in between drops what is sent."""
STEP_SECONDS = 3.0
"""For one step of a handshake, of which no part waits for anything but the network."""
ADMISSION_SECONDS = 5.0
"""How long a greeting waits until this worker knows its world."""
MOST_UNPROVEN = 512
"""Connections that have proven nothing yet, beside two for each rank; the oldest makes room."""

_PREAMBLE = struct.Struct("<2sBBI")
_MAGIC = b"AL"
_VERSION = 1
_STEP, _REFUSAL = 0, 1
_LARGEST_STEP = 4096
_LARGEST_TEXT = 4096
"""Payload bytes of a frame that is no data: the words of a refusal."""
_BACKLOG = 1024
_ACCEPT_AGAIN_SECONDS = 1.0
_READ = 256 << 10
"""Bytes read at once: what is reduced on its way stays in the cache."""
_READ_AT_MOST = 1 << 20
"""Bytes read from one peer before others have their turn."""
_NEAR_MICROSECONDS = 500
"""Round trips shorter than this are of one host or one switch: 1 MiB keeps 16 Gbit/s busy."""
_NEAR_BUFFER = 512 << 10
"""The system takes it twice. 64 MiB of all_reduce between 2 namespaces, milliseconds: 29 to 37,
with 128 KiB 72, with 768 KiB and more, or what the system chooses, 41 to 60."""
_TCP_INFO_BYTES = 104
_TCP_INFO_ROUND_TRIP = 68
"""Where struct tcp_info has the smoothed round trip, in microseconds."""
_MOST_PIECES = 512
"""Of one write; the system allows 1024."""
_WENT_AWAY = "its process or connection went away"

M = TypeVar("M", bound=Message)


# -------------------------------------------------------------------- listening


class SocketListening:
    """The worker's port. It is open before the worker has a rank: until `admit`, links wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._identity: Identity | None = None
        self._receiver: Receiver | None = None
        self._admitting = asyncio.Event()
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._inbound: dict[int, _Inbound] = {}
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._closing = False
        self._page = memoryview(bytearray(_READ))
        self._again: asyncio.TimerHandle | None = None
        self.port = 0

    def start(self, host: str) -> None:
        """Listen on a free port of `host`.

        Raises:
            OSError: the host is not an address of this machine.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind((host, 0))
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        self.port = listening.getsockname()[1]
        self._loop.add_reader(listening, self._accept)

    def admit(self, identity: Identity, receiver: Receiver) -> None:
        """Let peers of this identity's world in; their frames go to `receiver`."""
        self._identity = identity
        self._receiver = receiver
        self._admitting.set()

    async def deserted(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._deserted.wait()

    async def aclose(self) -> None:
        """Stop listening and drop what still comes in. Idempotent."""
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for inbound in list(self._inbound.values()):
            inbound.end(_WENT_AWAY)
        greeting = list(self._greeting)
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)

    # ------------------------------------------------------------ inside

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            while True:
                connection, where = self._socket.accept()
                connection.setblocking(False)
                self._make_room()
                task = self._loop.create_task(self._admit(connection, _address(where)))
                self._greeting[task] = None
                task.add_done_callback(partial(self._greeted, connection))
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no more descriptors: the connection stays in the backlog
            logger.warning("cannot accept links for now: %s", error)
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._listen_again)

    def _greeted(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._greeting.pop(task, None)
        if task.cancelled():
            connection.close()

    def _listen_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _make_room(self) -> None:
        """Drop the oldest of too many strangers: a peer's handshake is over in milliseconds."""
        ranks = 0 if self._identity is None else self._identity.world_size
        if len(self._greeting) >= MOST_UNPROVEN + 2 * ranks:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.cancel("too many connections have not proven themselves")

    async def _admit(self, connection: socket.socket, where: str) -> None:
        """Find out who has connected; make it a link, or close it."""
        try:
            peer = await self._greet(connection)
        except (HandshakeError, OSError, TimeoutError) as error:
            reason = str(error) or f"a step of the handshake took more than {STEP_SECONDS:.0f} s"
            logger.warning("refused a link from %s: %s", where, reason)
            with contextlib.suppress(OSError):
                connection.send(_packed(f"link refused: {reason}".encode(), _REFUSAL))
            connection.close()
            return
        except asyncio.CancelledError as cancelled:
            if not self._closing:
                logger.warning("refused a link from %s: %s", where, cancelled)
            raise
        assert self._receiver is not None
        self._inbound[peer] = _Inbound(connection, peer, self._receiver, self._page, self._ended)
        self._deserted.clear()

    async def _greet(self, connection: socket.socket) -> int:
        """Run the acceptor's half of the handshake; return the peer's rank."""
        _without_delay(connection)
        greeting = await _hear(connection, peer_pb2.Hello())
        async with asyncio.timeout(ADMISSION_SECONDS):
            await self._admitting.wait()
        me = self._identity
        assert me is not None
        handshake.check_hello(
            greeting,
            job=me.job,
            incarnation=me.incarnation,
            rank=me.rank,
            world_size=me.world_size,
        )
        nonce = handshake.new_nonce()
        proof = handshake.prove(me.secret, "accept", greeting, nonce)
        await _say(connection, peer_pb2.Challenge(nonce=nonce, proof=proof))
        answer = await _hear(connection, peer_pb2.Proof())
        handshake.check_proof(me.secret, "dial", greeting, nonce, answer.proof)
        if greeting.from_rank in self._inbound:
            raise HandshakeError(f"rank {greeting.from_rank} has a link already")
        await _say(connection, peer_pb2.Welcome())
        return greeting.from_rank

    def _ended(self, peer: int, reason: str | None) -> None:
        """Learn that the link from a peer is over; None: as it should be."""
        self._inbound.pop(peer, None)
        if not self._inbound:
            self._deserted.set()
        if reason is not None and not self._closing:
            assert self._receiver is not None
            self._receiver.broken(peer, reason)


class _Inbound:
    """The link from one peer: takes frames apart as they come, straight to where they belong."""

    def __init__(
        self,
        connection: socket.socket,
        peer: int,
        receiver: Receiver,
        page: memoryview,
        ended: Callable[[int, str | None], None],
    ) -> None:
        self._socket = connection
        self._peer = peer
        self._receiver = receiver
        self._page = page
        self._ended = ended
        self._sink: Sink | None = None
        self._missing = 0
        """Bytes of the sink's frame that are still to come."""
        self._left = b""
        """The beginning of what cannot be used before more of it is here."""
        self._is_large = False
        """Whether the last frame went straight to its place, so that the next will as well."""
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)

    def end(self, reason: str | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._ended(self._peer, reason)

    def _readable(self) -> None:
        total = 0
        try:
            while total < _READ_AT_MOST and not self._is_over:
                came, asked = self._read()
                if came == 0:
                    self.end(_WENT_AWAY)
                    return
                total += came
                if came < asked:
                    return  # the system had no more
        except (BlockingIOError, InterruptedError):
            return
        except FrameError as error:
            reason = f"protocol error: {error}"
            logger.warning("broke the link from rank %d: %s", self._peer, error)
            self._answer(reason)
            self.end(reason)
        except OSError:
            self.end(_WENT_AWAY)

    def _read(self) -> tuple[int, int]:
        """Read once; return how many bytes came, and how many could have."""
        sink = self._sink
        if sink is not None and not self._left and (room := sink.room()) is not None:
            came = self._socket.recv_into(room)
            self._missing -= came
            if not self._missing:
                self._sink = None
                self._is_large = True
            if came:
                sink.filled(came)
            return came, len(room)
        kept = len(self._left)
        # Behind a large frame comes another, whose payload should not pass through the page.
        size = HEADER_BYTES if self._is_large and kept < HEADER_BYTES else len(self._page)
        self._is_large = False
        self._page[:kept] = self._left
        came = self._socket.recv_into(self._page[kept:size])
        if came:
            self._left = b""
            have = self._page[: kept + came]
            used = self._take(have)
            self._left = bytes(have[used:])
        return came, size - kept

    def _take(self, have: memoryview) -> int:
        """Take in what can be; return how many bytes that were."""
        at = 0
        while not self._is_over:
            if self._sink is not None:
                taken = self._sink.feed(have[at : at + self._missing]) if at < len(have) else 0
                at += taken
                self._missing -= taken
                if self._missing:
                    return at
                self._sink = None
            if len(have) - at < HEADER_BYTES:
                return at
            kind, nbytes = extent(have[at:])
            stop = at + HEADER_BYTES + nbytes
            if stop <= len(have):
                self._accept(kind, have[at:stop])
                at = stop
            elif kind == Kind.DATA:
                self._sink = self._receiver.open(self._peer, bytes(have[at : at + HEADER_BYTES]))
                self._missing = nbytes
                at += HEADER_BYTES
            elif nbytes > _LARGEST_TEXT:
                raise FrameError(f"{nbytes} bytes are too many for a frame that is no data")
            else:
                return at
        return at

    def _accept(self, kind: int, frame: memoryview) -> None:
        if kind != Kind.BYE:
            self._receiver.accept(self._peer, frame)
            return
        self._answer("")
        self.end(None)

    def _answer(self, text: str) -> None:
        """Say how it ended; whoever does not take that in does not want to know."""
        with contextlib.suppress(OSError):
            self._socket.send(_bye(text))


# -------------------------------------------------------------------- dialling


class SocketLink:
    """One connection to one peer."""

    def __init__(self, connection: socket.socket, broken: Callable[[str], None]) -> None:
        self._socket = connection
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._rest: list[memoryview] = []
        """What is still to be written of the frame under way."""
        self._written: asyncio.Future[None] | None = None
        self._answer = b""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reason: str | None = None
        self._closed = False
        self._loop.add_reader(connection, self._readable)

    def offer(self, frame: Frame) -> bool:
        if self._rest or self._closed or self._reason is not None:
            return False
        if self._write(frame):
            self.let_go()
        return self._reason is None

    async def send(self, frame: Frame) -> None:
        if self._closed:
            raise LinkBroken("the link is closed")
        await self._send(frame)

    def let_go(self) -> None:
        if self._rest:
            self._rest = [memoryview(b"".join(self._rest))]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._send([_bye("")])
            await asyncio.shield(self._ended)
            if self._reason is not None:
                raise LinkBroken(self._reason)
        finally:
            self._end("the link is closed")

    def abort(self) -> None:
        self._closed = True
        self._end("the link is closed")

    # ------------------------------------------------------------ inside

    async def _send(self, frame: Frame) -> None:
        if self._rest:
            await self._all_written()
        if self._reason is not None:
            raise LinkBroken(self._reason)
        if self._write(frame):
            await self._all_written()
        if self._reason is not None:
            raise LinkBroken(self._reason)

    async def _all_written(self) -> None:
        try:
            while self._rest and self._reason is None:
                if self._written is None or self._written.done():
                    self._written = self._loop.create_future()
                await self._written
        except asyncio.CancelledError:
            self.let_go()
            raise

    def _write(self, frame: Frame) -> bool:
        """Begin a frame; return whether some of it is left for later."""
        missing = sum(map(len, frame))
        try:
            missing -= (written := self._socket.sendmsg(frame[:_MOST_PIECES]))
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError:
            self._end(_WENT_AWAY)
            return False
        if not missing:
            return False
        self._rest = _behind([memoryview(piece) for piece in frame if len(piece)], written)
        self._push()
        if self._rest:
            self._loop.add_writer(self._socket, self._writable)
        return bool(self._rest)

    def _push(self) -> None:
        """Write what the system takes."""
        try:
            while self._rest:
                written = self._socket.sendmsg(self._rest[:_MOST_PIECES])
                self._rest = _behind(self._rest, written)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._end(_WENT_AWAY)

    def _writable(self) -> None:
        self._push()
        if not self._rest and self._reason is None:
            self._loop.remove_writer(self._socket)
            self._wake()

    def _wake(self) -> None:
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    def _readable(self) -> None:
        """Take in how it ended: nothing else comes this way."""
        try:
            came = self._socket.recv(HEADER_BYTES + _LARGEST_TEXT)
            self._answer += came
            if not came:
                self._end(_WENT_AWAY)
            elif len(self._answer) >= HEADER_BYTES:
                self._answered()
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, FrameError):
            self._end(_WENT_AWAY)

    def _answered(self) -> None:
        kind, nbytes = extent(memoryview(self._answer))
        if kind != Kind.BYE or nbytes > _LARGEST_TEXT:
            raise FrameError("this is no answer")
        if len(self._answer) < HEADER_BYTES + nbytes:
            return
        unpack(self._answer)
        text = self._answer[HEADER_BYTES:].decode(errors="replace")
        if self._closed and not text:
            if not self._ended.done():
                self._ended.set_result(None)
            self._loop.remove_reader(self._socket)
        else:
            self._end(text or "it closed the link")

    def _end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._rest = []
        self._wake()
        if not self._ended.done():
            self._ended.set_result(None)
        if not self._closed:
            self._broken(reason)


class SocketFabric:
    """Links to the peers of one worker, at the addresses that the coordinator named."""

    def __init__(
        self,
        listening: SocketListening,
        identity: Identity,
        addresses: Mapping[int, Address],
        receiver: Receiver,
    ) -> None:
        self._listening = listening
        self._identity = identity
        self._addresses = dict(addresses)
        self._receiver = receiver
        self._links: list[SocketLink] = []
        listening.admit(identity, receiver)

    async def dial(self, peer: int) -> SocketLink:
        address = self._addresses.get(peer)
        if address is None:
            raise Unreachable("it listens nowhere for raw-socket links")
        where = _address(address)
        connection = await _connect(address)
        try:
            _without_delay(connection)
            await self._greet(connection, peer)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise LinkBroken(f"no handshake with {where}") from error
            if isinstance(error, HandshakeError | OSError):
                raise LinkBroken(f"who answers at {where}: {error}") from error
            raise
        _fit_buffer(connection)
        link = SocketLink(connection, lambda reason: self._receiver.broken(peer, reason))
        self._links.append(link)
        return link

    async def aclose(self) -> None:
        for link in self._links:
            link.abort()
        self._links.clear()
        await self._listening.aclose()

    async def _greet(self, connection: socket.socket, peer: int) -> None:
        """Run the dialler's half of the handshake."""
        me = self._identity
        greeting = handshake.hello(
            job=me.job,
            incarnation=me.incarnation,
            member=me.member,
            rank=me.rank,
            to_rank=peer,
        )
        await _say(connection, greeting)
        patience = ADMISSION_SECONDS + STEP_SECONDS  # it may not know its world yet
        challenge = await _hear(connection, peer_pb2.Challenge(), patience)
        handshake.check_proof(me.secret, "accept", greeting, challenge.nonce, challenge.proof)
        proof = handshake.prove(me.secret, "dial", greeting, challenge.nonce)
        await _say(connection, peer_pb2.Proof(proof=proof))
        await _hear(connection, peer_pb2.Welcome())


async def _connect(address: Address) -> socket.socket:
    """Raise Unreachable where nobody listens."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):  # TimeoutError is one
            reason = str(error) or f"no answer within {CONNECT_SECONDS:.0f} s"
            raise Unreachable(f"cannot connect to {_address(address)}: {reason}") from error
        raise
    return connection


# -------------------------------------------------------------------- greetings and bytes


async def _say(connection: socket.socket, step: Message) -> None:
    async with asyncio.timeout(STEP_SECONDS):
        packed = _packed(step.SerializeToString(), _STEP)
        await asyncio.get_running_loop().sock_sendall(connection, packed)


async def _hear(connection: socket.socket, step: M, seconds: float = STEP_SECONDS) -> M:
    """Read one step of a handshake, and not a byte more.

    Raises:
        HandshakeError: something else came, or nothing.
        TimeoutError, OSError: as the names say.
    """
    async with asyncio.timeout(seconds):
        magic, version, kind, nbytes = _PREAMBLE.unpack(await _exactly(connection, _PREAMBLE.size))
        if magic != _MAGIC or version != _VERSION or kind not in (_STEP, _REFUSAL):
            raise HandshakeError("not a greeting of this protocol")
        if nbytes > _LARGEST_STEP:
            raise HandshakeError(f"{nbytes} bytes are too many for a greeting")
        text = await _exactly(connection, nbytes)
    if kind == _REFUSAL:
        raise HandshakeError(text.decode(errors="replace"))
    try:
        step.ParseFromString(text)
    except DecodeError as error:
        raise HandshakeError("not a greeting of this protocol") from error
    return step


async def _exactly(connection: socket.socket, nbytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    text = b""
    while len(text) < nbytes:
        came = await loop.sock_recv(connection, nbytes - len(text))
        if not came:
            raise HandshakeError("the stream ended within the handshake")
        text += came
    return text


def _packed(text: bytes, kind: int) -> bytes:
    return _PREAMBLE.pack(_MAGIC, _VERSION, kind, len(text[:_LARGEST_STEP])) + text[:_LARGEST_STEP]


def _bye(text: str) -> bytes:
    payload = text.encode()[:_LARGEST_TEXT]
    return Header(Kind.BYE, Key(0, 0), 0, 0, 0, len(payload)).pack() + payload


def _behind(pieces: Sequence[memoryview], written: int) -> list[memoryview]:
    """Return what follows the first `written` bytes."""
    for at, piece in enumerate(pieces):
        if written < len(piece):
            return [piece[written:], *pieces[at + 1 :]]
        written -= len(piece)
    return []


def _fit_buffer(connection: socket.socket) -> None:
    """Give a connection over a short way a send buffer that stays in the cache.

    Left to itself it grows to 4 MiB, filled in one go while nobody reads what comes in.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (round_trip,) = struct.unpack_from("I", info, _TCP_INFO_ROUND_TRIP)
    if 0 < round_trip < _NEAR_MICROSECONDS:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)


def _without_delay(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _address(where: tuple[str, int]) -> str:
    host, port = where[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
