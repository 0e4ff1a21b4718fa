"""TLS over a non-blocking socket, with the methods of a socket that links use."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from allhands.runtime import native_core
from allhands.transport.frame import FrameError
from allhands.transport.handshake import HandshakeError
from allhands.transport.link_certificates import PEER_NAME

if TYPE_CHECKING:
    from allhands._native import TlsChannel

PAGE_BYTES = 256 << 10
"""Encrypted bytes read or written at once."""
_RECORD_BYTES = 16 << 10
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer in plaintext, depending on its version."""


class TlsSocket:
    """A connected socket whose data is encrypted and authenticated, record by record.

    Encryption goes through memory: one system call moves many records of 16 KiB, and what is
    accepted for sending is encrypted at once, so that a caller may change it.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, page: memoryview
    ) -> None:
        """Wrap a connection, as the server of a server's context; links may share `page`."""
        self.raw = connection
        """The socket itself, for the event loop."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=is_server,
            server_hostname=None if is_server else PEER_NAME,
        )
        self._page = page
        self.unsent = memoryview(b"")
        """Encrypted bytes that wait for the socket, before any other; read and set by the native
        core as well, which has the connection while it is lent."""
        self._stopped: str | None = None
        """Why the native core could decrypt no more; empty: the peer has ended what it sends."""
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------ handshake

    async def shake_hands(self, first: bytes = b"") -> None:
        """Run the handshake; `first` has come already.

        Raises:
            HandshakeError: the peer does not hold the secret, or speaks no TLS.
            OSError: the connection broke.
        """
        self._incoming.write(first)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._send_outgoing()
                await self._receive_incoming()
            except ssl.SSLError as error:
                self._send_alert()
                raise HandshakeError(_explain(error)) from error
        await self._send_outgoing()

    async def send_all(self, data: bytes) -> None:
        """Send all of it."""
        self._tls.write(data)
        await self._send_outgoing()

    async def receive(self, nbytes: int) -> bytes:
        """Receive up to so many bytes, empty at the end.

        Raises:
            HandshakeError: the peer refuses this side, or what came was changed on its way.
        """
        while True:
            try:
                return self._tls.read(nbytes)
            except ssl.SSLWantReadError:
                await self._receive_incoming()
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise HandshakeError(_explain(error)) from error

    async def _send_outgoing(self) -> None:
        if data := self._outgoing.read():
            await self._loop.sock_sendall(self.raw, data)

    async def _receive_incoming(self) -> None:
        if not (data := await self._loop.sock_recv(self.raw, PAGE_BYTES)):
            raise HandshakeError("the stream ended within the handshake")
        self._incoming.write(data)

    def _send_alert(self) -> None:
        with contextlib.suppress(OSError):
            self.raw.send(self._outgoing.read())

    # ------------------------------------------------------------ a socket's methods

    @property
    def has_unsent(self) -> bool:
        """Whether encrypted bytes wait for the socket, for `flush`."""
        return bool(self.unsent)

    @property
    def has_buffered(self) -> bool:
        """Whether bytes were read from the socket that no caller has got yet."""
        return bool(self._incoming.pending or self._tls.pending())

    def fileno(self) -> int:
        return self.raw.fileno()

    def close(self) -> None:
        self.raw.close()

    def getsockopt(self, level: int, option: int, nbytes: int) -> bytes:
        return self.raw.getsockopt(level, option, nbytes)

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, pieces: "Sequence[bytes | bytearray | memoryview]") -> int:
        """Encrypt and send; return how many bytes were accepted, of which `flush` sends the rest.

        Raises:
            BlockingIOError: the socket takes nothing now; nothing was accepted.
        """
        self.flush()
        accepted = 0
        total = sum(map(len, pieces))
        if len(pieces) > 1 and total <= _RECORD_BYTES:
            pieces = [b"".join(pieces)]  # in one record
        for piece in pieces:
            view = memoryview(piece)
            at = 0
            while at < len(view) and accepted < PAGE_BYTES:
                written = self._tls.write(view[at : at + _RECORD_BYTES])
                at += written
                accepted += written
        self.unsent = memoryview(self._outgoing.read())
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self.flush()
        return accepted

    def flush(self) -> None:
        """Send the encrypted bytes that wait.

        Raises:
            BlockingIOError: the socket does not take all of them now.
        """
        while self.unsent:
            self.unsent = self.unsent[self.raw.send(self.unsent) :]

    def recv(self, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        return bytes(data[: self.recv_into(memoryview(data))])

    def recv_into(self, room: memoryview) -> int:
        """Fill the room as far as data is there; 0: the connection is over.

        Raises:
            BlockingIOError: no data is there.
            FrameError: what came was changed on its way, came twice, or is not the peer's.
        """
        if self._stopped is not None:
            if self._stopped:
                raise FrameError(self._stopped)
            return 0
        got = 0
        while got < len(room):
            try:
                if not (came := self._tls.read(len(room) - got, room[got:])):
                    return got
                got += came  # type: ignore[operator]
            except ssl.SSLWantReadError:
                try:
                    read = self.raw.recv_into(self._page)
                except BlockingIOError:
                    if got:
                        return got
                    raise
                if not read:
                    return got
                self._incoming.write(self._page[:read])
            except ssl.SSLZeroReturnError:
                return got
            except ssl.SSLError as error:
                raise FrameError(_explain_change(error)) from error
        return got

    # ------------------------------------------------------------ for the native core

    def open_channel(self) -> "TlsChannel":
        """Return the core's way to this connection, of which one side at a time makes use."""
        core, _ = native_core.find()
        assert core is not None, "links are lent to the native core only"
        channel: TlsChannel = core.TlsChannel(
            connection=self,
            tls=self._tls,
            incoming=self._incoming,
            outgoing=self._outgoing,
            page=self._page,
        )
        return channel

    @property
    def has_stopped(self) -> bool:
        """Whether the core can decrypt no more, and nobody has been told why."""
        return self._stopped is not None

    def stop(self, error: Exception) -> None:
        """Keep the reason why no more can be decrypted, for the next to read."""
        if isinstance(error, ssl.SSLZeroReturnError):
            self._stopped = ""
        elif isinstance(error, ssl.SSLError):
            self._stopped = _explain_change(error)
        else:
            self._stopped = f"what it sent was lost here: {type(error).__name__}: {error}"

    def keep_unsent(self, data: "bytes | memoryview", sent: int) -> None:
        """Keep encrypted bytes but the first of them, which were sent."""
        self.unsent = memoryview(data)[sent:]


Connection: TypeAlias = socket.socket | TlsSocket


def get_raw_socket(connection: Connection) -> socket.socket:
    """Return the socket of a connection, for the event loop."""
    return connection.raw if isinstance(connection, TlsSocket) else connection


def _explain_change(error: ssl.SSLError) -> str:
    return f"it is not what the peer encrypted: {error.reason}"


def _explain(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "it does not hold the secret of this job (TLS)"
    reason = error.reason or ""
    if reason in _NO_TLS:
        return "it speaks no TLS, and links of this job are encrypted"
    if "CERTIFICATE_REQUIRED" in reason or "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return "no proof of the secret of this job (TLS)"
    if "ALERT" in reason:
        return f"it refuses this side's proof of the secret of the job ({reason.lower()})"
    return f"the TLS handshake fails: {reason.lower() or error}"
