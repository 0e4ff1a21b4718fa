"""Replay of recorded conversations: the older client's side, to today's daemon."""

import asyncio
import base64
import contextlib
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

from allhands_proto.framing import PREFACE, encode_frame
from allhands_proto.v1 import coordinator_pb2 as wire

_SERVICE = "allhands.v1.Coordinator"
_PATIENCE = 60.0
_OF_ONE_RUN = {
    *("member_id", "incarnation", "secret", "kv_secret", "kv_port", "nonce", "proof"),
    *("calls_port", "calls_secret"),
    *("last_heartbeat", "clock_offset", "elapsed", "report_nbytes"),
    *("median", "worst", "last", "lateness"),
}
"""Fields whose values differ from run to run: only that they are there is compared."""

_MAY_BE_ZERO = {"last_heartbeat", "clock_offset", "elapsed", "lateness"}


class Recording:
    """A recorded conversation, with the messages as the older side knew them."""

    def __init__(self, path: Path) -> None:
        said = json.loads(path.read_text())
        self.events: list[tuple[int, str, str]] = [tuple(event) for event in said["events"]]
        pool = descriptor_pool.DescriptorPool()
        described = zlib.decompress(base64.b85decode(said["descriptors"]))
        for file in FileDescriptorSet.FromString(described).file:
            pool.Add(file)
        self._pool = pool
        self.methods = {number: data for number, kind, data in self.events if kind == "method"}

    def list_messages(self, method: str, kind: str) -> list[list[bytes]]:
        """List the requests or replies of each call of a method."""
        found: dict[int, list[bytes]] = {
            number: [] for number, name in self.methods.items() if name == method
        }
        for number, of, data in self.events:
            if of == kind and number in found:
                found[number].append(bytes.fromhex(data))
        return list(found.values())

    def decode(self, name: str, data: bytes) -> Any:
        """Decode a message as the older side does."""
        try:
            kind = self._pool.FindMessageTypeByName(f"allhands.v1.{name}")
        except KeyError:  # before it got the name that it has
            name = name.replace("Kv", "Line", 1)
            kind = self._pool.FindMessageTypeByName(f"allhands.v1.{name}")
        return message_factory.GetMessageClass(kind).FromString(data)

    def decode_reply(self, method: str, data: bytes) -> Any:
        service = self._pool.FindServiceByName(_SERVICE)
        return self.decode(service.methods_by_name[method].output_type.name, data)


def list_differences(told: Message, now: Message, path: str = "") -> Iterator[str]:
    """List what the older side was told and would not find in today's message."""
    for field, value in told.ListFields():
        where = f"{path}.{field.name}"
        here = getattr(now, field.name)
        if field.name in _OF_ONE_RUN:
            if not here and field.name not in _MAY_BE_ZERO:
                yield f"{where} is not there"
        elif field.is_repeated:
            if len(here) != len(value):
                yield f"{where} has {len(here)} items, and had {len(value)}"
            elif field.message_type is None:
                if list(here) != list(value):
                    yield f"{where} is {list(here)}, and was {list(value)}"
            else:
                for at, (one, other) in enumerate(zip(value, here, strict=True)):
                    yield from list_differences(one, other, f"{where}[{at}]")
        elif field.message_type is not None:
            yield from list_differences(value, here, where)
        elif here != value:
            yield f"{where} is {here!r}, and was {value!r}"


class OlderClient:
    """The client of a recording, in conversation with a daemon."""

    def __init__(self, recording: Recording, port: int, metadata: Any) -> None:
        self._recording = recording
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._metadata = metadata
        self._calls: dict[int, Any] = {}
        self._lines: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._unmatched: dict[int, list[Any]] = defaultdict(list)
        self._line_replies: dict[int, int] = defaultdict(int)
        self._ids: dict[bytes, bytes] = {}
        """Ids of the recorded run, and those of this one in their place."""
        self._kv_port = 0
        self.differences: list[str] = []
        self.replies = 0
        """That were compared."""

    async def run(self) -> None:
        """Say all that the recorded client said, and compare the answers."""
        async with asyncio.timeout(_PATIENCE):
            for number, kind, data in self._recording.events:
                if self._recording.methods[number] != "link":
                    await getattr(self, f"_on_{kind}")(number, data)

    async def close(self) -> None:
        for _, writer in self._lines.values():
            writer.close()
        for call in self._calls.values():
            call.cancel()
        await self._channel.close()

    async def _on_method(self, number: int, method: str) -> None:
        if method == "line":
            self._lines[number] = await asyncio.open_connection("127.0.0.1", self._kv_port)
            self._lines[number][1].write(PREFACE)
            return
        path = f"/{_SERVICE}/{method}"
        self._calls[number] = self._channel.stream_stream(path)(metadata=self._metadata)

    async def _on_request(self, number: int, data: str) -> None:
        said = bytes.fromhex(data)
        for before, now in self._ids.items():
            said = said.replace(before, now)
        if number in self._lines:
            self._lines[number][1].write(encode_frame(said))
            return
        await self._calls[number].write(said)
        if self._recording.methods[number] != "Session":
            await self._calls[number].done_writing()

    async def _on_reply(self, number: int, data: str) -> None:
        told, method = bytes.fromhex(data), self._recording.methods[number]
        if method == "line":
            await self._compare_line(number, told)
        elif method == "Session":
            event = self._recording.decode("SessionEvent", told)
            for one in _flatten(event):
                self._compare(one, await self._find_event(number, one.WhichOneof("event")))
        else:
            now = await self._calls[number].read()
            if method == "DescribeCoordinator":
                self._kv_port = wire.CoordinatorDescription.FromString(now).kv_port
            decode = self._recording.decode_reply
            self._compare(decode(method, told), decode(method, now))

    async def _on_end(self, number: int, code: str) -> None:
        if self._recording.methods[number] == "Session":
            await self._calls[number].done_writing()
        with contextlib.suppress(asyncio.InvalidStateError):
            found = (await self._calls[number].code()).name
            if found != code:
                self.differences.append(f"{self._recording.methods[number]} ended with {found}")

    async def _find_event(self, number: int, kind: str) -> Any:
        """Return the next event of a kind that this session is told."""
        waiting = self._unmatched[number]
        while True:
            for at, one in enumerate(waiting):
                if one.WhichOneof("event") == kind:
                    return waiting.pop(at)
            came = await self._calls[number].read()
            if not isinstance(came, bytes):
                return self._recording.decode("SessionEvent", b"")
            waiting += _flatten(self._recording.decode("SessionEvent", came))

    async def _compare_line(self, number: int, told: bytes) -> None:
        reader, _ = self._lines[number]
        nbytes = int.from_bytes(await reader.readexactly(4), "big")
        now = await reader.readexactly(nbytes)
        names = ["KvChallenge", "KvWelcome"]
        at = self._line_replies[number]
        self._line_replies[number] += 1
        name = names[at] if at < len(names) else "Replies"
        self._compare(self._recording.decode(name, told), self._recording.decode(name, now))

    def _compare(self, told: Any, now: Any) -> None:
        self.replies += 1
        self.differences += list_differences(told, now, type(told).__name__)
        if type(told).__name__ == "SessionEvent" and told.HasField("joined"):
            for name in ("member_id", "incarnation"):
                before, after = (getattr(one.joined, name).encode() for one in (told, now))
                self._ids[before] = after


def _flatten(event: Any) -> list[Any]:
    return list(event.batch) if len(event.batch) else [event]
