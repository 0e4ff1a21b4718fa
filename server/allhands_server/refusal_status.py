"""gRPC status numbers and bounded texts of refusals, for both ports."""

from allhands_server.machine.refusals import Refusal

CODES = {
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNAVAILABLE": 14,
    "UNAUTHENTICATED": 16,
}
"""Numbers of gRPC's statuses: the key-value port sends these without gRPC."""

_LARGEST_TEXT = 1024  # bytes


def bound_text(refusal: Refusal) -> str:
    """Return the text, cut to the size of gRPC's trailers."""
    return refusal.text.encode()[:_LARGEST_TEXT].decode(errors="ignore")
