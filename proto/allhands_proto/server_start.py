"""Start of gRPC servers, which a cancellation leaves in a state that can be ended."""

import asyncio

import grpc


async def start_server(server: grpc.aio.Server) -> None:
    """Start a server; a cancellation takes effect once it has started.

    A `start` that is cancelled itself leaves a server whose `stop` raises InvalidStateError.
    """
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        raise
