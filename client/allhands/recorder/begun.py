"""When calls began, of as many of a period's as fit into a heartbeat."""

from collections.abc import Sequence

MOST = 64


class Begun:
    """Keeps those calls of a period whose numbers divide by a stride, which doubles when need be.

    So ranks whose periods differ a little tell of the same calls. The native core does the same.
    """

    def __init__(self) -> None:
        self._stride = 1
        self._kept: list[tuple[int, float]] = []

    def note(self, sequence: int, at: float) -> None:
        """Take in that a call began."""
        if sequence % self._stride:
            return
        if len(self._kept) == MOST:
            self._stride *= 2
            self._kept = [one for one in self._kept if one[0] % self._stride == 0]
            if sequence % self._stride:
                return
        self._kept.append((sequence, at))

    def take(self) -> Sequence[tuple[int, float]]:
        """Return numbers and times since this was last asked."""
        kept, self._kept = self._kept, []
        if len(kept) < MOST // 4 and self._stride > 1:
            self._stride //= 2
        return kept
