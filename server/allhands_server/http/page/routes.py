"""Paths of the page: its files, sessions, the stream of changes, and reports of ranks."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from allhands_proto.authority import format_authority
from allhands_proto.quick_dataclass import dataclass
from allhands_server.http.authorization import check_certificate
from allhands_server.http.connection import BEGIN_STREAM
from allhands_server.http.page.access import LONGEST_SECRET, Grant, PageAccess
from allhands_server.http.page.assets import HEADERS, INDEX, Assets
from allhands_server.http.page.hosts import Hosts
from allhands_server.http.page.records import MOST_OPERATIONS, describe_reports, read_ranks
from allhands_server.http.page.stream import MOST_STREAMS, Streams
from allhands_server.http.readiness import Readiness
from allhands_server.http.served import Served
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import CollectReports

_COLLECT_SECONDS = 5.0
_STATUSES = {
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.INVALID_ARGUMENT: 400,
    Status.FAILED_PRECONDITION: 409,
    Status.RESOURCE_EXHAUSTED: 503,
    Status.UNAVAILABLE: 503,
}
_ASK = "ask for a link with `allhands page`"
_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Visit:
    """A request with a session."""

    served: Served
    grant: Grant
    key: str
    peer: str


class Page:
    """Handlers of the page's requests."""

    def __init__(
        self,
        readiness: Readiness,
        access: PageAccess,
        hosts: Hosts,
        name_cookie: Callable[[], str],
    ) -> None:
        """`name_cookie` names the cookie with a session's key; with `__Host-` it wants TLS."""
        self._readiness = readiness
        self._access = access
        self._hosts = hosts
        self._name_cookie = name_cookie
        self._assets = Assets()
        self._streams = Streams()

    def list_routes(self) -> list[Route]:
        """Return the routes, each with its checks."""
        return [
            Route("/", self._guard(self._show_index, is_entry=True)),
            Route("/page/{name}", self._guard(self._show_file)),
            Route("/session", self._guard(self._open_session), methods=["POST"]),
            Route("/session", self._guard(self._show_session), methods=["GET"]),
            Route("/session", self._guard(self._close_session), methods=["DELETE"]),
            Route("/stream", self._guard(self._stream)),
            Route("/reports", self._guard(self._show_reports)),
        ]

    def _guard(self, handle: _Handler, *, is_entry: bool = False) -> _Handler:
        """Return the handler behind the checks of names and origins; links may lead to an entry."""

        async def answer(request: Request) -> Response:
            headers = request.headers
            site = None if is_entry else headers.get("sec-fetch-site")
            reason = self._hosts.explain_refusal(
                headers.get("host", ""), headers.get("origin"), site
            )
            if reason:
                return _say(reason, 403)
            try:
                return await handle(request)
            except Refused as refused:
                return _say(refused.refusal.text, _STATUSES.get(refused.refusal.status, 500))

        return answer

    # ------------------------------------------------------------ files

    async def _show_index(self, request: Request) -> Response:
        found = self._assets.make_response(INDEX)
        assert found is not None, "the package has the page"
        return found

    async def _show_file(self, request: Request) -> Response:
        found = self._assets.make_response(request.path_params["name"])
        return found or _say("there is no such file", 404)

    # ------------------------------------------------------------ sessions

    async def _open_session(self, request: Request) -> Response:
        """Use up the code of a link; the session's key becomes a cookie."""
        served = self._find_served(request)
        code = await _read_body(request)
        if code is None:
            return _say("this is no code of a link", 413)
        key = self._access.open_session(code, time.monotonic())
        if key is None:
            served.access.refused["wrong_token"] += 1
            return _say(f"this link has been used, or its time is over: {_ASK}", 401)
        answer = Response(status_code=204, headers=HEADERS)
        name = self._name_cookie()
        is_secure = name.startswith("__Host-")
        answer.set_cookie(name, key, secure=is_secure, httponly=True, samesite="strict")
        return answer

    async def _show_session(self, request: Request) -> Response:
        """Tell a browser whether it has a session, for which job, and the time of this host."""
        visit = self._find_visit(request)
        self._check_session(visit)
        tokens = visit.served.coordinator.tokens
        job = tokens.get_job(visit.grant.token) if visit.grant.token and tokens else "*"
        return JSONResponse({"job": job, "now": time.time()}, headers=HEADERS)

    async def _close_session(self, request: Request) -> Response:
        self._access.close_session(self._get_key(request))
        return Response(status_code=204, headers=HEADERS)

    def _get_key(self, request: Request) -> str:
        return request.cookies.get(self._name_cookie(), "")

    # ------------------------------------------------------------ what pages show

    async def _stream(self, request: Request) -> Response:
        visit = self._find_visit(request)
        job = request.query_params.get("job", "")
        if job:
            self._check(visit, request, job)
        if self._streams.count >= MOST_STREAMS:
            text = f"{MOST_STREAMS} pages are open, the most there may be: close some"
            return _say(text, 503)
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        request.scope["state"][BEGIN_STREAM]()

        def may_read(name: str) -> bool:
            try:
                _check_right(visit, name)
            except Refused:
                return False
            return True

        events = self._streams.iterate(
            visit.served.coordinator, job, may_read, lambda: self._check_session(visit)
        )
        return StreamingResponse(events, headers=HEADERS, media_type="text/event-stream")

    async def _show_reports(self, request: Request) -> Response:
        """Collect the reports of some ranks: their latest calls, and where they are."""
        visit = self._find_visit(request)
        job = request.query_params.get("job", "")
        self._check(visit, request, job)
        try:
            ranks = read_ranks(request.query_params.get("ranks", ""))
        except ValueError as error:
            return _say(str(error), 400)
        coordinator = visit.served.coordinator
        asked = CollectReports(job, MOST_OPERATIONS, ranks)
        reports = await coordinator.ask(asked, _COLLECT_SECONDS)
        if (seen := coordinator.observe(job, 0)) is None:
            return _say("there is no such job any more", 404)
        found = describe_reports(reports, seen.view, time.time(), coordinator.clock_offset)
        return JSONResponse(found, headers=HEADERS)

    # ------------------------------------------------------------ checks

    def _find_served(self, request: Request) -> Served:
        """Return the coordinator that is shown.

        Raises:
            Refused: there is none yet, or another daemon leads, or the caller has no certificate.
        """
        if (served := self._readiness.served) is None:
            raise Refused(Status.UNAVAILABLE, self._readiness.find_obstacle())
        check_certificate(request, served.authorization.needs_certificate)
        served.coordinator.check_serving()
        return served

    def _find_visit(self, request: Request) -> _Visit:
        """Return the session of a request.

        Raises:
            Refused: there is none, or as `_find_served`.
        """
        served = self._find_served(request)
        key = self._get_key(request)
        grant = self._access.find_session(key, time.monotonic())
        if grant is None:
            raise Refused(Status.UNAUTHENTICATED, f"there is no session: {_ASK}")
        client = request.client
        peer = "" if client is None else format_authority(client.host, client.port)
        return _Visit(served, grant, key, peer)

    def _check_session(self, visit: _Visit) -> None:
        """Refuse a session that is over, or whose token is.

        Raises:
            Refused: says which.
        """
        visit.served.coordinator.check_serving()
        if self._access.find_session(visit.key, time.monotonic()) is None:
            raise Refused(Status.UNAUTHENTICATED, f"the session is over: {_ASK}")
        tokens = visit.served.coordinator.tokens
        if tokens is not None and visit.grant.token:
            _check_right(visit, tokens.get_job(visit.grant.token))

    def _check(self, visit: _Visit, request: Request, job: str) -> None:
        """Refuse a request about a job that the session's token does not open, and note it.

        Raises:
            Refused: says why.
        """
        token, access = visit.grant.token, visit.served.access
        about = "read", f"{request.method} {request.url.path}", job, visit.peer
        try:
            _check_right(visit, job)
        except Refused as refused:
            access.refused["permission"] += 1
            access.note(token, *about, f"refused: {refused}")
            raise
        access.note(token, *about, "allowed")


def _check_right(visit: _Visit, job: str) -> None:
    if visit.grant.token:
        visit.served.access.check_call(visit.grant.token, "read", job)


async def _read_body(request: Request) -> str | None:
    """Return the body of a request that brings a code; None: it is longer than that."""
    content = b""
    async for piece in request.stream():
        content += piece
        if len(content) > LONGEST_SECRET:
            return None
    return content.decode(errors="replace")


def _say(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status, HEADERS)
