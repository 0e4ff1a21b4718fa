"""Authentication: the token of every call."""

import asyncio
import contextlib
import hmac
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from allhands_proto.limited_log import LimitedLog
from allhands_server.access import CALLER, RefusalReason, split_token
from allhands_server.addresses import parse_peer_host
from allhands_server.machine.refusals import Refused
from allhands_server.refusal_status import bound_text

logger = logging.getLogger(__name__)

OPEN_TO_ALL = "/grpc.health.v1.Health/"  # what looks after the process has no token
SESSION = "/allhands.v1.Coordinator/Session"
_SCHEME = "Bearer "
_WITHOUT = "this coordinator wants its token: send the metadata 'authorization: Bearer TOKEN'"
_WRONG = "this is not the token of this coordinator"

_REFUSAL_SECONDS = 0.3
"""How long a refusal waits, so that a caller's first small message is written before it comes."""
_MOST_WAITING = 512
"""Refusals that wait, of all callers; for one more the oldest goes out. Each holds what gRPC takes
in of a stream that nobody reads: 64 KiB."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Let through only calls with a token; the health service is open to all."""

    def __init__(
        self,
        token: str,
        joiner: Callable[[str, str], None] | None = None,
        check_token: Callable[[str, bytes], None] | None = None,
        note: Callable[[str, str, str], None] | None = None,
        refused: Counter[RefusalReason] | None = None,
    ) -> None:
        """Take the cluster's token, callbacks, and counts of refused calls.

        Args:
            joiner: is called for refused joiners with address and reason.
            check_token: raises Refused for a token for one job, given id and digest; None: there
                are no such tokens.
            note: is called for refused calls with method, peer and reason.
        """
        self._token = token.encode()
        self._refusals = Refusals(note)
        self._joiner = joiner
        self._check_token = check_token
        self._refused: Counter[RefusalReason] = Counter() if refused is None else refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        if method.startswith(OPEN_TO_ALL):
            return await continuation(handler_call_details)
        shown = [
            value if isinstance(value, str) else value.decode("latin-1")
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        if any(self._is_token(value) for value in shown):
            return await continuation(handler_call_details)
        text, status = _WRONG if shown else _WITHOUT, grpc.StatusCode.UNAUTHENTICATED
        reason: RefusalReason = "wrong_token" if shown else "no_token"
        for value in shown:
            try:
                if self._is_scoped_token(value):
                    return await continuation(handler_call_details)
            except Refused as error:
                text, reason = bound_text(error.refusal), "token_over"
                status = grpc.StatusCode[error.refusal.status.value]
        self._refused[reason] += 1
        refused = None
        if method == SESSION and self._joiner is not None:
            refused = partial(_report_joiner, self._joiner, "wrong token" if shown else "no token")
        return self._refusals.make_handler(method, text, refused, status)

    def _is_scoped_token(self, value: str) -> bool:
        """Check a token for one job, and note it as the caller's.

        Raises:
            Refused: the token is not known, or over.
        """
        found = split_token(value[len(_SCHEME) :]) if value.startswith(_SCHEME) else None
        if found is None or self._check_token is None:
            return False
        self._check_token(*found)
        CALLER.set(found[0])
        return True

    def _is_token(self, value: str) -> bool:
        offered = value[len(_SCHEME) :] if value.startswith(_SCHEME) else ""
        return hmac.compare_digest(offered.encode(), self._token)


def _report_joiner(joiner: Callable[[str, str], None], why: str, peer: str) -> None:
    with contextlib.suppress(ValueError):  # it went away, and has no address any more
        joiner(parse_peer_host(peer), why)


class Refusals:
    """Refuse calls by metadata alone: no data of strangers is read.

    grpc.aio's callers see INTERNAL, and not why they were refused, where the refusal comes while
    their stream's first message is still being written. So it waits for a moment.
    """

    def __init__(self, note: Callable[[str, str, str], None] | None = None) -> None:
        self._note = note
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._log = LimitedLog(logger, "refused calls")

    def make_handler(
        self,
        method: str,
        text: str,
        refused: Callable[[str], None] | None = None,
        status: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED,
    ) -> Handler:
        """Make a refusing handler; strangers do not learn which methods exist.

        `refused` is called with the peer, as gRPC writes it.
        """

        async def refuse(_requests: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            self._log.warning("refused %.80r from %s: %s", method, context.peer(), text)
            if refused is not None:
                refused(context.peer())
            if self._note is not None:
                self._note(method, context.peer(), text)
            await self._wait()
            await context.abort(status, text)

        # The kind that fits all: a unary caller sees the status just the same.
        return grpc.stream_stream_rpc_method_handler(refuse)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        due: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(_REFUSAL_SECONDS, _release, due)
        self._waiting.append(due)
        if len(self._waiting) > _MOST_WAITING:
            _release(self._waiting.popleft())
        try:
            await due
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):  # it made room
                self._waiting.remove(due)


def _release(due: "asyncio.Future[None]") -> None:
    if not due.done():
        due.set_result(None)
