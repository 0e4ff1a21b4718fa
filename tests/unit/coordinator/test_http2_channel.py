"""Calls over `Http2Channel`, at a server of gRPC's own and at others that answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands.coordinator.http2.call import END, Http2Call
from allhands.coordinator.http2.channel import Http2Channel
from allhands.coordinator.http2.connection import Http2Connection
from allhands_proto.certificates import make_client_context
from allhands_proto.issuing import Authority

LARGE = 9 << 20
"""Bytes above every window of HTTP/2 here."""
Context = Any


class Server:
    """A server with one unary method and one stream, on raw bytes."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | bytes]] = []
        self.cancelled = asyncio.Event()
        self.deadline: float | None = None
        self.go_on = asyncio.Event()

    async def unary(self, request: bytes, context: Context) -> bytes:
        self.seen = list(context.invocation_metadata())
        self.deadline = context.time_remaining()
        match request:
            case b"fail":
                trailers = (("verdict-bin", bytes(range(256)) * 188), ("text", "plain"))
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such key: 'ä%'\n", trailers)
            case b"hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
        return request[::-1]

    async def stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"refuse":
                await context.abort(grpc.StatusCode.ABORTED, "expelled")
            if request == b"wait":
                await self.go_on.wait()
            yield request * 2

    def start(
        self, port: int = 0, credentials: grpc.ServerCredentials | None = None
    ) -> tuple[grpc.aio.Server, int]:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        made = grpc.aio.server(options=unlimited)
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Stream": grpc.stream_stream_rpc_method_handler(self.stream),
        }
        made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.S", handlers),))
        if credentials is None:
            return made, made.add_insecure_port(f"127.0.0.1:{port}")
        return made, made.add_secure_port(f"127.0.0.1:{port}", credentials)


@asynccontextmanager
async def serve() -> AsyncIterator[tuple[Server, grpc.aio.Server, Http2Channel, int]]:
    service = Server()
    running, port = service.start()
    await running.start()
    async with Http2Channel("127.0.0.1", port) as channel:
        yield service, running, channel, port
    await running.stop(0)


def unary(channel: Http2Channel) -> Callable[..., Any]:
    made: Callable[..., Any] = channel.unary_unary("/test.S/Unary", bytes, bytes)
    return made


def stream(channel: Http2Channel) -> Any:
    return channel.stream_stream("/test.S/Stream", bytes, bytes)()


async def test_calls_carry_messages_metadata_and_deadline() -> None:
    async with serve() as (service, _, channel, _):
        call = unary(channel)
        metadata = (("authorization", "Bearer t"), ("some-bin", b"\0\xff"))
        assert await call(b"abc", timeout=30.0, metadata=metadata) == b"cba"
        assert {*metadata} <= {*service.seen}
        assert service.deadline is not None
        assert 20 < service.deadline <= 30
        assert await call(b"") == b""
        replies = await asyncio.gather(*(call(b"%d" % number) for number in range(200)))
        assert replies == [(b"%d" % number)[::-1] for number in range(200)]


async def test_messages_larger_than_every_window_arrive_whole() -> None:
    async with serve() as (_, _, channel, _):
        data = bytes(range(251)) * (LARGE // 251)
        assert await unary(channel)(data) == data[::-1]
        call = stream(channel)
        await call.write(data)
        assert await call.read() == data * 2
        await call.done_writing()
        assert await call.read() is END
        assert await call.code() is StatusCode.OK


async def test_a_refusal_has_code_text_and_large_trailers() -> None:
    async with serve() as (_, _, channel, _):
        with pytest.raises(CallFailed) as raised:
            await unary(channel)(b"fail")
        assert raised.value.status is StatusCode.NOT_FOUND
        assert raised.value.details() == "no such key: 'ä%'\n"
        trailers = dict(raised.value.trailing_metadata())
        assert trailers["verdict-bin"] == bytes(range(256)) * 188
        assert trailers["text"] == "plain"
        with pytest.raises(CallFailed) as unknown:
            await channel.unary_unary("/test.S/Nothing", bytes, bytes)(b"")
        assert unknown.value.status is StatusCode.UNIMPLEMENTED


async def test_a_stream_that_the_server_ends_says_why_to_reader_and_writer() -> None:
    async with serve() as (_, _, channel, _):
        call = stream(channel)
        ended = asyncio.Event()
        call.add_done_callback(lambda _: ended.set())
        await call.write(b"a")
        assert await call.read() == b"aa"
        await call.write(b"refuse")
        with pytest.raises(CallFailed, match="expelled"):
            await call.read()
        assert (await call.code(), await call.details()) == (StatusCode.ABORTED, "expelled")
        async with asyncio.timeout(10):
            await ended.wait()
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"b")
        assert not call.cancel()


async def test_a_deadline_and_a_cancellation_end_the_call_on_both_sides() -> None:
    async with serve() as (service, _, channel, _):
        with pytest.raises(CallFailed) as raised:
            await unary(channel)(b"hang", timeout=0.2)
        assert raised.value.status is StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(10):
            await service.cancelled.wait()
        service.cancelled.clear()
        hanging = unary(channel)(b"hang")
        await unary(channel)(b"behind it")
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        async with asyncio.timeout(10):
            await service.cancelled.wait()
        call = stream(channel)
        reading = asyncio.ensure_future(call.read())
        await unary(channel)(b"behind it")
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await unary(channel)(b"abc") == b"cba"


async def test_a_server_that_goes_down_lets_streams_end_and_another_is_connected_to() -> None:
    async with serve() as (service, running, channel, port):
        call = stream(channel)
        await call.write(b"wait")
        assert await unary(channel)(b"abc") == b"cba"
        stopping = asyncio.ensure_future(running.stop(20))
        while True:  # until it is heard that the server takes no more calls
            [answer] = await asyncio.gather(unary(channel)(b"abc"), return_exceptions=True)
            if isinstance(answer, CallFailed):
                break
        service.go_on.set()
        assert await call.read() == b"waitwait"
        await call.done_writing()
        assert await call.read() is END
        await stopping
        again, _ = service.start(port)
        await again.start()
        assert await unary(channel)(b"abc") == b"cba"
        await again.stop(0)


async def test_a_server_that_dies_breaks_what_is_under_way() -> None:
    async with serve() as (_, running, channel, port):
        call = stream(channel)
        await call.write(b"a")
        assert await call.read() == b"aa"
        hanging = unary(channel)(b"hang")
        await unary(channel)(b"behind it")
        await running.stop(0)
        for failing in (hanging, call.read()):
            with pytest.raises(CallFailed) as raised:
                await failing
            assert raised.value.status in (
                StatusCode.UNAVAILABLE,
                StatusCode.CANCELLED,
            )
        with pytest.raises(CallFailed, match=f"failed to connect to 127.0.0.1:{port}"):
            await unary(channel)(b"abc")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\xff" * 100_000])
async def test_what_is_no_server_of_grpc_makes_calls_fail(answer: bytes) -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Http2Channel("localhost", port) as channel:
        with pytest.raises(CallFailed) as raised:
            await unary(channel)(b"abc", timeout=20.0)
        assert raised.value.status is StatusCode.UNAVAILABLE


async def test_a_closed_channel_cancels_its_calls_and_makes_no_more() -> None:
    async with serve() as (_, _, channel, _):
        hanging = unary(channel)(b"hang")
        await unary(channel)(b"behind it")
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        with pytest.raises(CallFailed, match="channel is closed"):
            await unary(channel)(b"abc")


async def test_an_encrypted_channel_shows_its_certificate_and_checks_the_servers(
    tmp_path: Path,
) -> None:
    authority, other = (Authority(ec.generate_private_key(ec.SECP256R1()), "a") for _ in range(2))
    server, own = (
        authority.issue("s", [name], timedelta(days=1)) for name in ("server.test", "worker.test")
    )
    files = {"ca": authority.certificate, "other": other.certificate}
    files |= {"cert": own.certificate, "key": own.key}
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    ca, wrong, cert, key = (str(tmp_path / name) for name in ("ca", "other", "cert", "key"))
    credentials = grpc.ssl_server_credentials(
        [(server.key, server.certificate)], authority.certificate, require_client_auth=True
    )
    running, port = Server().start(credentials=credentials)
    await running.start()
    trusting = make_client_context(ca, cert, key)
    async with Http2Channel("127.0.0.1", port, trusting, "server.test") as channel:
        data = bytes(range(251)) * (LARGE // 251)
        assert await unary(channel)(data) == data[::-1]
    for context, name in (
        (make_client_context(ca, cert, key), None),  # the certificate is for another name
        (make_client_context(wrong, cert, key), "server.test"),
        (make_client_context(ca), "server.test"),
        (None, None),
    ):
        async with Http2Channel("127.0.0.1", port, context, name) as channel:
            with pytest.raises(CallFailed) as raised:
                await unary(channel)(b"abc", timeout=20.0)
            assert raised.value.status is StatusCode.UNAVAILABLE
    await running.stop(0)


async def test_a_call_ends_whatever_its_connection_fails_with() -> None:
    async def fail() -> Http2Connection:
        raise RuntimeError("no such thing")

    call: Http2Call[bytes, bytes] = Http2Call(fail, [], bytes, bytes)
    with pytest.raises(CallFailed, match="no such thing") as raised:
        await call.read()
    assert raised.value.status is StatusCode.UNAVAILABLE
