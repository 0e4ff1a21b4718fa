"""Repetition of a watch's calls, the same for both clients."""

from allhands.errors import CoordinatorUnavailable, StoreTimeout

POLL_SECONDS = 30.0
"""A call that waits for events is made again after so long: so a dead connection is noticed."""
AWAY_SECONDS = 30.0
"""For which a coordinator may be away before a watch fails."""
_PAUSE_LEAST, _PAUSE_MOST = 0.05, 1.0


class WatchRetries:
    """Pauses between the calls of a watch that fail, and the decision to give up."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._pause = _PAUSE_LEAST

    def find_pause(
        self, error: CoordinatorUnavailable | StoreTimeout, begun: float, now: float
    ) -> float:
        """Return the seconds before the next call; `begun` is when the call that failed began.

        Raises:
            AllhandsError: `error`, as a deadline around the watch is over, or the coordinator was
                away for too long.
        """
        if isinstance(error, StoreTimeout) and now - begun < POLL_SECONDS / 2:
            raise error  # of a block's deadline: that of a call is later
        if self._failing_since is None:
            self._failing_since = begun
        if isinstance(error, CoordinatorUnavailable) and now - self._failing_since > AWAY_SECONDS:
            raise error
        pause, self._pause = self._pause, min(self._pause * 2, _PAUSE_MOST)
        return pause
