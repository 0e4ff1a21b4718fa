"""Start of gRPC servers that is cancelled."""

import asyncio

import grpc
import pytest

from allhands_proto.server_start import start_server


async def test_a_server_whose_start_was_cancelled_can_be_stopped_and_has_let_its_port_go() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    starting = asyncio.create_task(start_server(server))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.stop(None)
    (await asyncio.start_server(lambda *_: None, "127.0.0.1", port)).close()
