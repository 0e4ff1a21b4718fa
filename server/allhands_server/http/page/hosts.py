"""Names by which browsers may reach the page.

A page of a stranger may let its own name stand for this address (DNS rebinding), and would then be
of one origin with this one. So requests for another name than those of this port are refused.
"""

import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Hosts:
    """Checks of the headers Host and Origin."""

    def __init__(self, names: Iterable[str], is_linked: Callable[[str], bool]) -> None:
        """Take hosts of the port, besides this one's own; `is_linked`: a link names this one."""
        self._names = {*_LOOPBACK, *map(str.lower, names), socket.gethostname().lower()}
        self._is_linked = is_linked

    def explain_refusal(self, host: str, origin: str | None, site: str | None) -> str:
        """Return why a request is refused; empty: it is not.

        Args:
            host: header Host, with a port or without.
            origin: header Origin; None: there is none.
            site: header Sec-Fetch-Site; None: there is none.
        """
        name = _find_name(f"//{host}")
        if not name or not (name in self._names or self._is_linked(name)):
            return (
                "this port is not known by that name: open a link of `allhands page`, asked for "
                "with the name that the browser is to use"
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "requests from pages of other origins are refused"
        if site is not None and site not in ("same-origin", "none"):
            return "requests from pages of other origins are refused"
        return ""


def _find_name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
