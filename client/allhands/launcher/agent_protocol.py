"""Messages between a launcher and its agents on other hosts, over an agent's standard streams.

The agent writes frames: a descriptor, a length, and bytes. Those of descriptor 0 are messages in
JSON; others are output for the launcher to write there, lines of a rank's with its prefix, or,
from `TEE` on, what goes to the copy of a rank. The launcher writes a line of JSON for each message.
"""

import asyncio
import json
import os
import struct
from collections.abc import Mapping
from typing import Any

HEADER = struct.Struct("!II")
MESSAGE = 0
TEE = 1 << 16
"""Added to a rank's number."""
_LARGEST_FRAME = 64 << 20
_LARGEST_LINE = 64 << 20
"""Of a launcher: command line and environment of ranks."""


class ForeignAnswer(Exception):
    """The other side is no agent, or of another version; the text has what came."""


def encode_frame(descriptor: int, data: bytes) -> bytes:
    return HEADER.pack(descriptor, len(data)) + data


def encode_message(fields: Mapping[str, object]) -> bytes:
    """Return the bytes of a frame with a message."""
    return json.dumps(fields).encode()


def encode_line(fields: Mapping[str, object]) -> bytes:
    """Return the line of a message to an agent."""
    return json.dumps(fields).encode() + b"\n"


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """Return descriptor and bytes of the next frame; None: the stream has ended.

    Raises:
        ForeignAnswer: it is no frame.
    """
    try:
        descriptor, nbytes = HEADER.unpack(await reader.readexactly(HEADER.size))
        if nbytes > _LARGEST_FRAME:
            raise ForeignAnswer("its answer is none of an agent of allhands")
        return descriptor, await reader.readexactly(nbytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def decode_message(data: bytes) -> dict[str, Any]:
    """Return the fields of a message.

    Raises:
        ForeignAnswer: it is none.
    """
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ForeignAnswer("its answer is none of an agent of allhands") from error
    if not isinstance(found, dict):
        raise ForeignAnswer("its answer is none of an agent of allhands")
    return found


async def open_reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a reader of a pipe or socket, which its transport closes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LARGEST_LINE)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport
