"""Pages of a coordinator's HTTP port, as curl or Prometheus gets them, and as a browser does."""

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from allhands.testing.daemon import DaemonProcess

PATIENCE = 30.0
_SHOWN = re.compile(r"page, health and metrics are at (\S+)")


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


def send(
    url: str, method: str, path: str, body: str | None = None, headers: Mapping[str, str] = {}
) -> Page:
    """Make a request, on a connection of its own."""
    where = urlsplit(url)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return Page(reply.status, dict(reply.getheaders()), reply.read().decode())
    finally:
        connection.close()


class Visitor:
    """A browser without a screen, which has opened the page by a link."""

    def __init__(self, link: str) -> None:
        """Use up a link."""
        where = urlsplit(link)
        self.url = f"{where.scheme}://{where.netloc}"
        self.code = parse_qs(where.fragment)["link"][0]
        opened = send(self.url, "POST", "/session", self.code)
        assert opened.status == 204, opened.text
        self.cookie = opened.headers["set-cookie"]

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie.partition(";")[0]}

    def get(self, path: str, **headers: str) -> Page:
        return send(self.url, "GET", path, headers={**self.headers, **headers})

    @contextmanager
    def follow(self, job: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a stream of events, each its name with its data."""
        where = urlsplit(self.url)
        assert where.hostname is not None
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        try:
            connection.request("GET", f"/stream?job={quote(job)}", headers=self.headers)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            yield _read_events(reply)
        finally:
            connection.close()


def _read_events(reply: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := reply.readline().decode():
        if line.startswith("event: "):
            name = line.removeprefix("event: ").strip()
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def follow_until(events: Iterator[tuple[str, Any]], *keys: str) -> dict[str, Any]:
    """Read events of a job until all parts of these keys are known; return all parts."""
    parts: dict[str, Any] = {}
    for name, data in events:
        if name == "job":
            parts = {**({} if data["reset"] else parts), **data["parts"]}
            if all(key in parts for key in keys):
                return parts
    raise AssertionError(f"the stream ended with {sorted(parts)}")
