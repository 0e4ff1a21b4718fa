"""Record the conversation of two ranks of an older version with a daemon of that version.

    PYTHONPATH=tests .venv/bin/python -m support.wires.record OLDER/.venv/bin/python NAME COMMIT

OLDER is a checkout of the version, installed in its own environment. A proxy between the two notes
each message of gRPC, each frame of the key-value port, and what one rank says to the other when it
connects to it. The times, ids and secrets in the file are those of that run.
"""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from allhands_proto.framing import PREFACE, FrameDecoder
from allhands_proto.v1 import coordinator_pb2 as wire

FOLDER = Path(__file__).parent
_TOKEN = "token-of-a-recording"
_SERVICE = "/allhands.v1.Coordinator/"
_DESCRIBE = """
import importlib, pkgutil, sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet
import allhands_proto.v1 as v1
found = FileDescriptorSet()
for name in ("coordinator_pb2", "calls_pb2"):
    if any(one.name == name for one in pkgutil.iter_modules(v1.__path__)):
        module = importlib.import_module(f"allhands_proto.v1.{name}")
        module.DESCRIPTOR.CopyToProto(found.file.add())
sys.stdout.buffer.write(found.SerializeToString())
"""


class Recorder(grpc.GenericRpcHandler):
    """A proxy before a daemon; `events` has what passed, in its order."""

    def __init__(self, target: str) -> None:
        self.events: list[list[Any]] = []
        """Call, kind (method, request, reply or end), hexadecimal bytes or text."""
        self._channel = grpc.aio.insecure_channel(target)
        self._calls = 0
        self._lines: list[asyncio.Server] = []

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def serve(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._forward(details, requests, context):
                yield reply

        return grpc.stream_stream_rpc_method_handler(serve)

    def begin(self, method: str) -> int:
        self._calls += 1
        self.note(self._calls, "method", method)
        return self._calls

    def note(self, call: int, kind: str, data: bytes | str) -> None:
        self.events.append([call, kind, data.hex() if isinstance(data, bytes) else data])

    async def _forward(self, details: grpc.HandlerCallDetails, requests: Any, context: Any) -> Any:
        number = self.begin(details.method.removeprefix(_SERVICE))
        metadata = [one for one in details.invocation_metadata if one[0] == "authorization"]
        call: Any = self._channel.stream_stream(details.method)(metadata=metadata)

        async def send() -> None:
            async for request in requests:
                self.note(number, "request", request)
                await call.write(request)
            await call.done_writing()

        sending = asyncio.create_task(send())
        try:
            async for reply in call:
                self.note(number, "reply", reply)
                yield await self._redirect(details.method, reply)
            self.note(number, "end", (await call.code()).name)
        except grpc.RpcError as error:
            self.note(number, "end", error.code().name)
            await context.abort(error.code(), error.details(), await call.trailing_metadata())
        finally:
            sending.cancel()

    async def _redirect(self, method: str, reply: bytes) -> bytes:
        """Have clients come by this proxy for key-value calls and to the second rank."""
        if method.endswith("/DescribeCoordinator"):
            told = wire.CoordinatorDescription.FromString(reply)
            if told.kv_port:
                told.kv_port = await self._relay(told.kv_port, "line")
            return told.SerializeToString()
        if method.endswith("/Session"):
            event = wire.SessionEvent.FromString(reply)
            for one in (event, *event.batch):
                for member in one.world_formed.members[1:]:
                    member.data_port = await self._relay(member.data_port, "link")
            return event.SerializeToString()
        return reply

    async def _relay(self, port: int, method: str) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", port)
            number = self.begin(method)
            cut = _cut_frames if method == "line" else _cut_steps
            await asyncio.gather(
                self._pipe(number, "request", reader, there[1], cut(True)),
                self._pipe(number, "reply", there[0], writer, cut(False)),
            )

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._lines.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _pipe(
        self, number: int, kind: str, source: Any, sink: asyncio.StreamWriter, cut: Any
    ) -> None:
        try:
            while data := await source.read(65536):
                for body in cut(data):
                    self.note(number, kind, body)
                sink.write(data)
        except ConnectionError:
            pass  # the other side has ended it
        finally:
            sink.close()


def _cut_frames(is_caller: bool) -> Any:
    decoder, left = FrameDecoder(), len(PREFACE) if is_caller else 0

    def cut(data: bytes) -> list[bytes]:
        nonlocal left
        data, left = data[left:], max(0, left - len(data))
        return list(decoder.feed(data))

    return cut


def _cut_steps(is_caller: bool) -> Any:
    """Cut the steps of a link's handshake, each behind eight bytes; two from each side."""
    pending, steps = b"", 2

    def cut(data: bytes) -> list[bytes]:
        nonlocal pending, steps
        pending += data
        found = []
        while steps and len(pending) >= 8:
            end = 8 + int.from_bytes(pending[4:8], "little")
            if len(pending) < end:
                break
            found.append(pending[:end])
            pending, steps = pending[end:], steps - 1
        return found

    return cut


async def _record(python: str) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        probe.close()
        environ = {**os.environ, "XDG_RUNTIME_DIR": folder, "ALLHANDS_TOKEN": _TOKEN}
        environ |= {"ALLHANDS_BACKEND": "socket", "WORLD_SIZE": "2", "PYTHONPATH": ""}
        serve = ("-m", "allhands.cli.main", "serve", "--listen", f"127.0.0.1:{port}")
        daemon = await asyncio.create_subprocess_exec(
            python, *serve, env=environ, stderr=subprocess.PIPE
        )
        assert daemon.stderr is not None
        while b"listening" not in await daemon.stderr.readline():
            assert daemon.returncode is None
        recorder = Recorder(f"127.0.0.1:{port}")
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((recorder,))
        environ["ALLHANDS_URL"] = f"ah://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}/j"
        await server.start()
        program = (FOLDER / "program.py").read_text()  # whose path would be recorded too
        ranks = [
            await asyncio.create_subprocess_exec(
                python, "-c", program, env={**environ, "RANK": str(rank)}
            )
            for rank in range(2)
        ]
        assert [await one.wait() for one in ranks] == [0, 0]
        await server.stop(1.0)
        daemon.terminate()
        await daemon.communicate()
    return recorder.events


def main(python: str, name: str, commit: str) -> None:
    """Write the recording to `NAME.json` beside this file."""
    described = subprocess.run([python, "-c", _DESCRIBE], check=True, capture_output=True).stdout
    recording = {
        "commit": commit,
        "descriptors": base64.b85encode(zlib.compress(described, 9)).decode(),
        "events": asyncio.run(_record(python)),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(recording, indent=0) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
