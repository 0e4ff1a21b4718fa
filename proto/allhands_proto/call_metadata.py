"""Metadata of gRPC calls beside the token: origins of requests, and time for late answers."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from allhands_proto.v1 import coordinator_pb2 as wire

ORIGIN_KEY: Final = "allhands-origin-bin"
GRACE_KEY: Final = "allhands-grace"
"""Seconds by which the deadline of the RPC is later than the caller's own."""
GRACE_MOST = 60.0

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


def add_call_metadata(
    metadata: Metadata, origin: wire.Origin | None = None, grace: float = 0.0
) -> Metadata:
    """Return the metadata with the origin of a call and its grace in seconds."""
    if origin is not None:
        metadata = (*metadata, (ORIGIN_KEY, origin.SerializeToString()))
    return (*metadata, (GRACE_KEY, f"{grace:g}")) if grace else metadata


def find_grace(metadata: Iterable[Sequence[str | bytes]] | None) -> float:
    """Return the seconds of grace in a call's metadata; 0: there are none that make sense."""
    for key, value in metadata or ():
        if key == GRACE_KEY:
            with contextlib.suppress(ValueError):
                if 0 < (seconds := float(value)) <= GRACE_MOST:
                    return seconds
    return 0.0
