"""Digest of the names of a barrier's participants, in place of the names in most requests.

With n participants n lists of n names would travel. So above a number of names each request has
their count, digest and first few, and only those first few participants send the list.
"""

import hashlib
from collections.abc import Sequence

LARGEST_UNDIGESTED = 64
"""Up to so many names are sent with each request."""
LISTERS = 4
"""Participants, the first in order, that send the list."""


def digest_participants(ordered: Sequence[str]) -> bytes:
    """Return the SHA-256 of names in order, each with its length in bytes before it."""
    digest = hashlib.sha256()
    for name in ordered:
        encoded = name.encode()
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.digest()
