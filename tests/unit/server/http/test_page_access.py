"""Links and sessions of the page: used once, over in time, bounded in number."""

from allhands_server.http.page import access
from allhands_server.http.page.access import LINK_SECONDS, SESSION_SECONDS, PageAccess


def open_session(made: PageAccess, token: str = "", now: float = 0.0) -> str:
    key = made.open_session(made.make_link(token, "localhost", now), now)
    assert key is not None
    return key


def test_a_link_opens_one_session_with_the_rights_of_its_token() -> None:
    made = PageAccess()
    code = made.make_link("t1", "Node-A", 0.0)
    key = made.open_session(code, 1.0)
    assert key is not None
    assert key != code
    found = made.find_session(key, 2.0)
    assert found is not None
    assert (found.token, found.host) == ("t1", "node-a")
    assert made.open_session(code, 2.0) is None
    assert made.find_session(code, 2.0) is None
    assert made.open_session(key, 2.0) is None


def test_links_and_sessions_end_in_time() -> None:
    made = PageAccess()
    late = made.make_link("", "x", 0.0)
    assert made.open_session(late, LINK_SECONDS) is None
    key = open_session(made, now=10.0)
    assert made.find_session(key, 9.0 + SESSION_SECONDS) is not None
    assert made.find_session(key, 10.0 + SESSION_SECONDS) is None
    ended = open_session(made)
    made.close_session(ended)
    made.close_session(ended)
    assert made.find_session(ended, 1.0) is None


def test_what_was_never_given_out_opens_nothing() -> None:
    made = PageAccess()
    open_session(made)
    for wrong in ("", "x", "x" * 43, "x" * 100_000):
        assert made.open_session(wrong, 0.0) is None
        assert made.find_session(wrong, 0.0) is None


def test_the_oldest_of_one_token_make_room_and_those_of_others_stay() -> None:
    made = PageAccess()
    of_other = made.make_link("other", "x", 0.0)
    codes = [made.make_link("t", "x", 0.0) for _ in range(access.MOST_LINKS + 1)]
    assert made.open_session(codes[0], 0.0) is None
    assert made.open_session(codes[1], 0.0) is not None
    assert made.open_session(of_other, 0.0) is not None
    keys = [open_session(made, "t") for _ in range(access.MOST_SESSIONS)]
    assert all(made.find_session(key, 0.0) for key in keys)
    open_session(made, "t")
    assert made.find_session(keys[0], 0.0) is None


def test_a_host_is_known_while_something_is_for_it() -> None:
    made = PageAccess()
    made.make_link("", "node-a", 0.0)
    assert made.knows_host("node-a", 1.0)
    assert not made.knows_host("node-b", 1.0)
    assert not made.knows_host("node-a", LINK_SECONDS)
