"""Undecodable requests: refused with INVALID_ARGUMENT and a line of the log.

Left to itself gRPC answers UNKNOWN and logs a traceback for each.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from allhands_proto.limited_log import LimitedLog
from allhands_server.machine.refusals import Refused, Status
from allhands_server.refusal_status import bound_text
from allhands_server.rpc.auth import OPEN_TO_ALL

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Behaviour: TypeAlias = Any  # what grpc.aio calls; the stubs know only that of threads
Decode: TypeAlias = Callable[[bytes], Any]


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Decode requests instead of gRPC, for every service of the port.

    `on_call` is told the peer of each call, as gRPC writes it, but for calls that are open to all;
    `check` refuses calls, given method, request and peer.
    """

    def __init__(
        self,
        on_call: Callable[[str], None],
        check: Callable[[str, Any, str], None] = lambda _method, _message, _peer: None,
    ) -> None:
        self._on_call = on_call
        self._check = check
        self._known: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._log = LimitedLog(logger, "undecodable requests")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if (known := self._known.get(method)) is not None:
            return known
        found = await continuation(handler_call_details)
        if found is None or found.request_deserializer is None:
            return found
        self._known[method] = made = self._wrap(method, found, found.request_deserializer)
        return made

    def _wrap(
        self, method: str, inner: "grpc.RpcMethodHandler[Any, Any]", decode: Decode
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Wrap a handler to receive requests as bytes."""

        is_open = method.startswith(OPEN_TO_ALL)
        served = _ignore_peer if is_open else self._on_call

        async def decode_one(request: bytes, context: Context) -> Any:
            """Decode the single request of a call."""
            served(context.peer())
            try:
                message = decode(request)
            except DecodeError:
                await self._refuse(method, context)
            if not is_open:
                try:
                    self._check(method, message, context.peer())
                except Refused as refused:
                    await _abort(context, refused)
            return message

        async def decode_each(
            requests: AsyncIterator[bytes], context: Context
        ) -> AsyncIterator[Any]:
            is_checked = is_open
            async for request in requests:
                try:
                    message = decode(request)
                except DecodeError:
                    self._warn(method, context)
                    raise Refused(Status.INVALID_ARGUMENT, _describe_refusal(method)) from None
                if not is_checked:  # the first message says what the stream is about
                    self._check(method, message, context.peer())
                    is_checked = True
                yield message

        encode = inner.response_serializer
        if inner.request_streaming and inner.response_streaming:
            serve: Behaviour = inner.stream_stream

            async def serve_streams(requests: AsyncIterator[bytes], context: Context) -> Any:
                served(context.peer())
                try:
                    async for reply in serve(decode_each(requests, context), context):
                        yield reply
                except Refused as refused:
                    await _abort(context, refused)

            return grpc.stream_stream_rpc_method_handler(serve_streams, None, encode)
        assert not inner.request_streaming, f"no method of this port is as {method} is"
        if not inner.response_streaming:
            answer: Behaviour = inner.unary_unary

            async def serve_unary(request: bytes, context: Context) -> Any:
                return await answer(await decode_one(request, context), context)

            return grpc.unary_unary_rpc_method_handler(serve_unary, None, encode)
        return _wrap_replies(inner.unary_stream, decode_one, encode)

    async def _refuse(self, method: str, context: Context) -> None:
        self._warn(method, context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _describe_refusal(method))

    def _warn(self, method: str, context: Context) -> None:
        self._log.warning("refused %.80r from %s: undecodable request", method, context.peer())


async def _abort(context: Context, refused: Refused) -> NoReturn:
    status = grpc.StatusCode[refused.refusal.status.value]
    await context.abort(status, bound_text(refused.refusal))


def _ignore_peer(_peer: str) -> None:
    """Ignore the peer of a call without need of a token."""


def _describe_refusal(method: str) -> str:
    return f"what came is no request of {method}: it cannot be decoded"


def _wrap_replies(
    tell: Behaviour, decode_one: Callable[[bytes, Context], Awaitable[Any]], encode: Any
) -> "grpc.RpcMethodHandler[Any, Any]":
    """Wrap a behaviour with several replies, a generator or not, to receive bytes."""
    if not inspect.isasyncgenfunction(tell):

        async def serve_writer(request: bytes, context: Context) -> None:
            await tell(await decode_one(request, context), context)

        return grpc.unary_stream_rpc_method_handler(serve_writer, None, encode)

    async def serve_stream(request: bytes, context: Context) -> Any:
        async for reply in tell(await decode_one(request, context), context):
            yield reply

    return grpc.unary_stream_rpc_method_handler(serve_stream, None, encode)
