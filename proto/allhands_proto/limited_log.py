"""Rate-limited warnings about strangers, against floods of the log."""

import asyncio
import logging

_MOST = 50
_SECONDS = 60.0


class LimitedLog:
    """Warnings of one kind: the first few of each minute, then a count of the rest.

    Belongs to the running loop.
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        """What the lines are about, in the plural: it begins the line that counts."""
        self._until = 0.0
        self._told = 0
        self._untold = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log a line, or only count it."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._until:
            self._until, self._told = now + _SECONDS, 0
        if self._told < _MOST:
            self._told += 1
            self._logger.warning(text, *arguments)
            return
        if not self._untold:
            loop.call_at(self._until, self._count)
        self._untold += 1

    def _count(self) -> None:
        more, self._untold = self._untold, 0
        self._logger.warning(
            "%s: %d more within %.0f s, which are not logged one by one",
            self._what,
            more,
            _SECONDS,
        )
