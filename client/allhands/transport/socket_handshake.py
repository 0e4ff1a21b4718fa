"""The handshake's steps on a raw socket: one preamble of eight bytes before each.

Nothing is read beyond a step, nothing longer than any step is taken in, and nobody is waited for
longer than a step takes.
"""

import asyncio
import contextlib
import struct
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from allhands.escapes import escape_line
from allhands.transport.handshake import HandshakeError
from allhands.transport.tls_socket import Connection, TlsSocket

STEP_SECONDS = 3.0
"""For one step, of which no part waits for anything but the network."""

_PREAMBLE = struct.Struct("<2sBBI")
_MAGIC = b"AL"
_VERSION = 1
_STEP, _REFUSAL = 0, 1
_MAX_STEP_BYTES = 4096

M = TypeVar("M", bound=Message)


async def send_step(connection: Connection, step: Message) -> None:
    async with asyncio.timeout(STEP_SECONDS):
        packed = _pack(step.SerializeToString(), _STEP)
        if isinstance(connection, TlsSocket):
            await connection.send_all(packed)
        else:
            await asyncio.get_running_loop().sock_sendall(connection, packed)


async def receive_step(connection: Connection, step: M, seconds: float | None = None) -> M:
    """Read one step of a handshake, and not a byte more, in so many seconds.

    Raises:
        HandshakeError: something else came, or nothing.
        TimeoutError, OSError: as the names say.
    """
    async with asyncio.timeout(STEP_SECONDS if seconds is None else seconds):
        magic, version, kind, nbytes = _PREAMBLE.unpack(
            await _read_exactly(connection, _PREAMBLE.size)
        )
        if magic != _MAGIC or version != _VERSION or kind not in (_STEP, _REFUSAL):
            raise HandshakeError("not a greeting of this protocol")
        if nbytes > _MAX_STEP_BYTES:
            raise HandshakeError(f"{nbytes} bytes are too many for a greeting")
        text = await _read_exactly(connection, nbytes)
    if kind == _REFUSAL:
        raise HandshakeError(escape_line(text.decode(errors="replace")))
    try:
        step.ParseFromString(text)
    except DecodeError as error:
        raise HandshakeError("not a greeting of this protocol") from error
    return step


def send_refusal(connection: Connection, reason: str) -> None:
    """Send the reason for a refusal, if the peer still listens."""
    with contextlib.suppress(OSError):
        connection.send(_pack(f"link refused: {reason}".encode(), _REFUSAL))


async def _read_exactly(connection: Connection, nbytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    text = b""
    while len(text) < nbytes:
        missing = nbytes - len(text)
        if isinstance(connection, TlsSocket):
            came = await connection.receive(missing)
        else:
            came = await loop.sock_recv(connection, missing)
        if not came:
            raise HandshakeError("the stream ended within the handshake")
        text += came
    return text


def _pack(text: bytes, kind: int) -> bytes:
    return (
        _PREAMBLE.pack(_MAGIC, _VERSION, kind, len(text[:_MAX_STEP_BYTES])) + text[:_MAX_STEP_BYTES]
    )
