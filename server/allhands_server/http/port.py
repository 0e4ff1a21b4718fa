"""The HTTP port of a coordinator: open from before the coordinator has its state."""

import time
from collections.abc import Sequence
from urllib.parse import urlencode, urlsplit

from allhands_proto.authority import format_authority
from allhands_server.access import Access
from allhands_server.authorities import WILDCARDS
from allhands_server.coordinator import Coordinator
from allhands_server.http.app import make_app
from allhands_server.http.authorization import Authorization
from allhands_server.http.listener import HttpListener
from allhands_server.http.page.access import LINK_SECONDS, PageAccess
from allhands_server.http.page.hosts import Hosts
from allhands_server.http.page.routes import Page
from allhands_server.http.readiness import Readiness
from allhands_server.http.served import Served
from allhands_server.rpc.certificates import ServerCertificates


class HttpPort:
    """A listening HTTP port, until `close`; all methods belong to the running loop."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ServerCertificates | None,
        names: Sequence[str] = (),
    ) -> None:
        """Listen, with the certificate of the coordinator's other ports, if they have one.

        `names` are further hosts by which browsers may reach the port, the best one first.

        Raises:
            OSError: the port is taken, or the host is not of this machine.
        """
        host, port = address
        self._tls = tls
        self._readiness = Readiness()
        self._access = PageAccess()
        hosts = Hosts((host, *names), lambda name: self._access.knows_host(name, time.monotonic()))
        page = Page(self._readiness, self._access, hosts, self._name_cookie)
        app = make_app(self._readiness, page.list_routes())
        self._listener = HttpListener(app, None if tls is None else tls.get_open_context)
        self._listener.listen(host, port)
        self._host = host if host not in WILDCARDS else names[0] if names else ""
        self._scheme = "http" if tls is None else "https"
        self.url = self._make_url("")

    def make_link(self, token: str, job: str, host: str) -> tuple[str, float]:
        """Return a link that opens the page once, and the seconds for which it does.

        It is a secret. The code is in the fragment, which browsers send nowhere.

        Args:
            token: id of the token whose rights it gives; empty: the cluster's own.
            job: to be shown first; empty: none.
            host: by which its asker reaches the coordinator; empty: this host.
        """
        url = self._make_url(host)
        shown = urlsplit(url).hostname or ""
        code = self._access.make_link(token, shown, time.monotonic())
        return f"{url}/#{urlencode({'link': code, **({'job': job} if job else {})})}", LINK_SECONDS

    def _name_cookie(self) -> str:
        """Return the name of this port's cookie: browsers send those of a host to all its ports."""
        return f"{'' if self._tls is None else '__Host-'}allhands-{self._listener.port}"

    def _make_url(self, host: str) -> str:
        """Return the port's URL; where it listens on all addresses, by the host that is given."""
        authority = format_authority(self._host or host or "localhost", self._listener.port)
        return f"{self._scheme}://{authority}"

    def serve(self, coordinator: Coordinator, access: Access, token: str, engine: str) -> None:
        """Show a coordinator, to callers with its token; `engine` is that of its log."""
        needs_certificate = self._tls is not None and self._tls.needs_client_certificate
        authorization = Authorization(access, token, needs_certificate)
        self._readiness.served = Served(coordinator, access, authorization, engine)

    async def close(self) -> None:
        """Stop listening, and end the connections. Idempotent."""
        await self._listener.close()
