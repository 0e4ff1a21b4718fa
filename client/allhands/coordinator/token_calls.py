"""Calls about tokens for jobs: made, listed without their secrets, revoked."""

from collections.abc import Sequence
from typing import TypeVar

import grpc

from allhands.deadlines import Timeout, to_seconds
from allhands.escapes import escape_line
from allhands.tracebacks import trims_tracebacks
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


@dataclass(frozen=True, slots=True)
class TokenStatus:
    """A token for one job."""

    id: str
    job: str
    """`*`: all jobs."""
    verbs: tuple[str, ...]
    expires_at: float
    """Seconds since 1970; 0: never."""
    max_joins: int
    """0: any number."""
    joins: int
    """That have been made with it."""


def read_token_status(message: wire.TokenDescription) -> TokenStatus:
    """Read a token's description; names are escaped for terminals."""
    return TokenStatus(
        escape_line(message.id),
        escape_line(message.job),
        tuple(map(escape_line, message.verbs)),
        message.expires_at,
        message.max_joins,
        message.joins,
    )


@trims_tracebacks
class TokenCalls:
    """Calls of a client about tokens."""

    @property
    def _calls(self) -> coordinator_pb2_grpc.CoordinatorStub:
        raise NotImplementedError

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[_Request, _Reply]",
        request: _Request,
        action: str,
        timeout: Timeout | None,
        *,
        repeats: bool = True,
    ) -> _Reply:
        raise NotImplementedError

    def _require_job(self) -> str:
        raise NotImplementedError

    def create_token(
        self,
        *,
        job: str | None = None,
        verbs: Sequence[str] = ("join", "read", "write"),
        lifetime: Timeout | None = None,
        max_joins: int = 0,
        timeout: Timeout | None = None,
    ) -> str:
        """Make a token that opens one job, and return its text, which nobody can read again.

        Needs the cluster's own token.

        Args:
            job: None: the job of this client; "*": all jobs.
            verbs: among "read" and "write" (of keys), "join" (as a worker), "admin" (all of these,
                abort and delete the job).
            lifetime: seconds from now; None: without end. Members who have joined go on.
            max_joins: workers that may join with it; 0: any number.

        Raises:
            Refused, ValueError: no token can be like that.
        """
        request = wire.CreateTokenRequest(
            job=job or self._require_job(),
            verbs=verbs,
            lifetime=0.0 if lifetime is None else to_seconds(lifetime),
            max_joins=max_joins,
        )
        doing = f"create a token for job {request.job!r}"
        return self._call(self._calls.CreateToken, request, doing, timeout, repeats=False).token

    def tokens(self, *, timeout: Timeout | None = None) -> tuple[TokenStatus, ...]:
        """Return the tokens of the coordinator, by job; needs the cluster's own token."""
        request = wire.ListTokensRequest()
        reply = self._call(self._calls.ListTokens, request, "list tokens", timeout)
        return tuple(map(read_token_status, reply.tokens))

    def revoke_token(self, id: str, *, timeout: Timeout | None = None) -> None:
        """Refuse the token's callers from now on; members who have joined keep their session.

        Needs the cluster's own token.

        Raises:
            NotFound: there is no such token.
        """
        request = wire.RevokeTokenRequest(id=id)
        self._call(self._calls.RevokeToken, request, f"revoke token {id!r}", timeout, repeats=False)
