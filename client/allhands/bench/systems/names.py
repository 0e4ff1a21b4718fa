"""Names of the benchmarked systems, as they stand in options and reports."""

from collections.abc import Mapping

UNRECORDED = "allhands-unrecorded"
ENCRYPTED = "allhands-tls"
TORCH = "allhands-torch"

BACKENDS: Mapping[str, str] = {"allhands-socket": "socket", "allhands-grpc": "grpc"}
POLICIES: Mapping[str, Mapping[str, object]] = {
    "allhands-retryable": {"retryable": True},
    "allhands-shrinking": {"on_failure": "shrink"},
    "allhands-verified": {"verify": True},
}
"""allhands with options of `init_process_group` that make every call safer."""
AWAITED = ("allhands-asyncio", "allhands-uvloop")
"""Calls of allhands awaited on a running event loop: asyncio's own, and uvloop's."""
ALLHANDS = (
    *("allhands", "allhands-arena", "allhands-persistent", UNRECORDED, ENCRYPTED),
    *(*BACKENDS, *POLICIES, *AWAITED, TORCH),
)
"""allhands on any arrays; on its own; with calls made ready once; without the flight recorder; with
TLS between hosts; over each kind of links alone; with safer calls; awaited; as the backend of
torch.distributed."""
MPI = ("openmpi", "mpich")
TCP = "tcp"
"""A loop in C over one TCP connection: the bound of two ranks on two hosts."""
PEERS = ("gloo", *MPI, TCP)
