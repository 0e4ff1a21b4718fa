"""Limits on the size and form of input from the network."""

import re

from allhands_server.machine.formatting import quote
from allhands_server.machine.refusals import Refused, Status

LONGEST_NAME = 256
LONGEST_SECTION = 128
"""Characters of a section's name with those around it; clients cut them."""
LONGEST_KEY = 4 * 1024
LARGEST_VALUE = 4 * 1024 * 1024
LARGEST_REPLY = 7 * 1024 * 1024
"""Below the largest gRPC message, with room for what is around the values."""
RANGE_RECORDS = 10_000
"""Records of a reply, at most; whoever wants more asks again."""
SORTED_KEYS = 100_000
"""Keys of a range that are sorted by something else than the key."""
DELETED_KEYS = 100_000
"""Keys that one request deletes."""
TXN_OPERATIONS = 128
"""Conditions of a transaction, and operations of each of its branches."""
REQUEST_KEYS = 100_000
"""Keys, pairs or participants that one request names."""
LEASE_TTL_LEAST = 0.1
LEASE_TTL_MOST = 1e9
"""Seconds."""
WINDOW_DEFAULT = 5.0
WINDOW_LEAST = 0.2
WINDOW_MOST = 3600.0
LONGEST_ERROR = 4_000
"""Of what a member says why it leaves, so many characters are kept."""
LONGEST_STACK = 4_096
LARGEST_WORLD = 200_000
LARGEST_MEMBERS = 56 << 20
"""Bytes of what the members of one world say of themselves: below the largest frame of the log."""
LATEST_CLOCK = 1e12
"""Seconds: no clock that counts from when a machine was started says more."""

_BYTES_PER_CHARACTER = 4  # of UTF-8, at most: so short keys need no counting

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*", re.ASCII)


def check_job(name: str) -> None:
    """Refuse an invalid job name."""
    if not name:
        raise Refused(Status.INVALID_ARGUMENT, "the name of the job is empty")
    if len(name) > LONGEST_NAME:
        raise _too_long("the name of the job", name, LONGEST_NAME)
    if not _JOB.fullmatch(name):
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"{quote(name)} is no name for a job: "
            "use letters, digits and . _ : @ + -, beginning with a letter or digit",
        )


def check_name(what: str, name: str, *, empty: bool = False) -> None:
    """Refuse an empty (unless allowed), too long or unprintable name."""
    if not name and not empty:
        raise Refused(Status.INVALID_ARGUMENT, f"{what} is empty")
    if len(name) > LONGEST_NAME:
        raise _too_long(what, name, LONGEST_NAME)
    if not name.isprintable():
        raise Refused(
            Status.INVALID_ARGUMENT, f"{what} holds unprintable characters: {quote(name)}"
        )


def check_section(name: str) -> None:
    """Refuse a too long or unprintable name of a program's section; empty: in none."""
    if len(name) > LONGEST_SECTION:
        raise _too_long("the section", name, LONGEST_SECTION)
    check_name("the section", name, empty=True)


def check_key(key: str) -> None:
    if not key:
        raise Refused(Status.INVALID_ARGUMENT, "the key is empty")
    if len(key) * _BYTES_PER_CHARACTER > LONGEST_KEY and len(key.encode()) > LONGEST_KEY:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"the key {quote(key)} has {len(key.encode()):,} bytes; {LONGEST_KEY:,} is the most",
        )


def check_value(key: str, nbytes: int, most: int = LARGEST_VALUE) -> None:
    if nbytes > most:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"the value of {quote(key)} would have {nbytes:,} bytes; {most:,} is the most",
        )


def check_reply(nbytes: int) -> None:
    if nbytes > LARGEST_REPLY:
        raise Refused(
            Status.RESOURCE_EXHAUSTED,
            f"the reply would have {nbytes:,} bytes; {LARGEST_REPLY:,} is the most: "
            "ask for less at once",
        )


def _too_long(what: str, name: str, most: int) -> Refused:
    return Refused(
        Status.INVALID_ARGUMENT,
        f"{what} has {len(name):,} characters; {most:,} is the most: {quote(name)}",
    )
