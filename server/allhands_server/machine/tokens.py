"""Tokens that open one job to some verbs: made, used, revoked.

The machine knows the digest of a token's secret, never the secret. Times are of the wall clock, in
seconds since 1970, as a token may outlive the daemon and its host's uptime; callers give them.
"""

import hmac
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Literal, get_args

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import (
    ChangeRecorder,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    Undo,
)
from allhands_server.machine.effects import Answer, Effect
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import check_job
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import CreateToken, ListTokens, RevokeToken
from allhands_server.machine.values import TokenView

Verb = Literal["read", "write", "join", "admin"]
VERBS: tuple[str, ...] = get_args(Verb)
ALL_JOBS = "*"
"""In the place of a job's name, which cannot be this."""
MOST_TOKENS = 10_000

TokenChange = TokenCreated | TokenUsed | TokenRevoked
TokenRequest = CreateToken | ListTokens | RevokeToken


@dataclass(slots=True)
class _Token:
    created: TokenCreated
    members: list[str] = field(default_factory=list)
    """Ids of those who have joined with it."""

    def has_expired(self, at: float) -> bool:
        return 0 < self.created.expires_at <= at

    @property
    def has_joins_left(self) -> bool:
        return not self.created.max_joins or len(self.members) < self.created.max_joins


class Tokens:
    """All tokens of a coordinator but the cluster's own."""

    def __init__(self, recorder: ChangeRecorder, has_member: Callable[[str, str], bool]) -> None:
        """`has_member` says whether a job has a member of that id now."""
        self._recorder = recorder
        self._has_member = has_member
        self._tokens: dict[str, _Token] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    # ------------------------------------------------------------ requests

    def submit(self, ticket: int, request: TokenRequest) -> list[Effect]:
        """Carry out a request.

        Raises:
            Refused: it makes no sense; nothing was changed.
        """
        match request:
            case CreateToken():
                return self._create(ticket, request)
            case RevokeToken():
                return self._revoke(ticket, request)
            case ListTokens():
                return [Answer(ticket, self._list_views())]

    def _create(self, ticket: int, request: CreateToken) -> list[Effect]:
        """Add a token; expired ones make room."""
        if request.job != ALL_JOBS:
            check_job(request.job)
        if not request.verbs or not set(request.verbs) <= set(VERBS):
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"the verbs of a token are among {join_names(VERBS, quoted=False)}, "
                f"not {join_names(request.verbs)}",
            )
        if not request.id or request.id in self._tokens or len(request.digest) != 32:
            raise Refused(Status.INVALID_ARGUMENT, "a token has an id of its own and a digest")
        if request.max_joins < 0 or not request.expires_at >= 0:
            raise Refused(Status.INVALID_ARGUMENT, "a token's limits are not negative")
        self._drop_expired(request.at)
        if len(self._tokens) >= MOST_TOKENS:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"there are {MOST_TOKENS:,} tokens: revoke some (`allhands token revoke`)",
            )
        created = TokenCreated(
            request.id,
            request.digest,
            request.job,
            tuple(verb for verb in VERBS if verb in request.verbs),
            request.expires_at,
            request.max_joins,
        )
        self._recorder.commit(created, self)
        return [Answer(ticket, request.id)]

    def _list_views(self) -> tuple[TokenView, ...]:
        views = (
            TokenView(
                one.created.id,
                one.created.job,
                one.created.verbs,
                one.created.expires_at,
                one.created.max_joins,
                len(one.members),
            )
            for one in self._tokens.values()
        )
        return tuple(sorted(views, key=lambda view: (view.job, view.id)))

    def _revoke(self, ticket: int, request: RevokeToken) -> list[Effect]:
        if request.id not in self._tokens:
            raise Refused(
                Status.NOT_FOUND,
                f"there is no token {quote(request.id)}; `allhands token list` shows all",
            )
        self._recorder.commit(TokenRevoked(request.id), self)
        return [Answer(ticket, request.id)]

    # ------------------------------------------------------------ checks

    def check(self, id: str, digest: bytes, at: float) -> None:
        """Refuse a token that opens nothing.

        Raises:
            Refused: UNAUTHENTICATED: it is unknown, or over.
        """
        token = self._tokens.get(id)
        if token is None or not hmac.compare_digest(token.created.digest, digest):
            raise Refused(
                Status.UNAUTHENTICATED,
                f"token {quote(id)} is not known to this coordinator, or was revoked: "
                "ask for another one (`allhands token create`)",
            )
        self._check_holds(token, at)

    def check_call(self, id: str, verb: str, job: str, at: float) -> None:
        """Refuse a call that a token does not allow, of a caller who has shown it.

        Raises:
            Refused: UNAUTHENTICATED: the token is over; PERMISSION_DENIED: it is for another job or
                for other verbs.
        """
        token = self._get(id)
        self._check_holds(token, at)
        created = token.created
        if created.job not in (ALL_JOBS, job):
            what = f"job {quote(job)}" if job else "all jobs"
            raise Refused(
                Status.PERMISSION_DENIED,
                f"token {id} is for job {created.job}, and this call is about {what}",
            )
        if verb not in created.verbs and "admin" not in created.verbs:
            raise Refused(
                Status.PERMISSION_DENIED,
                f"token {id} allows to {join_names(created.verbs, quoted=False)} in job "
                f"{created.job}, and this call needs {verb}: ask for a token with that verb "
                f"(`allhands token create --verbs {verb}`)",
            )

    def get_job(self, id: str) -> str:
        """Return the job of a token, or `*`.

        Raises:
            Refused: it was revoked.
        """
        return self._get(id).created.job

    def check_join(self, id: str, at: float) -> None:
        """Refuse a join with a token that is spent; see `check_call` for the rest.

        Raises:
            Refused: UNAUTHENTICATED: it has expired, was revoked, or has been used.
        """
        token = self._get(id)
        if token.has_expired(at):
            raise _refuse_expired(id)
        if not token.has_joins_left:
            raise _refuse_used(token)

    def note_join(self, id: str, member_id: str) -> None:
        """Record that a member has joined with a token."""
        self._recorder.commit(TokenUsed(id, member_id), self)

    def _check_holds(self, token: _Token, at: float) -> None:
        """Refuse a token that has expired or is used up; members who joined with it go on."""
        has_expired = token.has_expired(at)
        if not has_expired and token.has_joins_left:
            return
        job = token.created.job
        if any(self._has_member(job, member) for member in token.members):
            return
        raise _refuse_expired(token.created.id) if has_expired else _refuse_used(token)

    def _get(self, id: str) -> _Token:
        if (token := self._tokens.get(id)) is None:
            raise Refused(Status.UNAUTHENTICATED, f"token {quote(id)} was revoked")
        return token

    def _drop_expired(self, at: float) -> None:
        over = []
        for id, token in self._tokens.items():
            if token.has_expired(at):
                try:
                    self._check_holds(token, at)
                except Refused:
                    over.append(id)
        for id in over:
            self._recorder.commit(TokenRevoked(id), self)

    # ------------------------------------------------------------ durable state

    def apply(self, change: TokenChange) -> None:
        """Make a change."""
        match change:
            case TokenCreated(id):
                self._tokens[id] = _Token(change)
            case TokenUsed(id, member):
                if (token := self._tokens.get(id)) is not None:
                    token.members.append(member)
            case TokenRevoked(id):
                self._tokens.pop(id, None)

    def make_undo(self, change: TokenChange) -> Undo | None:
        """Return the reverse of a change about to be applied; uses and revocations hold."""
        match change:
            case TokenCreated(id):
                return lambda: self.apply(TokenRevoked(id))
            case _:
                return None

    def list_changes(self) -> Iterator[TokenChange]:
        """Return changes that make the tokens of now; later changes do not matter."""
        kept = [(one.created, list(one.members)) for one in self._tokens.values()]
        for created, members in kept:
            yield created
            for member in members:
                yield TokenUsed(created.id, member)


def _refuse_expired(id: str) -> Refused:
    return Refused(
        Status.UNAUTHENTICATED,
        f"token {id} has expired: ask for another one (`allhands token create`)",
    )


def _refuse_used(token: _Token) -> Refused:
    most = token.created.max_joins
    return Refused(
        Status.UNAUTHENTICATED,
        f"token {token.created.id} is for {most:,} join{'s' if most > 1 else ''}, and has been "
        "used: ask for another one (`allhands token create`)",
    )
