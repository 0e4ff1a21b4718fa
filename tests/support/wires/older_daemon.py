"""Replay of recorded conversations: the older daemon's side, to today's client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from allhands_proto.framing import PREFACE, encode_frame
from allhands_proto.v1 import coordinator_pb2 as wire
from support.wires.replay import Recording

_SERVICE = "/allhands.v1.Coordinator/"


class OlderDaemon(grpc.GenericRpcHandler):
    """The daemon of a recording: what it said then is what it says now."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._replies: dict[str, list[bytes]] = {}
        for method in set(recording.methods.values()) - {"Session", "line", "link"}:
            calls = recording.list_messages(method, "reply")
            self._replies[method] = [data for one in calls for data in one]
        self._kv_port = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method.removeprefix(_SERVICE)
        if method == "Session":
            return grpc.stream_stream_rpc_method_handler(self._serve_session)
        if method not in self._replies:
            return None  # which it does not know

        async def serve(_: bytes, __: Any) -> bytes:
            replies = self._replies[method]
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
            if method == "DescribeCoordinator":
                told = wire.CoordinatorDescription.FromString(reply)
                told.kv_port = self._kv_port
                return told.SerializeToString()
            return reply

        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve_session(self, requests: Any, _: Any) -> AsyncIterator[bytes]:
        join = wire.SessionRequest.FromString(await anext(requests)).join
        recording = self._recording
        sessions = zip(
            recording.list_messages("Session", "request"),
            recording.list_messages("Session", "reply"),
            strict=True,
        )
        replies = next(
            answers
            for asked, answers in sessions
            if wire.SessionRequest.FromString(asked[0]).join.rank == join.rank
        )
        ends = [wire.SessionEvent.FromString(one).HasField("leave_accepted") for one in replies]
        last = ends.index(True)
        for reply in replies[:last]:
            yield reply
        async for request in requests:
            if wire.SessionRequest.FromString(request).HasField("leave"):
                yield replies[last]
                return

    async def _serve_line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each frame by the next one of the connection with the most calls."""
        lines = self._recording.list_messages("line", "reply")
        longest = max(lines, key=len)
        replies = list(longest)
        await reader.readexactly(len(PREFACE))
        try:
            while replies:
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(encode_frame(replies.pop(0)))
        except asyncio.IncompleteReadError:
            pass  # the client has ended
        writer.close()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[int]:
        """Serve; yield the port."""
        lines = await asyncio.start_server(self._serve_line, "127.0.0.1", 0)
        self._kv_port = lines.sockets[0].getsockname()[1]
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            lines.close()
            await server.stop(None)
