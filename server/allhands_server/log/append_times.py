"""Times and sizes of the appends to a log, counted in buckets."""

from bisect import bisect_left

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper ends, seconds: from an fsync of a fast disk to a service that is nearly away."""


class AppendTimes:
    """Counts since the journal began."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        """Number of appends in each; the last bucket has no end."""
        self.seconds = 0.0
        self.nbytes = 0

    def add(self, seconds: float, nbytes: int) -> None:
        """Count an append."""
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds
        self.nbytes += nbytes
