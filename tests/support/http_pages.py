"""Pages of a coordinator's HTTP port, as curl or Prometheus gets them."""

import http.client
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from allhands.testing.daemon import DaemonProcess

PATIENCE = 30.0
_SHOWN = re.compile(r"health and metrics are at (\S+)")


@dataclass(frozen=True)
class Page:
    status: int
    headers: Mapping[str, str]
    text: str


def find_url(daemon: DaemonProcess) -> str:
    """Return where a daemon says that its HTTP port is."""
    for line in daemon.log_lines:
        if found := _SHOWN.search(line):
            return found[1]
    raise AssertionError("the daemon has no HTTP port")


def fetch(
    url: str, path: str, token: str = "", accept: str = "", tls: ssl.SSLContext | None = None
) -> Page:
    """Get a page, on a connection of its own."""
    where = urlsplit(url)
    assert where.hostname is not None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if accept:
        headers["Accept"] = accept
    connection = (
        http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        if tls is None
        else http.client.HTTPSConnection(where.hostname, where.port, timeout=PATIENCE, context=tls)
    )
    try:
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return Page(reply.status, dict(reply.getheaders()), reply.read().decode())
    finally:
        connection.close()
