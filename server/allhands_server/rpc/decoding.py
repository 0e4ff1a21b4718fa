"""Requests of gRPC calls: received when there is room, decoded, and refused if they cannot be.

Left to itself gRPC receives all at once, answers UNKNOWN to what cannot be decoded, and logs a
traceback for each.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from allhands_proto.limited_log import LimitedLog
from allhands_server.machine.refusals import Refused, Status
from allhands_server.refusal_status import bound_text
from allhands_server.rpc.auth import OPEN_TO_ALL, SESSION
from allhands_server.rpc.receiving import END, MessageReceiver, Reception

logger = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Behaviour: TypeAlias = Any  # what grpc.aio calls; the stubs know only that of threads
Decode: TypeAlias = Callable[[bytes], Any]
_USUAL_NBYTES = 4096
"""Of a call that waits."""
_CANCELLATION_SECONDS = 1.0
"""For the news to come that a call, whose stream has ended without a request, was cancelled."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Receive and decode requests instead of gRPC, for every service of the port.

    To gRPC all calls are streams of requests, because those are received by their handlers.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        strangers_receiver: MessageReceiver,
        check: Callable[[str, Any, str], None] = lambda _method, _message, _peer: None,
    ) -> None:
        """Take the receivers of calls with a token, and of those that are open to all.

        `check` raises Refused for calls that are not allowed, given method, request and peer.
        """
        self._receiver = receiver
        self._strangers_receiver = strangers_receiver
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
        receiver = self._strangers_receiver if is_open else self._receiver

        async def receive_one(context: Context) -> Any:
            """Return the single request of a call; a call that waits does not keep its bytes."""
            reception = await _take_room(receiver, context)
            try:
                request = await context.read()
                if request is END:
                    receiver.give_room(reception)
                    await _refuse_empty(method, context)
                message = _decode_compactly(decode, request)
            except DecodeError:
                await self._refuse(method, context)
            finally:
                receiver.give_room(reception)
            if not is_open:
                try:
                    self._check(method, message, reception.connection)
                except Refused as refused:
                    await _abort(context, refused)
            return message

        encode = inner.response_serializer
        if inner.request_streaming and inner.response_streaming:
            return self._wrap_streams(method, inner, decode, receiver)
        assert not inner.request_streaming, f"no method of this port is as {method} is"
        if not inner.response_streaming:
            answer: Behaviour = inner.unary_unary

            async def serve_unary(_requests: object, context: Context) -> Any:
                return await answer(await receive_one(context), context)

            return grpc.stream_unary_rpc_method_handler(serve_unary, None, encode)
        return _wrap_replies(inner.unary_stream, receive_one, encode)

    def _wrap_streams(
        self,
        method: str,
        inner: "grpc.RpcMethodHandler[Any, Any]",
        decode: Decode,
        receiver: MessageReceiver,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Wrap a handler of a stream of requests.

        Each has room, of a session the first: what follows has to come for the session to live.
        """
        serve: Behaviour = inner.stream_stream

        async def decode_each(reception: Reception, context: Context) -> AsyncGenerator[Any]:
            is_first = True
            try:
                while (request := await context.read()) is not END:
                    try:
                        message = decode(request)
                    except DecodeError:
                        self._warn(method, context)
                        text = _describe_refusal(method)
                        raise Refused(Status.INVALID_ARGUMENT, text) from None
                    del request
                    receiver.give_room(reception)
                    if is_first:  # it says what the stream is about
                        self._check(method, message, reception.connection)
                        is_first = False
                    yield message
                    del message
                    if method != SESSION:
                        reception = await receiver.take_room(context, is_stream=True)
            finally:
                receiver.give_room(reception)

        async def serve_streams(_requests: object, context: Context) -> Any:
            reception = await _take_room(receiver, context, is_stream=True)
            async with (
                contextlib.aclosing(decode_each(reception, context)) as requests,
                contextlib.aclosing(serve(requests, context)) as replies,
            ):
                try:
                    async for reply in replies:
                        yield reply
                except Refused as refused:
                    await _abort(context, refused)

        return grpc.stream_stream_rpc_method_handler(serve_streams, None, inner.response_serializer)

    async def _refuse(self, method: str, context: Context) -> NoReturn:
        self._warn(method, context)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _describe_refusal(method))

    def _warn(self, method: str, context: Context) -> None:
        self._log.warning("refused %.80r from %s: undecodable request", method, context.peer())


def _decode_compactly(decode: Decode, request: bytes) -> Any:
    """Decode a request without fields that nobody knows, if those are large: it may wait.

    Raises:
        DecodeError: it is no such request.
    """
    message = decode(request)
    if len(request) > _USUAL_NBYTES:
        message.DiscardUnknownFields()
        if message.ByteSize() < len(request) - _USUAL_NBYTES:
            return decode(message.SerializeToString())  # the bytes of a message are freed as one
    return message


async def _take_room(
    receiver: MessageReceiver, context: Context, *, is_stream: bool = False
) -> Reception:
    try:
        return await receiver.take_room(context, is_stream=is_stream)
    except Refused as refused:
        await _abort(context, refused)


async def _refuse_empty(method: str, context: Context) -> NoReturn:
    """Refuse a call that has ended without a request, unless its caller has cancelled it."""
    await asyncio.sleep(_CANCELLATION_SECONDS)
    text = f"no request of {method} has come: its stream has ended without one"
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)


async def _abort(context: Context, refused: Refused) -> NoReturn:
    status = grpc.StatusCode[refused.refusal.status.value]
    await context.abort(status, bound_text(refused.refusal))


def _describe_refusal(method: str) -> str:
    return f"what came is no request of {method}: it cannot be decoded"


def _wrap_replies(
    tell: Behaviour, receive_one: Callable[[Context], Awaitable[Any]], encode: Any
) -> "grpc.RpcMethodHandler[Any, Any]":
    """Wrap a behaviour with several replies, a generator or not."""
    if not inspect.isasyncgenfunction(tell):

        async def serve_writer(_requests: object, context: Context) -> None:
            await tell(await receive_one(context), context)

        return grpc.stream_stream_rpc_method_handler(serve_writer, None, encode)

    async def serve_stream(_requests: object, context: Context) -> Any:
        async for reply in tell(await receive_one(context), context):
            yield reply

    return grpc.stream_stream_rpc_method_handler(serve_stream, None, encode)
