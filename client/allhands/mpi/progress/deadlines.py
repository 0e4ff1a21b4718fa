"""Deadline of a wait for messages, and warnings long before it."""

import logging
import time
from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_PATIENCE = 10.0
"""Seconds after which a wait is reported, and again at each doubled time."""


class Deadline:
    """End of the time of a wait; logs a warning where it becomes long."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds
        self._next_warning = self._began + min(_PATIENCE, seconds / 2)
        self._has_warned = False

    @property
    def has_passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._began + self._seconds

    @property
    def seconds(self) -> float:
        """Length of the time."""
        return self._seconds

    def warn(self, describe: Callable[[], str], ranks: Sequence[int]) -> None:
        """Log what is waited for, and from which ranks of the world, when it is time."""
        now = time.monotonic()
        if now < self._next_warning:
            return
        waited = now - self._began
        self._next_warning = now + waited
        self._has_warned = True
        logger.warning(
            "%s has been blocked for %.1f s, waiting for %s; its deadline is in %.1f s",
            describe(),
            waited,
            name_ranks(ranks) or "nobody in particular",
            self._seconds - waited,
        )

    def end(self, describe: Callable[[], str]) -> None:
        """Log that a wait of which a warning was logged has ended well."""
        if self._has_warned:
            logger.warning("%s went on after %.1f s", describe(), time.monotonic() - self._began)


def name_ranks(ranks: Sequence[int]) -> str:
    """Return names of ranks of the world for a sentence; few of many."""
    known = sorted(set(ranks))
    shown = ", ".join(map(str, known[:8])) + (f" and {len(known) - 8} more" if known[8:] else "")
    return f"world rank{'s' if known[1:] else ''} {shown}" if known else ""
