"""The pages of the HTTP port."""

import asyncio
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from allhands_server.http.metrics import Snapshot, encode
from allhands_server.http.readiness import Readiness
from allhands_server.machine.refusals import Refused, Status

_SERVES, _DOES_NOT = 200, 503
_STATUSES = {
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.UNAVAILABLE: _DOES_NOT,
}
_HEADERS = {"Cache-Control": "no-store"}


def make_app(readiness: Readiness, more: Sequence[Route] = ()) -> Starlette:
    """Make the application, with further routes.

    Health is open to all, as what looks after a process has no token.
    """

    async def show_health(request: Request) -> Response:
        return _make_text("alive")

    async def show_readiness(request: Request) -> Response:
        obstacle = readiness.find_obstacle()
        return _make_text(obstacle or "ready", _DOES_NOT if obstacle else _SERVES)

    async def show_leadership(request: Request) -> Response:
        if readiness.leads:
            return _make_text("leads")
        return _make_text("does not lead", _DOES_NOT)

    scraping = asyncio.Lock()

    async def show_metrics(request: Request) -> Response:
        if (served := readiness.served) is None:
            return _make_text(readiness.find_obstacle(), _DOES_NOT)
        try:
            served.authorization.check(request, "read")
        except Refused as refused:
            return _refuse(refused)
        async with scraping:  # one at a time: who scrapes more often waits
            snapshot = Snapshot(served.coordinator, served.access, served.engine)
            accept = request.headers.get("accept", "")
            content, content_type = await asyncio.to_thread(encode, snapshot, accept)
        return Response(content, headers={**_HEADERS, "Content-Type": content_type})

    return Starlette(
        routes=[
            Route("/healthz", show_health),
            Route("/readyz", show_readiness),
            Route("/leader", show_leadership),
            Route("/metrics", show_metrics),
            *more,
        ]
    )


def _refuse(refused: Refused) -> Response:
    answer = _make_text(refused.refusal.text, _STATUSES[refused.refusal.status])
    if refused.refusal.status is Status.UNAUTHENTICATED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _make_text(text: str, status: int = _SERVES) -> Response:
    return PlainTextResponse(f"{text}\n", status, _HEADERS)
