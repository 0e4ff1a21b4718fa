"""Authorization of HTTP requests: the same tokens and rights as for calls by gRPC."""

import hmac

from starlette.requests import Request

from allhands_proto.authority import format_authority
from allhands_server.access import Access, RefusalReason, split_token
from allhands_server.http.connection import HAS_CERTIFICATE
from allhands_server.machine.refusals import Refused, Status

_SCHEME = "bearer "


class Authorization:
    """Checks of requests against the cluster's token and the tokens for jobs."""

    def __init__(self, access: Access, token: str, needs_certificate: bool) -> None:
        """Take the cluster's token; with `needs_certificate` callers have to show one as well."""
        self._access = access
        self._token = token.encode()
        self.needs_certificate = needs_certificate

    def check(self, request: Request, verb: str) -> None:
        """Refuse a request that needs a verb for all jobs, and note it in the audit log.

        Raises:
            Refused: UNAUTHENTICATED or PERMISSION_DENIED, or UNAVAILABLE where another daemon has
                the tokens.
        """
        method = f"{request.method} {request.url.path}"
        client = request.client
        peer = "" if client is None else format_authority(client.host, client.port)
        token: str | None = None
        try:
            token = self._find_token(request)
            if token:
                self._access.check_call(token, verb, "")
        except Refused as refused:
            if refused.refusal.status is not Status.UNAVAILABLE:
                self._access.refused[self._find_reason(request, token)] += 1
            self._access.note(token, verb, method, "", peer, f"refused: {refused}")
            raise
        self._access.note(token, verb, method, "", peer, "allowed")

    def _find_reason(self, request: Request, token: str | None) -> RefusalReason:
        if token is not None:
            return "permission"
        if _lacks_certificate(request, self.needs_certificate):
            return "certificate"
        return "wrong_token" if request.headers.get("authorization") else "no_token"

    def _find_token(self, request: Request) -> str:
        """Return the id of the caller's token; empty: the cluster's own."""
        check_certificate(request, self.needs_certificate)
        header = request.headers.get("authorization", "")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            text = "this needs the coordinator's token: send 'Authorization: Bearer TOKEN'"
            raise Refused(Status.UNAUTHENTICATED, text)
        shown = header[len(_SCHEME) :].strip()
        if hmac.compare_digest(shown.encode(), self._token):
            return ""
        if (found := split_token(shown)) is None:
            raise Refused(Status.UNAUTHENTICATED, "this is not the token of this coordinator")
        id, digest = found
        if not self._access.knows(id):
            text = "another daemon leads and has the tokens: ask that one, or show the cluster's"
            raise Refused(Status.UNAVAILABLE, text)
        self._access.check_token(id, digest)
        return id


def check_certificate(request: Request, is_needed: bool) -> None:
    """Refuse a caller without a certificate where one is needed.

    Raises:
        Refused: UNAUTHENTICATED.
    """
    if _lacks_certificate(request, is_needed):
        raise Refused(Status.UNAUTHENTICATED, "callers have to show a certificate")


def _lacks_certificate(request: Request, is_needed: bool) -> bool:
    return is_needed and not request.scope["state"][HAS_CERTIFICATE]
