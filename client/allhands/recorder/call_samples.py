"""When calls began, of as many of a period's as fit into a heartbeat."""

from collections.abc import Sequence

MAX_SAMPLES = 64


class CallSampler:
    """Keeps those calls of a period whose numbers divide by a stride, which doubles when need be.

    So ranks whose periods differ a little tell of the same calls. The native core does the same.
    """

    def __init__(self) -> None:
        self._stride = 1
        self._samples: list[tuple[int, float]] = []

    def note(self, sequence: int, started_at: float) -> None:
        """Record the start time of a call, if its number is sampled."""
        if sequence % self._stride:
            return
        if len(self._samples) == MAX_SAMPLES:
            self._stride *= 2
            self._samples = [one for one in self._samples if one[0] % self._stride == 0]
            if sequence % self._stride:
                return
        self._samples.append((sequence, started_at))

    def take(self) -> Sequence[tuple[int, float]]:
        """Return numbers and times since this was last asked."""
        kept, self._samples = self._samples, []
        if len(kept) < MAX_SAMPLES // 4 and self._stride > 1:
            self._stride //= 2
        return kept
