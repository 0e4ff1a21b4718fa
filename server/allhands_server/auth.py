"""Who may call: the token that every call carries, and TLS from files."""

import asyncio
import contextlib
import hmac
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio

logger = logging.getLogger(__name__)

_HEALTH = "/grpc.health.v1.Health/"  # what looks after the process has no token
_SCHEME = "Bearer "
_WITHOUT = "this coordinator wants its token: send the metadata 'authorization: Bearer TOKEN'"
_WRONG = "this is not the token of this coordinator"

_FIRST_SECONDS = 3.0
"""How long a refusal waits for the request that it refuses."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Let through only calls that carry the token; the health service is open to all."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        shown = [
            value if isinstance(value, str) else value.decode("latin-1")
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        if any(self._is_token(value) for value in shown):
            return await continuation(handler_call_details)
        return _refusal(method, _WRONG if shown else _WITHOUT)

    def _is_token(self, value: str) -> bool:
        offered = value[len(_SCHEME) :] if value.startswith(_SCHEME) else ""
        return hmac.compare_digest(offered.encode(), self._token)


def _refusal(method: str, text: str) -> Handler:
    """Make a handler that refuses; a stranger does not learn which methods exist."""

    async def refuse(
        requests: AsyncIterator[Any], context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> None:
        logger.warning("refused %.80r from %s: %s", method, context.peer(), text)
        # A caller whose write is cut off by the refusal sees INTERNAL, not why it was refused.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_SECONDS):
                await anext(requests, None)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    # The kind that fits all: a unary caller sees the status just the same.
    return grpc.stream_stream_rpc_method_handler(refuse)


def server_credentials(cert: Path | str, key: Path | str) -> grpc.ServerCredentials:
    """Read the PEM files of a certificate chain and its key.

    Raises:
        OSError: one of them cannot be read.
    """
    return grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(cert).read_bytes())])


def server_context(cert: Path | str, key: Path | str) -> ssl.SSLContext:
    """Read the same for sockets without gRPC.

    Raises:
        OSError: one of the files cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
