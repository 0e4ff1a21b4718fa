"""Times of keep-alives, the same for both clients."""

_PART = 3
"""A lease is kept alive when one of so many parts of its time is over."""
_AGAIN_PART = 20
"""After a failure, so soon again."""


def find_keep_alive_pause(ends: float, ttl: float, now: float) -> float | None:
    """Return the seconds until the next keep-alive of a lease; None: the lease is over.

    Args:
        ends: when the lease is over by this process's clock, which is never after its end at the
            coordinator: the time counts from before the last call that went well.
    """
    if now >= ends:
        return None
    wanted = ends - ttl + ttl / _PART
    return wanted - now if wanted > now else min(ttl / _AGAIN_PART, ends - now)
