"""What may be given as a timeout."""

import math
from datetime import timedelta
from typing import TypeAlias

Timeout: TypeAlias = float | timedelta
"""Seconds, or a timedelta; never endless."""


def seconds(timeout: Timeout) -> float:
    """Return the timeout in seconds.

    Raises:
        ValueError: it is negative, endless, or no number.
    """
    length = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not (math.isfinite(length) and length >= 0):
        raise ValueError(f"a timeout is a number of seconds from 0 up, not {timeout!r}")
    return length
