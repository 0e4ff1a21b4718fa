"""Locks, semaphores and elections of a job, for the synchronous client."""

from abc import ABC, abstractmethod
from typing import TypeVar

from allhands.coordinator.key_value import KeyValueClient
from allhands.coordinator.lock import Election, Lock, Semaphore
from allhands.coordinator.recipes.blocking import BlockingDriver
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.queue_name import QueueName, check_permits
from allhands.coordinator.recipes.steps import Steps
from allhands.deadlines import Timeout, to_seconds

T = TypeVar("T")


class SynchronizingClient(KeyValueClient, ABC):
    """The part of `Control` for locks and elections; see there."""

    def __init__(self) -> None:
        super().__init__()
        self._driver = BlockingDriver(self.request, self._leases)

    @property
    @abstractmethod
    def default_timeout(self) -> float:
        """Deadline in seconds of calls without a timeout of their own."""

    @property
    def holdings(self) -> Holdings:
        return self._driver.holdings

    def run_steps(self, steps: Steps[T]) -> T:
        """Carry out the steps of a recipe; the other methods are made of it."""
        return self._driver.run(self._require_job(), steps)

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> Lock:
        """Return a lock for `with`: held by one at a time, in the order of asking.

        Args:
            ttl: seconds after which the lock of a process that died is free.
            member: id of a member of the job's world: with its loss the lock is free at once.
            timeout: deadline in seconds for `acquire`.
        """
        queue = QueueName(self._require_job(), "lock", name)
        return Lock(self, queue, ttl, member, self._limit_wait(timeout))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> Semaphore:
        """Return a semaphore for `with`: held by `permits` at a time, in the order of asking.

        Who comes with another number than those who are there is refused. The other arguments are
        those of `lock`.
        """
        queue = QueueName(self._require_job(), "semaphore", name, check_permits(permits))
        return Semaphore(self, queue, ttl, member, self._limit_wait(timeout))

    def election(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> Election:
        """Return an election, to lead in or to observe; the arguments are those of `lock`."""
        queue = QueueName(self._require_job(), "election", name)
        return Election(self, queue, ttl, member, self._limit_wait(timeout))

    def _limit_wait(self, timeout: Timeout | None) -> float:
        return self.default_timeout if timeout is None else to_seconds(timeout)
