"""The HTTP port of a coordinator: open from before the coordinator has its state."""

from allhands_server.access import Access
from allhands_server.authorities import WILDCARDS, format_authority
from allhands_server.coordinator import Coordinator
from allhands_server.http.app import make_app
from allhands_server.http.authorization import Authorization
from allhands_server.http.listener import HttpListener
from allhands_server.http.readiness import Readiness
from allhands_server.http.served import Served
from allhands_server.rpc.certificates import ServerCertificates


class HttpPort:
    """A listening HTTP port, until `close`; all methods belong to the running loop."""

    def __init__(self, address: tuple[str, int], tls: ServerCertificates | None) -> None:
        """Listen, with the certificate of the coordinator's other ports, if they have one.

        Raises:
            OSError: the port is taken, or the host is not of this machine.
        """
        host, port = address
        self._tls = tls
        self._readiness = Readiness()
        app = make_app(self._readiness)
        self._listener = HttpListener(app, None if tls is None else tls.get_open_context)
        self._listener.listen(host, port)
        shown = "localhost" if host in WILDCARDS else host
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{format_authority(shown, self._listener.port)}"

    def serve(self, coordinator: Coordinator, access: Access, token: str, engine: str) -> None:
        """Show a coordinator, to callers with its token; `engine` is that of its log."""
        needs_certificate = self._tls is not None and self._tls.needs_client_certificate
        authorization = Authorization(access, token, needs_certificate)
        self._readiness.served = Served(coordinator, access, authorization, engine)

    async def close(self) -> None:
        """Stop listening, and end the connections. Idempotent."""
        await self._listener.close()
