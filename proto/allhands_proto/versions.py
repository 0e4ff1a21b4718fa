"""Versions of the protocol: the range that a side speaks, and whether two have one in common.

Both sides say theirs in the first message of a conversation. A side that says none is of the time
before versions, which is version 1.
"""

from typing import Any

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Versions:
    """Range of versions that a side speaks, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"version {self.newest}"
        return f"versions {self.oldest} to {self.newest}"


OWN = Versions(1, 2)
"""1: the wire before versions; 2: with them. Additions that older sides ignore need no new one."""
PEERS = Versions(7, 7)
"""Of the links and the shared memory between ranks. 1 stands for several: they had no number, and
were not told apart. 3: messages up to 1 MiB go unasked. 4: the digest of a checked frame has a long
payload's GMAC in its place. 5: it is a BLAKE2b. 6: calls of 1 to 8 MiB go in pieces, messages to a
point of up to 4 MiB unasked. 7: of two ranks over fast links up to 256 MiB, in fewer."""
UNNAMED = Versions(1, 1)
"""Of a side that says none."""


def write_versions(message: Any, own: Versions | None = None) -> None:
    """Set this side's versions in a first message; None: those for a coordinator."""
    own = OWN if own is None else own
    message.min_version, message.max_version = own.oldest, own.newest


def read_versions(message: Any) -> Versions:
    """Return the versions in the first message of another side."""
    if not message.max_version:
        return UNNAMED
    return Versions(message.min_version, message.max_version)


def explain_mismatch(message: Any, here: str, there: str, own: Versions | None = None) -> str:
    """Return why two sides have no version in common, and what to upgrade; empty: they have one.

    Args:
        message: the first message of the other side.
        here: name of this side, as in "this worker".
        there: name of the other side, as in "the coordinator at h:1".
        own: versions of this side; None: those for a coordinator.
    """
    own, other = OWN if own is None else own, read_versions(message)
    if max(own.oldest, other.oldest) <= min(own.newest, other.newest):
        return ""
    older = here if own.newest < other.oldest else there
    return (
        f"no version of the protocol in common: {here} speaks {own}, {there} {other}; "
        f"{older} is older: upgrade allhands there"
    )
