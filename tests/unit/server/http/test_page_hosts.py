"""Names by which the page is reached: those of strangers are refused, and other origins."""

import pytest

from allhands_server.http.page.hosts import Hosts

HOSTS = Hosts(["Node-A.example", "10.0.0.7"], {"linked.example"}.__contains__)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:7071", "127.0.0.1:7071", "[::1]:7071", "LOCALHOST:1"),
        *("node-a.example:7071", "10.0.0.7", "linked.example:80"),
    ],
)
def test_its_own_names_are_taken(host: str) -> None:
    assert HOSTS.explain_refusal(host, None, None) == ""
    assert HOSTS.explain_refusal(host, f"http://{host}", "same-origin") == ""


@pytest.mark.parametrize(
    "host", ["evil.example:7071", "", ":7071", "[", "127.0.0.1.evil.example", "10.0.0.8", "a@b"]
)
def test_other_names_are_refused(host: str) -> None:
    assert "not known by that name" in HOSTS.explain_refusal(host, None, None)


@pytest.mark.parametrize(
    ("origin", "site"),
    [
        ("http://evil.example", None),
        ("http://localhost:8080", None),  # another port is another origin
        ("null", None),
        (None, "cross-site"),
        (None, "same-site"),
    ],
)
def test_other_origins_are_refused(origin: str | None, site: str | None) -> None:
    assert "other origins" in HOSTS.explain_refusal("localhost:7071", origin, site)
