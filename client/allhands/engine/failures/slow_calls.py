"""When a call that is blocked is worth a word, long before its deadline; and saying it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from allhands.verdicts import AbsentRank, describe_absent_rank

logger = logging.getLogger(__name__)

LONGEST = 5.0
"""Seconds after which a blocked call is told of in any case, also while there is no history."""
SHORTEST = 1.0
"""Seconds before which none is, however regular calls were."""
_ENOUGH = 16
"""Calls that make a history."""
_DEVIATIONS = 10.0
"""Standard deviations of regular waits that make a wait irregular."""
_SHOWN = 4
"""Silent ranks that one warning describes."""
_NORMAL = 1.4826
"""Times the median absolute deviation: the standard deviation of a normal distribution."""


def patience(waits: Iterable[float]) -> float:
    """Return after how many seconds a wait is out of the ordinary, given those of calls before.

    That is their median plus a multiple of their median absolute deviation: a few long ones, as
    for a checkpoint, do not move it.
    """
    known = list(waits)
    if len(known) < _ENOUGH:
        return LONGEST
    usual = _median(known)
    spread = _median(abs(wait - usual) for wait in known)
    return min(max(usual + _DEVIATIONS * _NORMAL * spread, SHORTEST), LONGEST)


def _median(values: Iterable[float]) -> float:
    # The one of `statistics` brings fractions and decimals into every rank: 0.4 MiB.
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class Stall:
    """One blocked call; logs a warning when its time has come, and again whenever that doubles.

    The records have an `allhands` attribute for programs: a dict with `event` ("stall", or
    "stall over"), `group`, `operation`, `sequence`, `label`, `seconds`, `waiting_for`, the ranks
    of the group, and `states`, of those which are silent. Lives on the loop.
    """

    def __init__(
        self,
        what: str,
        facts: dict[str, object],
        waiting_for: Callable[[], Sequence[int]],
        name: Callable[[int], str],
        silent: Callable[[], Mapping[int, AbsentRank]],
        begun: float,
        after: float,
        deadline: float,
    ) -> None:
        """Begin to watch a call that began at an instant, and is told of `after` so long.

        `what` names it for people, `facts` for programs; `name` names a rank of the group.
        `silent` returns those of all its ranks that are silent though they live: the call may wait
        for a rank that waits for one of them. Then it is told of at once.
        """
        self._what = what
        self._facts = facts
        self._waiting_for = waiting_for
        self._name = name
        self._silent = silent
        self._begun = begun
        self._after = after
        self._deadline = deadline
        self._has_warned = False
        self._is_over = False
        self._timer = self._later()

    def end(self, *, well: bool) -> None:
        """Learn that the call is over; where it was told of and ended `well`, say so. Idempotent.

        What it ended in otherwise, its error says.
        """
        self._timer.cancel()
        self._is_over = True
        if self._has_warned and well:
            waited = time.monotonic() - self._begun
            facts = {**self._facts, "event": "stall over", "seconds": waited, "waiting_for": []}
            logger.warning("%s went on after %.1f s", self._what, waited, extra={"allhands": facts})
        self._has_warned = False

    def learn(self) -> None:
        """Learn that a rank of the group has fallen silent; tell it, unless the call is over."""
        if not self._is_over:
            self._timer.cancel()
            self._warn()

    def _later(self) -> asyncio.TimerHandle:
        remaining = self._begun + self._after - time.monotonic()
        if not self._has_warned and self._silent():
            remaining = 0
        return asyncio.get_running_loop().call_later(max(remaining, 0), self._warn)

    def _warn(self) -> None:
        now = time.monotonic()
        ranks = list(self._waiting_for())
        found = self._silent()
        facts = {
            **self._facts,
            "event": "stall",
            "seconds": now - self._begun,
            "waiting_for": ranks,
            "states": {rank: one.state for rank, one in found.items()},
        }
        logger.warning(
            "%s has been blocked for %.1f s, waiting for %s; its deadline is in %.1f s%s",
            self._what,
            now - self._begun,
            ", ".join(map(self._name, ranks)) or "nobody in particular",
            self._deadline - now,
            "".join(f"; {describe_absent_rank(one)}" for one in [*found.values()][:_SHOWN]),
            extra={"allhands": facts},
        )
        self._has_warned = True
        self._after = 2 * max(self._after, now - self._begun)
        self._timer = self._later()
