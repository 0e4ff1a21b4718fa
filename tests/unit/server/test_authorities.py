"""HOST:PORT as people write it."""

import pytest

from allhands_proto.authority import format_authority
from allhands_server.authorities import parse_authority


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:1", ("h", 1)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[::1]:70", ("::1", 70)),
        ("[fe80::1%eth0]:5", ("fe80::1%eth0", 5)),
        *((text, None) for text in ("h", "::1", "[::1]", "", ":1", "h:", "h:x", "h:70000")),
        *((text, None) for text in ("::1:70x", "[h]:1", "[::1:1", "a b:1", "ah://h:1", "u@h:1")),
    ],
)
def test_an_authority_is_a_host_with_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert parse_authority(text) == found
    if found is not None:
        assert format_authority(*found) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", ("h", 9)),
        ("h:1", ("h", 1)),
        ("::1", ("::1", 9)),
        ("[::1]", ("::1", 9)),
        ("[::1]:1", ("::1", 1)),
        ("h:", None),
        ("a,b", None),
    ],
)
def test_the_port_may_be_missing_where_there_is_a_default(
    text: str, found: tuple[str, int] | None
) -> None:
    assert parse_authority(text, 9) == found
