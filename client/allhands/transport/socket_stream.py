"""Links as raw TCP streams of frames: one listening port per process, one connection per direction.

The greeting is the one of `handshake`, each message behind a preamble of eight bytes. Frames follow
without gaps; a frame of kind bye is the last. The acceptor answers only at the end: with a bye
after it has read everything up to the dialler's bye, or with a bye that says what was wrong.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import select
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from allhands.transport import handshake
from allhands.transport.handshake import HandshakeError, Identity
from allhands.transport.link import HandshakeStalled, LinkBroken, Receiver, Unreachable
from allhands.transport.link_certificates import LinkCertificates
from allhands.transport.socket_handshake import STEP_SECONDS, receive_step, send_refusal, send_step
from allhands.transport.socket_inbound import READ_BUFFER_BYTES, WENT_AWAY, InboundLink
from allhands.transport.socket_link import SocketLink, fit_buffer
from allhands.transport.tls_socket import PAGE_BYTES, Connection, TlsSocket
from allhands_proto.authority import format_authority
from allhands_proto.limited_log import LimitedLog
from allhands_proto.unproven import GRACE_SECONDS, UnprovenConnections, limit_to_share
from allhands_proto.v1 import peer_pb2

if TYPE_CHECKING:
    from allhands._native import LinkState

logger = logging.getLogger(__name__)

HostPort = tuple[str, int]

CONNECT_SECONDS = 2.0
"""After this nobody listens there, or somebody in between drops what is sent."""
ADMISSION_SECONDS = 5.0
"""How long a greeting waits until this worker knows its world."""
MAX_UNPROVEN = 512
"""Connections that have proven nothing yet, beside two for each rank, or an eighth of the process's
descriptors if that is less; the oldest of the host with most of them makes room."""

_BACKLOG = 1024
_SPIN_SECONDS = 100e-6
"""How long a pump looks again and again before it sleeps: about what waking up takes."""
_ACCEPT_AGAIN_SECONDS = 1.0
_MAX_ACCEPTS = 64
_DESCRIPTOR_SHARE = 8
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class SocketListener:
    """The worker's port. It is open before the worker has a rank: until `admit`, links wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._identity: Identity | None = None
        self._receiver: Receiver | None = None
        self._admitting = asyncio.Event()
        self._handshaking: UnprovenConnections[asyncio.Task[None]] = UnprovenConnections(0)
        self._admitted_at = 0.0
        self._is_full = False
        """Whether links wait because too many connections have not proven themselves."""
        self._log = LimitedLog(logger, "refused links")
        self._inbound: dict[int, InboundLink] = {}
        self._no_links = asyncio.Event()
        self._no_links.set()
        self._is_closing = False
        self._poll = select.poll()
        """Of all links, for when the loop does not run."""
        self._by_descriptor: dict[int, InboundLink] = {}
        """The same links as in `_inbound`, by descriptor."""
        self._read_buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._accept_timer: asyncio.TimerHandle | None = None
        self.port = 0
        self.encrypts = False
        """Whether links are encrypted, those of this worker and those to it; set before `start`."""
        self.certificates: LinkCertificates | None = None
        """Of the identity; None: links are not encrypted, or the worker does not know its world."""
        self.tls_page = memoryview(b"")
        """For the encrypted bytes of all links of the loop."""

    def start(self, host: str, port: int = 0) -> None:
        """Listen on a port of `host`; 0 chooses a free port.

        Raises:
            OSError: the host is not an address of this machine, or the port is taken.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            if port:  # links of an earlier process may not be quite over
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        self.port = listening.getsockname()[1]
        self._loop.add_reader(listening, self._accept)

    def admit(self, identity: Identity, receiver: Receiver) -> None:
        """Accept peers of this identity's world; their frames go to `receiver`."""
        if self._identity is None:
            self._admitted_at = self._loop.time()
            if self.encrypts:
                self.tls_page = memoryview(bytearray(PAGE_BYTES))
                self.certificates = LinkCertificates(identity.secret)
        self._identity = identity
        self._receiver = receiver
        self._admitting.set()

    async def wait_no_links(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._no_links.wait()

    def pump(self, seconds: float) -> bool:
        """Receive the first frames within `seconds` while the loop does not run."""
        if not self._inbound:
            return False
        poll = self._poll.poll
        until = time.monotonic() + min(seconds, _SPIN_SECONDS)
        while not (came := poll(0)):
            if time.monotonic() > until:
                came = poll(max(seconds - _SPIN_SECONDS, 0) * 1000)
                break
            os.sched_yield()
        for descriptor, _ in came:
            self._by_descriptor[descriptor].read_available()
        return bool(came)

    def get_inbound(self, peer: int) -> InboundLink | None:
        """Return the link from a peer, if there is one."""
        return self._inbound.get(peer)

    def get_last_receive_time(self, peer: int) -> float:
        """Return when data last came from a peer, on the monotonic clock; -inf: it has no link."""
        inbound = self._inbound.get(peer)
        return -math.inf if inbound is None else inbound.get_last_receive_time()

    async def aclose(self) -> None:
        """Stop listening and drop the incoming links. Idempotent."""
        self._is_closing = True
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for inbound in list(self._inbound.values()):
            inbound.end(WENT_AWAY)
        greeting = list(self._handshaking)
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_MAX_ACCEPTS):
            if not self._make_room():
                return
            try:
                connection, where = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._log.warning("cannot accept links for now: %s", error)
                    self._pause(_ACCEPT_AGAIN_SECONDS)
                    return
                continue  # the connection ended before it was accepted
            connection.setblocking(False)
            task = self._loop.create_task(self._admit(connection, format_authority(*where[:2])))
            self._handshaking.add(task, where[0], self._loop.time())
            task.add_done_callback(partial(self._on_handshake_end, connection))

    def _on_handshake_end(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._handshaking.discard(task)
        if task.cancelled():
            connection.close()
        if self._is_full and self._accept_timer is not None:
            self._accept_timer.cancel()
            self._listen_again()

    def _pause(self, seconds: float) -> None:
        """Leave links in the backlog for so long."""
        assert self._socket is not None
        self._loop.remove_reader(self._socket)
        self._accept_timer = self._loop.call_later(seconds, self._listen_again)

    def _listen_again(self) -> None:
        self._is_full = False
        self._accept_timer = None
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _make_room(self) -> bool:
        """Drop the connection that has to make room; accept later where each is too new."""
        ranks = 0 if self._identity is None else self._identity.world_size
        self._handshaking.most = min(MAX_UNPROVEN + 2 * ranks, limit_to_share(_DESCRIPTOR_SHARE))
        surplus = self._handshaking.find_surplus()
        if surplus is None:
            return True
        oldest, since = surplus
        # Until the worker knows its world nobody can prove anything.
        now = self._loop.time()
        left = (
            max(since, now if self._identity is None else self._admitted_at) + GRACE_SECONDS - now
        )
        if left > 0:
            self._pause(left)
            self._is_full = True
            return False
        self._handshaking.discard(oldest)
        oldest.cancel("too many connections have not proven themselves")
        return True

    async def _admit(self, connection: socket.socket, where: str) -> None:
        """Authenticate a connection; turn it into a link, or close it."""
        link: Connection = connection
        try:
            _set_no_delay(connection)
            if self.encrypts:
                link = await self._encrypt(connection)
            peer = await self._handshake(link)
        except (HandshakeError, OSError, TimeoutError) as error:
            reason = str(error) or f"a step of the handshake took more than {STEP_SECONDS:.0f} s"
            self._log.warning("refused a link from %s: %s", where, reason)
            send_refusal(link, reason)
            connection.close()
            return
        except asyncio.CancelledError as cancelled:
            if not self._is_closing:
                self._log.warning("refused a link from %s: %s", where, cancelled)
            raise
        assert self._receiver is not None
        inbound = InboundLink(link, peer, self._receiver, self._read_buffer, self._on_link_end)
        self._inbound[peer] = self._by_descriptor[inbound.descriptor] = inbound
        self._poll.register(inbound.descriptor, select.POLLIN)
        self._no_links.clear()

    async def _encrypt(self, connection: socket.socket) -> TlsSocket:
        """Run the acceptor's half of the TLS handshake, once the worker knows its world."""
        async with asyncio.timeout(STEP_SECONDS):
            first = await self._loop.sock_recv(connection, PAGE_BYTES)
        async with asyncio.timeout(ADMISSION_SECONDS):
            await self._admitting.wait()
        assert self.certificates is not None
        encrypted = TlsSocket(connection, self.certificates.server_context, self.tls_page)
        async with asyncio.timeout(STEP_SECONDS):
            await encrypted.shake_hands(first)
        return encrypted

    async def _handshake(self, connection: Connection) -> int:
        """Run the acceptor's half of the handshake; return the peer's rank."""
        greeting = await receive_step(connection, peer_pb2.Hello())
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
        challenge = handshake.make_challenge(me.secret, greeting)
        await send_step(connection, challenge)
        answer = await receive_step(connection, peer_pb2.Proof())
        handshake.check_proof(me.secret, "dial", greeting, challenge.nonce, answer.proof)
        if greeting.from_rank in self._inbound:
            raise HandshakeError(f"rank {greeting.from_rank} has a link already")
        await send_step(connection, peer_pb2.Welcome())
        return greeting.from_rank

    def _on_link_end(self, peer: int, reason: str | None) -> None:
        """Handle the end of the link from a peer; None: orderly."""
        if (inbound := self._inbound.pop(peer, None)) is not None:
            del self._by_descriptor[inbound.descriptor]
            self._poll.unregister(inbound.descriptor)
        if not self._inbound:
            self._no_links.set()
        if reason is not None and not self._is_closing:
            assert self._receiver is not None
            self._receiver.broken(peer, reason)


class SocketFabric:
    """Links to the peers of a worker, at the addresses from the coordinator."""

    def __init__(
        self,
        listener: SocketListener,
        identity: Identity,
        addresses: Mapping[int, HostPort],
        receiver: Receiver,
    ) -> None:
        self._listener = listener
        self._identity = identity
        self._addresses = dict(addresses)
        self._receiver = receiver
        self._links: dict[int, SocketLink] = {}
        listener.admit(identity, receiver)

    def add_peers(self, identity: Identity, addresses: Mapping[int, HostPort]) -> None:
        """Add peers that joined later; `identity` is this worker's in the enlarged world."""
        self._identity = identity
        self._addresses.update(addresses)
        self._listener.admit(identity, self._receiver)

    async def dial(self, peer: int) -> SocketLink:
        address = self._addresses.get(peer)
        if address is None:
            raise Unreachable("it listens nowhere for raw-socket links")
        where = format_authority(*address)
        connection = await _connect(address)
        encrypted: Connection = connection
        try:
            _set_no_delay(connection)
            encrypted = await self._encrypt(connection)
            await self._handshake(encrypted, peer)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise HandshakeStalled(f"no handshake with {where}") from error
            if isinstance(error, HandshakeError | OSError):
                raise LinkBroken(f"who answers at {where}: {error}") from error
            raise
        fit_buffer(connection)
        link = SocketLink(encrypted, lambda reason: self._receiver.broken(peer, reason))
        self._links[peer] = link
        return link

    def pump(self, seconds: float) -> bool:
        return self._listener.pump(seconds)

    def lend(self, peer: int, state: "LinkState") -> bool:
        link, inbound = self._links.get(peer), self._listener.get_inbound(peer)
        return link is not None and inbound is not None and link.lend(state) and inbound.lend(state)

    def deliver(self, peer: int, frame: bytes) -> None:
        if (inbound := self._listener.get_inbound(peer)) is not None:
            inbound.deliver(frame)

    def read_ahead(self, peer: int) -> None:
        if (inbound := self._listener.get_inbound(peer)) is not None:
            inbound.read_ahead()

    def send_rest(self, peer: int, rest: bytes) -> None:
        self._links[peer].send_rest(rest)

    def get_last_activity(self, peer: int) -> float:
        link = self._links.get(peer)
        acknowledged = -math.inf if link is None else link.get_last_ack_time()
        return max(acknowledged, self._listener.get_last_receive_time(peer))

    def get_recovery_seconds(self, peer: int) -> float:
        link = self._links.get(peer)
        return 0.0 if link is None else link.get_recovery_seconds()

    async def aclose(self) -> None:
        for link in self._links.values():
            link.abort()
        self._links.clear()
        await self._listener.aclose()

    async def _encrypt(self, connection: socket.socket) -> Connection:
        """Run the dialler's half of the TLS handshake, if links are encrypted."""
        if (certificates := self._listener.certificates) is None:
            return connection
        encrypted = TlsSocket(connection, certificates.client_context, self._listener.tls_page)
        async with asyncio.timeout(ADMISSION_SECONDS + STEP_SECONDS):
            await encrypted.shake_hands()
        return encrypted

    async def _handshake(self, connection: Connection, peer: int) -> None:
        """Run the dialler's half of the handshake."""
        me = self._identity
        greeting = handshake.make_hello(
            job=me.job,
            incarnation=me.incarnation,
            member=me.member,
            rank=me.rank,
            to_rank=peer,
        )
        await send_step(connection, greeting)
        patience = ADMISSION_SECONDS + STEP_SECONDS  # it may not know its world yet
        challenge = await receive_step(connection, peer_pb2.Challenge(), patience)
        handshake.check_challenge(me.secret, greeting, challenge)
        proof = handshake.make_proof(me.secret, "dial", greeting, challenge.nonce)
        await send_step(connection, peer_pb2.Proof(proof=proof))
        await receive_step(connection, peer_pb2.Welcome())


async def _connect(address: HostPort) -> socket.socket:
    """Connect to a peer; raise Unreachable without a listener."""
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
            raise Unreachable(
                f"cannot connect to {format_authority(*address)}: {reason}"
            ) from error
        raise
    return connection


def _set_no_delay(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
