"""Listeners of the key-value port in this process, and connections that read when told to."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from allhands_proto.framing import PREFACE, FrameDecoder, encode_frame
from allhands_proto.kv_handshake import NONCE_BYTES, prove
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.coordinator import Coordinator
from allhands_server.kv.listener import KvListener
from allhands_server.resource_limits import ResourceLimits

MIB = 1 << 20
SECRET = b"s" * 32
PATIENCE = 60.0
"""Seconds."""


class Line:
    """A key-value connection that reads when it is told to."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> "Line":
        """Connect from an address of this host."""
        connected = socket.socket()
        connected.bind((host, 0))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", port))
        line = cls(connected)
        nonce = bytes(NONCE_BYTES)
        await line.send(PREFACE + encode_frame(wire.KvHello(nonce=nonce).SerializeToString()))
        challenge = wire.KvChallenge.FromString((await line.receive())[0])
        proof = prove(SECRET, "caller", nonce, challenge.nonce)
        await line.send(encode_frame(wire.KvProof(proof=proof).SerializeToString()))
        assert not wire.KvWelcome.FromString((await line.receive())[0]).HasField("refused")
        return line

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def call(self, *calls: wire.Call) -> None:
        await self.send(encode_frame(wire.Calls(calls=calls).SerializeToString()))

    async def receive(self) -> list[bytes]:
        """Read until a frame is there; empty: the connection has ended."""
        while True:
            try:
                if not (come := await self._loop.sock_recv(self._socket, 1 << 16)):
                    return []
            except ConnectionResetError:
                return []
            if bodies := list(self._decoder.feed(come)):
                return bodies

    async def read_replies(self, count: int) -> list[wire.Reply]:
        replies: list[wire.Reply] = []
        while len(replies) < count:
            bodies = await self.receive()
            assert bodies, f"the connection ended after {len(replies)} replies"
            for body in bodies:
                replies += wire.Replies.FromString(body).replies
        return replies

    def close(self) -> None:
        self._socket.close()


@contextlib.asynccontextmanager
async def listen(limits: ResourceLimits) -> AsyncIterator[tuple[Coordinator, KvListener]]:
    coordinator = Coordinator(limits=limits)
    listener = KvListener(coordinator, SECRET, hello_timeout=30.0)
    listener.listen(("127.0.0.1",), None)
    try:
        yield coordinator, listener
    finally:
        coordinator.close()
        listener.close()
        listener.abort()


def put(id: int, key: str, value: bytes = b"") -> wire.Call:
    return wire.Call(id=id, timeout=60, set=wire.SetRequest(job="j", key=key, value=value))


def get(id: int, key: str, wait: bool = False) -> wire.Call:
    return wire.Call(id=id, timeout=60, get=wire.GetRequest(job="j", key=key, wait=wait))


async def wait_until(claim: Callable[[], bool]) -> None:
    """Look again and again, until a claim holds; within the timeout around it."""
    for _ in range(int(PATIENCE / 0.02)):
        if claim():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true in time")


async def read_to_end(line: Line) -> None:
    while await line.receive():
        pass
