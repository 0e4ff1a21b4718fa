"""Limits of calls over links that borrow the event loop for their caller's thread."""

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class InlineLimits:
    """Size of a call that is worth it, and time for which it may hold the loop."""

    seconds: float
    """Longest hold of the loop by a call, or by each step of a composite one."""
    nbytes: int
    """Of all arrays of a call, over any links."""
    step_bytes: int
    """Likewise of a composite call and of each of its steps, which change threads twice on the
    loop."""
    takes_staged: bool
    """Whether a larger call is taken where the core makes it, on a copy of its outputs."""


BEGUN_MESSAGE_BYTES = 128 << 10
"""Of a message over links that is begun: a larger one waits for room on its way, and its sender may
be about to receive as much."""
MESSAGE_SECONDS = 0.0003
"""Longest hold of the loop by a thread that waits for a message it has begun to receive: what this
rank sends may need the loop."""
WAITED = InlineLimits(0.002, 64 << 10, 4 << 20, takes_staged=True)
"""Of a call that its thread waits for: most small ones end within a tenth of the time."""
AWAITED = InlineLimits(0.0003, 64 << 10, 128 << 10, takes_staged=False)
"""Of a call on a thread with an event loop of its own, which is to go on soon."""
