"""Links as gRPC streams of raw frames: one listening port per process, one stream per direction."""

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from allhands.escapes import escape_line
from allhands.transport import handshake
from allhands.transport.frame import (
    MAX_FRAME_BYTES,
    Frame,
    FrameError,
    FrameKind,
    Header,
    MessageKey,
    whole,
)
from allhands.transport.handshake import Identity
from allhands.transport.link import HandshakeStalled, LinkBroken, Receiver
from allhands.transport.link_certificates import PEER_NAME, LinkCertificates
from allhands.transport.port_reservation import allow_sharing, reserve_port
from allhands_proto import forks
from allhands_proto.authority import format_authority
from allhands_proto.connections import Connections, limit_connections
from allhands_proto.limited_log import LimitedLog
from allhands_proto.server_start import start_server
from allhands_proto.v1 import peer_pb2

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
CONNECT_SECONDS = 2.0
_CONNECT_AGAIN_SECONDS = 0.05
_GRACE_SECONDS = 0.1
_OPENING_SECONDS = 1.0
"""In which a deferred port opens after the first connection to it."""
_LARGE = 64 << 10
"""Bytes of a frame behind which others wait noticeably on a slow network."""
_BULK_SECONDS = 10.0
"""How long large frames may be on their way: 4 MiB in the buffers in between, at 4 Mbit/s."""
_MAX_HANDSHAKE_BYTES = 4096
_METHOD = "/allhands.v1.Peer/Link"
_BYE = Header(FrameKind.BYE, MessageKey(0, 0), 0, 0).pack()
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.so_reuseport", 0),  # two workers on one port would take each other's peers
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Left to itself gRPC reads ahead by what it takes for the bandwidth of the link: 30 MiB a
    # peer on loopback, and no faster. This much keeps 1 Gbit/s busy over 30 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.server_handshake_timeout_ms", 3000),
]

_ENCRYPTED_OPTIONS = [
    *_OPTIONS,
    ("grpc.ssl_target_name_override", PEER_NAME),
]
_LISTENING_OPTIONS = [
    *_OPTIONS,
    ("grpc.max_concurrent_streams", 8),  # a peer's connection has one
    ("grpc.max_connection_idle_ms", 60_000),  # a link is a stream, and no idle connection
]

RawCall: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
RawContext: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
M = TypeVar("M", bound=Message)


class _Disconnected(LinkBroken):
    """A peer that did not take the connection, or closed it."""


class GrpcListener:
    """The worker's port. It is open before the worker has a rank: until `admit`, links wait.

    One that has adopted a port becomes a server of gRPC, with the seven threads of one, when the
    first peer connects. What has connected by then is closed: the peer dials again.
    """

    def __init__(self) -> None:
        self._log = LimitedLog(logger, "refused links")
        self._connections = Connections(self._on_evicted)
        self.is_deferred = False
        """Whether the port opens with the first connection to it."""
        self._server: grpc.aio.Server | None = None
        self._identity: Identity | None = None
        self._receiver: Receiver | None = None
        self._admitting = asyncio.Event()
        self._inbound: set[int] = set()
        self.bulk_times: dict[int, float] = {}
        """When the last large frame came from, or went to, each peer, on the monotonic clock."""
        self._no_links = asyncio.Event()
        self._no_links.set()
        self._is_closing = False
        self.port = 0
        self.encrypts = False
        """Whether links are encrypted, those of this worker and those to it; set before `start`."""
        self.certificates: LinkCertificates | None = None
        """None: links are not encrypted, or the worker does not know its world."""
        self._opening: asyncio.Task[None] | None = None
        self._reserved: socket.socket | None = None
        self._host = ""

    @property
    def is_open(self) -> bool:
        """Whether a server of gRPC has the port."""
        return self._server is not None

    async def start(self, host: str, port: int = 0) -> None:
        """Listen on a port of `host`; 0 chooses a free port.

        Raises:
            OSError: the host is not an address of this machine, or the port is taken.
        """
        self._host = host
        if self.encrypts:
            self._reserved = reserved = reserve_port(host, port)
            self.port = reserved.getsockname()[1]
            reserved.shutdown(socket.SHUT_RDWR)  # it listens no more, and stays bound
            return
        server = self._make_server()
        try:
            self.port = server.add_insecure_port(format_authority(host, port))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host} for peers: {error}") from error
        self._server = server
        await start_server(server)
        self._connections.watch(self.port)

    def adopt(self, reserved: socket.socket, host: str, *, encrypts: bool = False) -> None:
        """Take over a socket that listens at `host`; the first connection opens the server."""
        self.is_deferred, self.encrypts = True, encrypts
        self._reserved, self._host, self.port = reserved, host, reserved.getsockname()[1]
        loop = asyncio.get_running_loop()

        def on_connection() -> None:
            loop.remove_reader(reserved)
            self._opening = loop.create_task(self._open_when_admitted())

        loop.add_reader(reserved, on_connection)

    def admit(self, identity: Identity, receiver: Receiver) -> None:
        """Accept peers of this identity's world; their frames go to `receiver`."""
        if self.encrypts and self.certificates is None:
            self.certificates = LinkCertificates(identity.secret)
            if not self.is_deferred:
                self._opening = asyncio.get_running_loop().create_task(self._open())
        self._identity = identity
        self._receiver = receiver
        self._admitting.set()

    def _make_server(self) -> grpc.aio.Server:
        bound = ("grpc.max_allowed_incoming_connections", limit_connections())
        forks.use_grpc()
        server = grpc.aio.server(options=[*_LISTENING_OPTIONS, bound])
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._serve_link
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("allhands.v1.Peer", {"Link": handler}),)
        )
        return server

    async def _open_when_admitted(self) -> None:
        await self._admitting.wait()
        await self._open()

    async def _open(self) -> None:
        """Listen with gRPC on the reserved port.

        gRPC's credentials are not exchanged later on a port that is open: it ends the process where
        a peer connects meanwhile. So the port is only held until the secret of the job is known.
        """
        assert self._reserved is not None
        if self.is_deferred:
            self._reserved.shutdown(socket.SHUT_RDWR)  # what has connected to it is closed
        allow_sharing(self._reserved, True)  # with gRPC, which allows it as well
        server = self._make_server()
        where = format_authority(self._host, self.port)
        try:
            if self.certificates is None:
                server.add_insecure_port(where)
            else:
                server.add_secure_port(where, self.certificates.make_grpc_server_credentials())
        except RuntimeError as error:  # peers that cannot link say so as well
            logger.error("cannot listen on %s for peers: %s", where, error)
            return
        self._server = server
        await start_server(server)
        self._connections.watch(self.port)

    async def wait_no_links(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._no_links.wait()

    async def aclose(self) -> None:
        """Stop listening and drop the incoming streams. Idempotent."""
        self._is_closing = True
        if self._opening is not None:
            if not self._admitting.is_set():
                self._opening.cancel()  # it waits for that
            await asyncio.wait([self._opening])
        if self._reserved is not None:
            asyncio.get_running_loop().remove_reader(self._reserved)
            self._reserved.close()
            self._reserved = None
        self._connections.close()
        if self._server is not None:
            # Without a grace gRPC cancels at once, and tells the peers' terminals about it.
            await self._server.stop(_GRACE_SECONDS)

    async def _serve_link(self, _requests: object, context: RawContext) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                peer = await self._handshake(context)
        except (handshake.HandshakeError, TimeoutError) as error:
            reason = str(error) or f"no handshake within {HANDSHAKE_SECONDS:.0f} s"
            self._log.warning("refused a link from %s: %s", context.peer(), reason)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"link refused: {reason}")
        assert self._receiver is not None
        self._connections.mark_proven(context.peer())
        self._inbound.add(peer)
        self._no_links.clear()
        reason = "its stream ended"
        frame: object = b""
        try:
            while isinstance(frame := await context.read(), bytes):
                if frame == _BYE:
                    return
                if len(frame) > _LARGE:
                    self.bulk_times[peer] = time.monotonic()
                self._receiver.accept(peer, frame)
        except FrameError as error:
            reason = f"protocol error: {error}"
            logger.warning("broke the link from rank %d: %s", peer, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except asyncio.CancelledError:
            reason = "its process or connection went away"
            raise
        finally:
            self._inbound.discard(peer)
            if not self._inbound:
                self._no_links.set()
            if frame != _BYE and not self._is_closing:
                self._receiver.broken(peer, reason)

    def _on_evicted(self, host: str, limit: int) -> None:
        self._log.warning(
            "dropped a connection from %s: more than %d connections have shown no proof",
            host,
            limit,
        )

    async def _handshake(self, context: RawContext) -> int:
        """Run the acceptor's half of the handshake; return the peer's rank."""
        greeting = _parse(peer_pb2.Hello(), await context.read())
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
        if greeting.from_rank in self._inbound:
            raise handshake.HandshakeError(f"rank {greeting.from_rank} has a link already")
        challenge = handshake.make_challenge(me.secret, greeting)
        await context.write(challenge.SerializeToString())
        answer = _parse(peer_pb2.Proof(), await context.read())
        handshake.check_proof(me.secret, "dial", greeting, challenge.nonce, answer.proof)
        await context.write(peer_pb2.Welcome().SerializeToString())
        return greeting.from_rank


class GrpcLink:
    """One stream to one peer."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: RawCall,
        on_bulk: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the link of a call; `is_bulk` is told of large frames that begin or end."""
        self._channel = channel
        self._call = call
        self._on_bulk = on_bulk
        self._is_closed = False

    def offer(self, frame: Frame) -> bool:
        return False  # a write has to be awaited

    async def send(self, frame: Frame) -> None:
        data = whole(frame)
        try:
            if len(data) > _LARGE:
                self._on_bulk()
            await self._call.write(data)
            if len(data) > _LARGE:
                self._on_bulk()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise LinkBroken(await _explain_break(self._call, error)) from error

    def let_go(self) -> None:
        """Nothing: gRPC has a copy of every frame."""

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._call.write(_BYE)
            await self._call.done_writing()
            if await self._call.code() is not grpc.StatusCode.OK:
                raise LinkBroken(await self._call.details())
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise LinkBroken(await _explain_break(self._call, error)) from error
        finally:
            await self._channel.close()

    def abort(self) -> None:
        self._is_closed = True
        self._call.cancel()

    def watch(self, on_broken: Callable[[str], None]) -> None:
        """Call back when the stream ends although this side has not closed it."""

        def on_done(_call: Any) -> None:
            if not self._is_closed:
                on_broken("its process or connection went away")

        self._call.add_done_callback(on_done)


class GrpcFabric:
    """Links to the peers of a worker, at the addresses from the coordinator."""

    def __init__(
        self,
        listener: GrpcListener,
        identity: Identity,
        addresses: Mapping[int, str],
        receiver: Receiver,
    ) -> None:
        self._listener = listener
        self._identity = identity
        self._addresses = dict(addresses)
        self._receiver = receiver
        self._channels: list[grpc.aio.Channel] = []
        listener.admit(identity, receiver)

    def add_peers(self, identity: Identity, addresses: Mapping[int, str]) -> None:
        """Add peers that joined later; `identity` is this worker's in the enlarged world."""
        self._identity = identity
        self._addresses.update(addresses)
        self._listener.admit(identity, self._receiver)

    async def dial(self, peer: int) -> GrpcLink:
        address = self._addresses[peer]
        if not self._listener.is_deferred:
            return await self._dial(peer)
        if not await _accepts_connections(address):
            raise LinkBroken(f"cannot connect to {address}")
        try:
            return await self._dial(peer)
        except _Disconnected as error:
            # The first connection to a deferred port is closed when it opens the port.
            if not await _accepts_within(address, _OPENING_SECONDS):
                raise LinkBroken(str(error)) from error
        return await self._dial(peer)

    async def _dial(self, peer: int) -> GrpcLink:
        """Dial once.

        Raises:
            LinkBroken: there is no link.
            _Disconnected: there is none because the connection was refused, or broke.
        """
        certificates = self._listener.certificates
        address = self._addresses[peer]
        if certificates is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        elif not await _accepts_within(address, HANDSHAKE_SECONDS):  # once it knows its world
            raise LinkBroken(f"cannot connect to {address}")
        else:
            credentials = certificates.make_grpc_credentials()
            channel = grpc.aio.secure_channel(address, credentials, options=_ENCRYPTED_OPTIONS)
        self._channels.append(channel)
        call: RawCall = channel.stream_stream(_METHOD)()
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._handshake(call, peer)
        except handshake.HandshakeError as error:
            call.cancel()
            raise LinkBroken(f"who answers at {self._addresses[peer]}: {error}") from error
        except TimeoutError as error:
            call.cancel()
            # gRPC does not tell a host that is out of reach from a process that is held up.
            fate = (
                HandshakeStalled
                if await _accepts_connections(self._addresses[peer])
                else LinkBroken
            )
            raise fate(
                f"no handshake with {self._addresses[peer]} within {HANDSHAKE_SECONDS:.0f} s"
            ) from error
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            is_away = await call.code() is grpc.StatusCode.UNAVAILABLE
            text = await _explain_break(call, error)
            raise (_Disconnected if is_away else LinkBroken)(text) from error

        def is_bulk() -> None:
            self._listener.bulk_times[peer] = time.monotonic()

        link = GrpcLink(channel, call, is_bulk)
        link.watch(lambda reason: self._receiver.broken(peer, reason))
        return link

    def pump(self, seconds: float) -> bool:
        return False  # gRPC delivers on the loop alone

    def get_last_activity(self, peer: int) -> float:
        """Count large frames as active for a while: gRPC does not report progress."""
        bulk = self._listener.bulk_times.get(peer, -math.inf)
        return min(bulk + _BULK_SECONDS, time.monotonic())

    def get_recovery_seconds(self, peer: int) -> float:
        return 0.0  # gRPC does not show its connections

    async def aclose(self) -> None:
        for channel in self._channels:
            await channel.close()
        self._channels.clear()
        await self._listener.aclose()

    async def _handshake(self, call: RawCall, peer: int) -> None:
        """Run the dialler's half of the handshake."""
        me = self._identity
        greeting = handshake.make_hello(
            job=me.job,
            incarnation=me.incarnation,
            member=me.member,
            rank=me.rank,
            to_rank=peer,
        )
        await call.write(greeting.SerializeToString())
        challenge = _parse(peer_pb2.Challenge(), await call.read())
        handshake.check_challenge(me.secret, greeting, challenge)
        proof = handshake.make_proof(me.secret, "dial", greeting, challenge.nonce)
        await call.write(peer_pb2.Proof(proof=proof).SerializeToString())
        _parse(peer_pb2.Welcome(), await call.read())


async def _accepts_connections(address: str) -> bool:
    """Say whether the host of a peer, `host:port`, takes a connection for it."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:  # TimeoutError is one
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def _accepts_within(address: str, seconds: float) -> bool:
    """Wait until a peer takes connections; return whether it did in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                if await _accepts_connections(address):
                    return True
                await asyncio.sleep(_CONNECT_AGAIN_SECONDS)  # there is no event for that
    return False


def _parse(message: M, text: object) -> M:
    """Parse one message of the handshake."""
    if not isinstance(text, bytes):
        raise handshake.HandshakeError("the stream ended within the handshake")
    if len(text) > _MAX_HANDSHAKE_BYTES:
        raise handshake.HandshakeError(f"{len(text)} bytes are too many for a greeting")
    try:
        message.ParseFromString(text)
    except DecodeError as error:
        raise handshake.HandshakeError("not a greeting of this protocol") from error
    return message


async def _explain_break(call: RawCall, error: Exception) -> str:
    """Return the reason of a broken call, in the words of the side that broke it."""
    if isinstance(error, grpc.aio.AioRpcError):
        return escape_line(error.details() or error.code().name)
    with contextlib.suppress(asyncio.CancelledError):
        return escape_line(await call.details() or str(error))
    return str(error)
