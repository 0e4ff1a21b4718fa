"""Proxy for TCP connections under a plan of faults.

A stream has no messages, so it counts in blocks of BLOCK bytes, from the first of a connection:
what is drawn for one depends on the seed and its place alone. Bytes cannot be lost, come twice or
overtake each other in a TCP stream: a drop breaks the connection here, and `duplicate` and
`reorder` do nothing. Processes are stalled and killed by signals, not here.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from allhands.testing.faults import COORDINATOR, Plan, Way, flipped
from allhands.transport.socket_stream import HostPort, SocketListener
from allhands_proto.v1 import peer_pb2

BLOCK = 4096
_LOOK_SECONDS = 0.05
"""How often a connection that nothing passes on is looked at again: plans may change meanwhile."""
_PREAMBLE = 8
_LENGTH_OFFSET = 4

Greet = Callable[[asyncio.StreamReader], Awaitable[tuple[bytes, int]]]
"""Reads what a dialler says first; returns that, and its rank."""


class Proxy:
    """Listens on a free port of loopback, in place of one target; lives on a loop."""

    def __init__(self, plan: Plan, target: HostPort, rank: int, greet: Greet) -> None:
        """Proxy connections to `rank`; `greet` reads the rank of the dialling peer."""
        self.plan = plan
        self.port = 0
        self._target = target
        self._rank = rank
        self._greet = greet
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()

    async def start(self) -> None:
        """Listen; the plan's time begins."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._start = self._loop.time()

    def now(self) -> float:
        """Return the seconds since the plan began; safe from any thread."""
        return self._loop.time() - self._start

    async def aclose(self) -> None:
        """Break every connection and stop listening. Idempotent."""
        if self._server is not None:
            self._server.close()
        carried = list(self._connections)
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = None
        try:
            # Cancelled is only who is closed: nobody waits for what becomes of this.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            del self._connections[task]
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said, dialler = await self._greet(reader)
        there, here = (dialler, self._rank), (self._rank, dialler)
        onward, back = await asyncio.open_connection(*self._target)
        try:
            ways = [
                asyncio.create_task(self._forward(there, reader, back, said)),
                asyncio.create_task(self._forward(here, onward, writer, b"")),
            ]
            try:
                done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
                for way in done:
                    way.result()
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            back.transport.abort()

    async def _forward(
        self,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        block: bytes,
    ) -> None:
        """Carry one direction to its end; ConnectionError: the plan breaks it."""
        nth, room = 0, 0
        flips: list[int] = []
        while block or (block := await reader.read(room or BLOCK)):
            if not room:
                nth, room = nth + 1, BLOCK
                fate = self.plan.fate(way, nth, BLOCK, self.now())
                if fate.is_cut or not fate.copies:
                    raise ConnectionResetError("as planned")
                flips = list(fate.flips)
                if fate.delay:
                    await asyncio.sleep(fate.delay)
            first = BLOCK - room
            piece, block = block[:room], block[room:]
            hit = [bit - first * 8 for bit in flips if first <= bit // 8 < first + len(piece)]
            room -= len(piece)
            if not math.isinf(fate.rate):
                await asyncio.sleep(len(piece) / fate.rate)
            await self._wait_passable(way)
            writer.write(flipped(piece, hit) if hit else piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _wait_passable(self, way: Way) -> None:
        while (until := self.plan.held_until(way, self.now())) > self.now():  # noqa: ASYNC110
            await asyncio.sleep(min(until - self.now(), _LOOK_SECONDS))


async def greeting(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """Read the Hello of a raw-socket link, in the framing of `transport.socket_handshake`."""
    preamble = await reader.readexactly(_PREAMBLE)
    step = await reader.readexactly(int.from_bytes(preamble[_LENGTH_OFFSET:], "little"))
    return preamble + step, peer_pb2.Hello.FromString(step).from_rank


@contextmanager
def session_through(plan: Plan, rank: int, coordinator: HostPort) -> Iterator[Proxy]:
    """Run a proxy to a coordinator for one rank; the rank's URL must have the proxy's port.

    Only gRPC goes through the proxy: the session, and questions about ranks.
    """

    async def greet(_: asyncio.StreamReader) -> tuple[bytes, int]:
        return b"", rank

    with _run_proxy(plan, coordinator, COORDINATOR, greet) as proxy:
        yield proxy


@contextmanager
def links_through(plan: Plan, rank: int) -> Iterator[list[Proxy]]:
    """Let the world that this process joins as `rank` within the block announce a proxy.

    What peers send it over raw sockets goes through that, until the block ends. Gives a list in
    which the proxy is, once this process listens.
    """
    proxies: list[Proxy] = []
    honest = SocketListener.start
    with contextlib.ExitStack() as stack:

        def start(listening: SocketListener, host: str) -> None:
            honest(listening, host)
            running = _run_proxy(plan, (host, listening.port), rank, greeting)
            proxies.append(stack.enter_context(running))
            listening.port = proxies[-1].port

        SocketListener.start = start  # type: ignore[method-assign, assignment]
        try:
            yield proxies
        finally:
            SocketListener.start = honest  # type: ignore[method-assign]


@contextmanager
def _run_proxy(plan: Plan, target: HostPort, rank: int, greet: Greet) -> Iterator[Proxy]:
    """Run a proxy on a dedicated thread."""
    made: list[Proxy] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        proxy = Proxy(plan, target, rank, greet)
        await proxy.start()
        made.append(proxy)
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stopped.set))
        ready.set()
        await stopped.wait()
        await proxy.aclose()

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            ready.set()
            over.set()

    ends: list[Callable[[], object]] = []
    threading.Thread(target=run, name="proxy", daemon=True).start()
    ready.wait()
    if not made:
        raise RuntimeError("the proxy could not listen; its thread has said why")
    try:
        yield made[0]
    finally:
        ends[0]()
        over.wait()
