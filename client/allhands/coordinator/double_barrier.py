"""Double barriers for threads."""

import contextlib
import threading
from types import TracebackType
from typing import Self

from allhands.coordinator.lock import RecipeClient
from allhands.coordinator.recipes.double_barrier import Participation
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import LockLost, StoreTimeout


class DoubleBarrier:
    """A double barrier of the job: `size` threads begin together and end together.

    With `with`, the block begins when all have come, and is left when all leave. A participant that
    dies within is not waited for once its lease has ended. Reusable: the next round begins with the
    next `enter`.
    """

    def __init__(
        self, client: RecipeClient, name: QueueName, size: int, ttl: float, timeout: float
    ) -> None:
        self._client = client
        self._timeout = timeout
        self.lost = threading.Event()
        """Set when the lease was lost within: the others do not wait for this one."""
        self._inside = Participation(name, size, ttl=ttl, on_lost=self.lost.set)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of the block tells more than those of the others' leave.
        with contextlib.suppress(*((LockLost, StoreTimeout) if error is not None else ())):
            self.leave()

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    @property
    def participants(self) -> tuple[str, ...]:
        """All within, by host, pid and place; none: this one is outside."""
        return self._inside.participants

    def enter(self, *, timeout: Timeout | None = None) -> None:
        """Wait until all participants have come; who gives up counts no longer.

        Raises:
            StoreTimeout: some were missing at the deadline; names those that came.
            Refused: others wait at this name with another size, or by name.
            BarrierCancelled: somebody cancelled it by `cancel_barrier`.
            LockHeld: this object is within, or waits.
            LockLost: the lease was lost meanwhile.
        """
        self.lost.clear()
        self._client.run_steps(self._inside.enter(self._limit(timeout)))

    def leave(self, *, timeout: Timeout | None = None) -> None:
        """Wait until all participants leave, or have died; outside afterwards in any case.

        Raises:
            StoreTimeout: some were within at the deadline; names them.
            LockLost: this is not within, or the lease was lost.
        """
        self._client.run_steps(self._inside.leave(self._limit(timeout)))

    def _limit(self, timeout: Timeout | None) -> float:
        return self._timeout if timeout is None else to_seconds(timeout)
