"""The pages of the HTTP port."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from allhands_server.http.readiness import Readiness

_SERVES, _DOES_NOT = 200, 503
_HEADERS = {"Cache-Control": "no-store"}


def make_app(readiness: Readiness) -> Starlette:
    """Make the application; health is open to all, as what looks after a process has no token."""

    async def show_health(request: Request) -> Response:
        return _make_text("alive")

    async def show_readiness(request: Request) -> Response:
        obstacle = readiness.find_obstacle()
        return _make_text(obstacle or "ready", _DOES_NOT if obstacle else _SERVES)

    async def show_leadership(request: Request) -> Response:
        if readiness.leads:
            return _make_text("leads")
        return _make_text("does not lead", _DOES_NOT)

    return Starlette(
        routes=[
            Route("/healthz", show_health),
            Route("/readyz", show_readiness),
            Route("/leader", show_leadership),
        ]
    )


def _make_text(text: str, status: int = _SERVES) -> Response:
    return PlainTextResponse(f"{text}\n", status, _HEADERS)
