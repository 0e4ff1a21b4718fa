"""Access to the page: one-time links, and the sessions of browsers that have used one.

A link is asked for with a token, and opens the page once with the rights of that token. What opens
it, and what keeps it open, are random and known here by their digests alone. Times are passed in.
"""

import hashlib
import secrets

from allhands_proto.quick_dataclass import dataclass

LINK_SECONDS = 60.0
SESSION_SECONDS = 12 * 3600.0
MOST_LINKS = 8
"""Unused links of one token; a further one takes the place of the oldest."""
MOST_SESSIONS = 32
"""Sessions of one token; a further one takes the place of the oldest."""
LONGEST_SECRET = 64
"""Characters of a code or key; those made here have 43."""
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Grant:
    """What a link or a session opens."""

    token: str
    """Id of the token that it was asked for with; empty: the cluster's own."""
    host: str
    """By which browsers reach the page."""
    until: float


class PageAccess:
    """Links and sessions, in bounded number."""

    def __init__(self) -> None:
        self._links: dict[bytes, Grant] = {}  # by digest, oldest first
        self._sessions: dict[bytes, Grant] = {}

    def make_link(self, token: str, host: str, now: float) -> str:
        """Return a code that opens a session once, within LINK_SECONDS."""
        return _add(self._links, Grant(token, host.lower(), now + LINK_SECONDS), MOST_LINKS, now)

    def open_session(self, code: str, now: float) -> str | None:
        """Use up a code; return the key of its session. None: it opens nothing (any more)."""
        if (link := _find(self._links, code, now)) is None:
            return None
        del self._links[_digest(code)]
        grant = Grant(link.token, link.host, now + SESSION_SECONDS)
        return _add(self._sessions, grant, MOST_SESSIONS, now)

    def find_session(self, key: str, now: float) -> Grant | None:
        """Return what a session's key opens; None: there is no such session (any more)."""
        return _find(self._sessions, key, now)

    def close_session(self, key: str) -> None:
        """Make a session's key useless. Idempotent."""
        self._sessions.pop(_digest(key), None)

    def knows_host(self, host: str, now: float) -> bool:
        """Return whether a link or session is for this host, in lower case."""
        grants = (*self._links.values(), *self._sessions.values())
        return any(one.host == host and now < one.until for one in grants)


def _add(grants: dict[bytes, Grant], grant: Grant, most: int, now: float) -> str:
    """Add a grant under a new secret, which is returned; drop what is over, or too many."""
    for digest in [digest for digest, one in grants.items() if one.until <= now]:
        del grants[digest]
    same = [digest for digest, one in grants.items() if one.token == grant.token]
    for digest in same[: max(0, len(same) + 1 - most)]:
        del grants[digest]
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    grants[_digest(secret)] = grant
    return secret


def _find(grants: dict[bytes, Grant], secret: str, now: float) -> Grant | None:
    if len(secret) > LONGEST_SECRET:
        return None
    found = grants.get(_digest(secret))
    return found if found is not None and now < found.until else None


def _digest(secret: str) -> bytes:
    """Return what a secret is kept by: how long a look-up takes tells nothing of the secret."""
    return hashlib.sha256(secret.encode()).digest()
