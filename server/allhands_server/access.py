"""Access of callers: which token they have shown, and whether it allows a call."""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from allhands_proto.kv_verbs import KV_VERBS
from allhands_server.coordinator import Coordinator
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.tokens import ALL_JOBS

if TYPE_CHECKING:
    from allhands_server.audit import AuditLog

SCOPED_PREFIX = "aht_"
"""Of the text of a token that is not the cluster's own: then come its id, `_`, and its secret."""

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""Id of the token that the caller of the RPC under way has shown; empty: the cluster's own."""

RefusalReason: TypeAlias = Literal[
    "no_token", "wrong_token", "token_over", "permission", "certificate", "silent"
]

_SERVICE = "/allhands.v1.Coordinator/"
_CLUSTER = "cluster"
_ANY = "any"
_READING = {
    *("Get", "Wait", "MultiGet", "List", "Count", "QueueLength", "Range", "Watch"),
    *("LeaseTimeToLive", "LeaseList", "ListBarriers"),
}
_METHODS: Final[Mapping[str, str]] = {
    **{verb.method: "write" for verb in KV_VERBS.values()},
    **dict.fromkeys(_READING, "read"),
    "DescribeJob": "read",
    "CollectReports": "read",
    "ListEvents": "read",
    "OpenPage": "read",
    "ListJobs": _ANY,
    "DescribeCoordinator": _ANY,
    "Session": "join",
    "AwaitVerdict": "join",
    "Reform": "join",
    "MonitoredBarrier": "join",
    "ReportExit": "join",
    "AbortJob": "admin",
    "DeleteJob": "admin",
    "CreateToken": _CLUSTER,
    "ListTokens": _CLUSTER,
    "RevokeToken": _CLUSTER,
    "SaveSnapshot": _CLUSTER,
}


def find_verb(method: str) -> str:
    """Return the verb that a gRPC method needs; what is not known needs the cluster's token."""
    return _METHODS.get(method.removeprefix(_SERVICE), _CLUSTER)


def split_token(text: str) -> tuple[str, bytes] | None:
    """Return id and digest of a token; None: it is not of this form."""
    if not text.startswith(SCOPED_PREFIX):
        return None
    id, _, secret = text.removeprefix(SCOPED_PREFIX).partition("_")
    return id, hashlib.sha256(secret.encode()).digest()


class Access:
    """Checks of the calls of both ports, each noted in the audit log if there is one."""

    def __init__(self, coordinator: Coordinator, audit: "AuditLog | None" = None) -> None:
        self._coordinator = coordinator
        self._audit = audit
        self.refused: Counter[RefusalReason] = Counter()
        """Callers and calls that were refused, by reason."""

    @property
    def is_audited(self) -> bool:
        return self._audit is not None

    def close(self) -> None:
        """Close the audit log. Idempotent."""
        if self._audit is not None:
            self._audit.close()

    def check_token(self, id: str, digest: bytes) -> None:
        """Refuse a token that is not known, or over.

        A follower lets it pass: it refuses all that a token could open.

        Raises:
            Refused: says which, and what to do.
        """
        if (tokens := self._coordinator.tokens) is not None:
            tokens.check(id, digest, time.time())

    def knows(self, token: str) -> bool:
        """Return whether tokens are checked here, as the leader and a single daemon do."""
        return not token or self._coordinator.tokens is not None

    def sees(self, token: str, job: str) -> bool:
        """Return whether a caller may know of a job."""
        if not token or (tokens := self._coordinator.tokens) is None:
            return not token
        return tokens.get_job(token) in (ALL_JOBS, job)

    def check_call(self, token: str, verb: str, job: str) -> None:
        """Refuse a call that a token does not allow, without a line of the audit log.

        Raises:
            Refused: says why, and what to do.
        """
        if (tokens := self._coordinator.tokens) is not None:
            tokens.check_call(token, verb, job, time.time())

    def check_rpc(self, method: str, message: Any, peer: str) -> None:
        """Refuse an RPC that the caller's token does not allow.

        Raises:
            Refused: says what is missing, and how to get it.
        """
        token = CALLER.get()
        if not token and self._audit is None:
            return
        name = method.removeprefix(_SERVICE)
        if name == "Session":  # the message is the first one of the stream
            field = message.WhichOneof("request")
            message = getattr(message, field) if field else message
        self.check(token, name, getattr(message, "job", ""), peer)

    def check(self, token: str, method: str, job: str, peer: str) -> None:
        """Refuse a call of a method about a job; see `check_rpc`."""
        verb = find_verb(method)
        try:
            if token:
                self._check_scoped(token, verb, job)
        except Refused as refused:
            self.refused["permission"] += 1
            self.note(token, verb, method, job, peer, f"refused: {refused}")
            raise
        self.note(token, verb, method, job, peer, "allowed")

    def note(
        self, token: str | None, verb: str, method: str, job: str, peer: str, outcome: str
    ) -> None:
        """Write a line of the audit log; token None: nobody knows who that is."""
        if self._audit is not None:
            who = "unknown" if token is None else f"token {token}" if token else "cluster token"
            self._audit.write(
                who=who, verb=verb, method=method, job=job, peer=peer, outcome=outcome
            )

    def _check_scoped(self, token: str, verb: str, job: str) -> None:
        if verb == _CLUSTER:
            raise Refused(
                Status.PERMISSION_DENIED,
                f"token {token} is for one job, and this call needs the cluster's own token",
            )
        if verb != _ANY:
            self.check_call(token, verb, job)
