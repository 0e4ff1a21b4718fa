"""Bounds of the HTTP port: silent, slow, greedy and many callers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from allhands_server.http import connection, listener
from allhands_server.http.connection import BEGIN_STREAM
from allhands_server.http.listener import HttpListener

LARGE = 64 << 20
PIECE = b"x" * 4096
PATIENCE = 30.0


async def _answer(request: Request) -> Response:
    return PlainTextResponse("served")


async def _answer_at_length(request: Request) -> Response:
    return PlainTextResponse("x" * LARGE)


async def _stream(request: Request) -> Response:
    """Answer without an end: with a piece each time that the test lets one go."""
    request.scope["state"][BEGIN_STREAM]()

    async def make_pieces() -> AsyncIterator[bytes]:
        while True:
            yield PIECE
            await asyncio.sleep(0)

    return StreamingResponse(make_pieces())


@asynccontextmanager
async def listen() -> AsyncIterator[HttpListener]:
    app = Starlette(
        routes=[
            Route("/", _answer),
            Route("/large", _answer_at_length),
            Route("/stream", _stream),
        ]
    )
    made = HttpListener(app)
    made.listen("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()


async def dial(listening: HttpListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", listening.port)


async def fetch(listening: HttpListener, request: bytes = b"GET / HTTP/1.1\r\n") -> bytes:
    reader, writer = await dial(listening)
    writer.write(request + b"Host: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def expect_end(reading: Awaitable[bytes]) -> None:
    """Read a connection until the listener has ended it."""
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionResetError):
            await reading


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: y"])
async def test_a_caller_that_does_not_ask_in_time_is_dropped(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.1)
    async with listen() as listening:
        reader, writer = await dial(listening)
        writer.write(said)
        await expect_end(reader.read())
        writer.close()
        assert b"served" in await fetch(listening)


async def test_a_caller_that_sends_a_body_without_end_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.1)
    async with listen() as listening:
        reader, writer = await dial(listening)
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 99
        )
        await expect_end(reader.read())
        writer.close()


async def test_a_caller_that_takes_no_answer_in_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.5)
    async with listen() as listening:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", listening.port)) as caller:
            caller.setblocking(False)
            await loop.sock_sendall(caller, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await loop.sock_recv(caller, 100)
            async with asyncio.timeout(PATIENCE):
                while listening.count:  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0.01)


async def test_a_request_whose_head_does_not_end_is_refused() -> None:
    async with listen() as listening:
        reader, writer = await dial(listening)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"y" * (connection.LARGEST_HEAD + 1))
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_the_oldest_connections_make_room_for_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1000.0)
    monkeypatch.setattr(listener, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(listener, "limit_to_share", lambda part: 4)
    async with listen() as listening:
        silent = [await dial(listening) for _ in range(4)]
        assert b"served" in await fetch(listening)
        await expect_end(silent[0][0].read())
        for _, writer in silent:
            writer.close()


async def test_new_connections_wait_while_all_are_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1000.0)
    monkeypatch.setattr(listener, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(listener, "limit_to_share", lambda part: 2)
    async with listen() as listening:
        silent = [await dial(listening) for _ in range(2)]
        assert b"served" in await fetch(listening)
        await expect_end(silent[0][0].read())
        for _, writer in silent:
            writer.close()


async def test_several_requests_go_over_one_connection() -> None:
    async with listen() as listening:
        reader, writer = await dial(listening)
        for _ in range(3):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"served")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_stream_that_is_read_outlasts_the_time_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.1)
    async with listen() as listening:
        reader, writer = await dial(listening)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(PATIENCE):
            while loop.time() < begun + 0.5:
                assert await reader.read(1 << 20)
        writer.close()


async def test_a_stream_that_is_not_read_ends_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.5)
    async with listen() as listening:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", listening.port)) as caller:
            caller.setblocking(False)
            await loop.sock_sendall(caller, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await loop.sock_recv(caller, 100)
            [held] = listening._accepted
            async with asyncio.timeout(PATIENCE):
                while listening.count:
                    if held.is_open:
                        assert held.transport.get_write_buffer_size() < 1 << 18
                    await asyncio.sleep(0.01)


async def test_streams_do_not_make_room_for_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1000.0)
    monkeypatch.setattr(listener, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(listener, "limit_to_share", lambda part: 2)
    async with listen() as listening:
        reader, writer = await dial(listening)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readline()
        [streaming] = listening._accepted
        strangers = [await dial(listening) for _ in range(4)]
        await expect_end(strangers[0][0].read())
        assert streaming in listening._accepted
        assert await reader.read(1 << 20)
        for _, one in (*strangers, (reader, writer)):
            one.close()
