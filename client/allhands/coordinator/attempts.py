"""Repeated attempts to reach a coordinator that may still be starting."""

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from allhands.coordinator.endpoint import Endpoint
from allhands.errors import AllhandsError, CoordinatorUnavailable, JoinRefused, Unauthenticated

if TYPE_CHECKING:
    from allhands.coordinator.probing import ConnectProblem

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.1
QUIET_SECONDS = 2.0
"""Ranks that start together, and the one that hosts the coordinator, may be apart so far."""
_PROBE_INTERVAL = 1.0
_SETTLING_SECONDS = 3.0
"""Within which a daemon that did not listen has left its notice; longer than between two probes."""


class ConnectAttempts:
    """Repeated attempts to reach a coordinator that may still be starting; for one caller.

    They go on until `deadline` (monotonic clock, s), unless the problem needs a change by the user.
    A warning is logged once, after `quiet` seconds of failure.
    """

    def __init__(self, deadline: float, quiet: float = QUIET_SECONDS) -> None:
        self._started = time.monotonic()
        self._deadline = deadline
        self._quiet = quiet
        self._has_warned = False
        self._last_probe = -math.inf
        self._last_absence = -math.inf
        self._problem: ConnectProblem | None = None

    def record_failure(
        self, error: AllhandsError, endpoint: Endpoint | None, is_guess: bool
    ) -> None:
        """Return if another attempt is to be made; may block for a second or two.

        Nothing has to be changed where the endpoint is a guess: the next may be right. So may be
        the token in the notice of a coordinator that has just come up on this host. A job may have
        room later, if the refusal says so.

        Raises:
            CoordinatorUnavailable: no attempt is left, or none would help; says what is wrong.
            AllhandsError: the given one, which no look at the network explains; or a refusal.
        """
        now = time.monotonic()
        is_last = now + RETRY_SECONDS > self._deadline
        is_guess = is_guess or (endpoint is not None and self._may_leave_notice(endpoint))
        if isinstance(error, JoinRefused):
            if is_last or error.retry_after is None:
                raise error
            self._warn_once(error, now)
            return
        if isinstance(error, Unauthenticated):
            if is_last or not is_guess:
                raise error
            return
        if endpoint is not None and (is_last or now - self._last_probe > _PROBE_INTERVAL):
            self._last_probe = now
            from allhands.coordinator.probing import PROBE_SECONDS, probe_coordinator

            self._problem = probe_coordinator(
                endpoint, max(min(self._deadline - now, PROBE_SECONDS), 0.1)
            )
            if self._problem is not None and not self._problem.is_final:
                self._last_absence = now
        found = self._problem
        if found is not None and found.is_final and not is_guess:
            raise CoordinatorUnavailable(found.text) from error
        if is_last:
            if found is None:
                raise error
            passed = f"tried again for {now - self._started:.0f} s"
            raise CoordinatorUnavailable(f"{found.text}; {passed}") from error
        self._warn_once(error if found is None else found.text, now)

    def _warn_once(self, problem: object, now: float) -> None:
        if not self._has_warned and now - self._started >= self._quiet:
            self._has_warned = True
            logger.warning("%s; trying again for %.0f s", problem, self._deadline - now)

    def _may_leave_notice(self, endpoint: Endpoint) -> bool:
        """Return whether the coordinator has just come up, and may yet tell this host its token."""
        return (
            endpoint.token is None
            and endpoint.address.is_loopback
            and time.monotonic() - self._last_absence < _SETTLING_SECONDS
        )


def call_until_available(
    call: Callable[[], T], endpoint: Endpoint, deadline: float, quiet: float = QUIET_SECONDS
) -> T:
    """Repeat a call of a coordinator until it answers or the deadline passes.

    Raises:
        CoordinatorUnavailable: the deadline passed; the text says what is wrong on the way.
    """
    attempts = ConnectAttempts(deadline, quiet)
    while True:
        try:
            return call()
        except CoordinatorUnavailable as error:
            attempts.record_failure(error, endpoint, is_guess=False)
        time.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
