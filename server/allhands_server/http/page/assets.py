"""Files of the page, as they are in the package, with the headers that browsers are to obey."""

from importlib import resources

from starlette.responses import Response

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of all answers of the page. Nothing is run or shown but files of this port, no text becomes HTML,
and no other page may show this one."""
INDEX = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""By ending; files with others are not served."""


class Assets:
    """Files of the page, in memory: no path of a request reaches the file system."""

    def __init__(self) -> None:
        folder = resources.files("allhands_server.http.page") / "static"
        self._files = {
            one.name: (one.read_bytes(), _TYPES[ending])
            for one in folder.iterdir()
            if (ending := one.name.rpartition(".")[2]) in _TYPES
        }

    def make_response(self, name: str) -> Response | None:
        """Return a file; None: there is none of that name."""
        if name not in self._files:
            return None
        content, content_type = self._files[name]
        return Response(content, headers={**HEADERS, "Content-Type": content_type})
