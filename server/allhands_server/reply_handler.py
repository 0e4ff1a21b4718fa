"""Receivers of answers and refusals."""

import asyncio
from typing import Any, Protocol

from allhands_server.machine.refusals import Refusal, Refused


class ReplyHandler(Protocol):
    """Receiver of answers and refusals, one for each ticket; called on the coordinator's loop."""

    def on_answer(self, ticket: int, reply: Any) -> None:
        """Take the answer, of the type named by the request."""

    def on_refusal(self, ticket: int, refusal: Refusal) -> None: ...


class FutureReply:
    """Reply handler for a future."""

    def __init__(self, answer: "asyncio.Future[Any]") -> None:
        self._answer = answer

    def on_answer(self, ticket: int, reply: Any) -> None:
        if not self._answer.done():  # it may have been cancelled
            self._answer.set_result(reply)

    def on_refusal(self, ticket: int, refusal: Refusal) -> None:
        if not self._answer.done():
            self._answer.set_exception(Refused.of(refusal))
