"""Warnings about blocked calls, long before their deadline: timing and log records."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from allhands.verdicts import AbsentRank, describe_absent_ranks

logger = logging.getLogger(__name__)

MAX_PATIENCE = 5.0
"""Seconds after which a blocked call is reported in any case, also without a history."""
MIN_PATIENCE = 1.0
"""Seconds before which none is, however regular calls were."""
_MIN_HISTORY = 16
"""Calls that make a history."""
_DEVIATIONS = 10.0
"""Standard deviations of regular waits that make a wait irregular."""
_MAX_SHOWN = 4
"""Silent ranks that one warning describes."""
_MAD_TO_DEVIATION = 1.4826
"""Times the median absolute deviation: the standard deviation of a normal distribution."""


def compute_patience(durations: Iterable[float]) -> float:
    """Return after how many seconds a wait is out of the ordinary, given those of calls before.

    That is their median plus a multiple of their median absolute deviation: a few long ones, as
    for a checkpoint, do not move it.
    """
    known = list(durations)
    if len(known) < _MIN_HISTORY:
        return MAX_PATIENCE
    usual = _compute_median(known)
    spread = _compute_median(abs(wait - usual) for wait in known)
    return min(max(usual + _DEVIATIONS * _MAD_TO_DEVIATION * spread, MIN_PATIENCE), MAX_PATIENCE)


def describe_deadline(left: float) -> str:
    """Return when a call's deadline is, `left` seconds from now, or was."""
    # Rounded first: a moment on either side is "in 0.0 s".
    left = round(left, 1)
    return (
        f"its deadline is in {abs(left):.1f} s"
        if left >= 0
        else (f"its deadline passed {-left:.1f} s ago")
    )


def _compute_median(values: Iterable[float]) -> float:
    # The one of `statistics` brings fractions and decimals into every rank: 0.4 MiB.
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class SlowCall:
    """A blocked call; logs a warning when it is slow, and again at each doubled time.

    The records have an `allhands` attribute for programs: a dict with `event` ("stall", or
    "stall over"), `group`, `operation`, `sequence`, `label`, `seconds`, `waiting_for` (ranks of the
    group), and `states` (of the silent ones). Event loop only.
    """

    def __init__(
        self,
        what: str,
        log_fields: dict[str, object],
        list_awaited: Callable[[], Sequence[int]],
        describe_rank: Callable[[int], str],
        find_silent_ranks: Callable[[], Mapping[int, AbsentRank]],
        started_at: float,
        patience: float,
        deadline: float,
    ) -> None:
        """Watch a call begun at `started_at`; warn after `patience` seconds.

        `what` names the call for people, `log_fields` for programs; `describe_rank` names a rank of
        the group. `find_silent_ranks` returns the group's silent but living ranks: the call may
        wait for a rank that waits for one of them. Then the warning is immediate.
        """
        self._what = what
        self._log_fields = log_fields
        self._list_awaited = list_awaited
        self._describe_rank = describe_rank
        self._find_silent_ranks = find_silent_ranks
        self._started_at = started_at
        self._patience = patience
        self._deadline = deadline
        self._has_warned = False
        self._is_over = False
        self._timer = self._schedule()

    def end(self, *, has_succeeded: bool) -> None:
        """Record the end of the call; log it if warned about and successful. Idempotent.

        An unsuccessful call is described by its error.
        """
        self._timer.cancel()
        self._is_over = True
        if self._has_warned and has_succeeded:
            waited = time.monotonic() - self._started_at
            facts = {
                **self._log_fields,
                "event": "stall over",
                "seconds": waited,
                "waiting_for": [],
            }
            logger.warning("%s went on after %.1f s", self._what, waited, extra={"allhands": facts})
        self._has_warned = False

    def on_peer_silent(self) -> None:
        """Handle the silence of a rank of the group: warn, unless the call is over."""
        if not self._is_over:
            self._timer.cancel()
            self._warn()

    def _schedule(self) -> asyncio.TimerHandle:
        remaining = self._started_at + self._patience - time.monotonic()
        if not self._has_warned and self._find_silent_ranks():
            remaining = 0
        return asyncio.get_running_loop().call_later(max(remaining, 0), self._warn)

    def _warn(self) -> None:
        now = time.monotonic()
        ranks = list(self._list_awaited())
        found = self._find_silent_ranks()
        shown = [*found.values()][:_MAX_SHOWN]
        facts = {
            **self._log_fields,
            "event": "stall",
            "seconds": now - self._started_at,
            "waiting_for": ranks,
            "states": {rank: one.state for rank, one in found.items()},
        }
        logger.warning(
            "%s has been blocked for %.1f s, waiting for %s; %s%s",
            self._what,
            now - self._started_at,
            ", ".join(map(self._describe_rank, ranks)) or "nobody in particular",
            describe_deadline(self._deadline - now),
            f"; {describe_absent_ranks(shown)}" if shown else "",
            extra={"allhands": facts},
        )
        self._has_warned = True
        self._patience = 2 * max(self._patience, now - self._started_at)
        self._timer = self._schedule()
