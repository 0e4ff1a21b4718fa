"""Locks, semaphores and elections of a job, for the asyncio client."""

from abc import ABC, abstractmethod
from typing import TypeVar

from allhands.aio.lock import AsyncElection, AsyncLock, AsyncSemaphore
from allhands.aio.recipes import AsyncDriver
from allhands.aio.watch import AsyncWatch
from allhands.coordinator.kv.records import KeyRange
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.queue_name import QueueName, check_permits
from allhands.coordinator.recipes.steps import Steps
from allhands.deadlines import Timeout, to_seconds

T = TypeVar("T")


class AsyncSynchronizingClient(ABC):
    """The part of `AsyncControl` for locks and elections; see there."""

    _driver: AsyncDriver
    _timeout: float

    @property
    @abstractmethod
    def job_name(self) -> str:
        """Job of this client's keys."""

    @abstractmethod
    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False, timeout: Timeout | None = None
    ) -> KeyRange: ...

    @abstractmethod
    def watch(
        self,
        key: str,
        *,
        end: str | None = None,
        prefix: bool = False,
        revision: int = 0,
        puts: bool = True,
        deletions: bool = True,
        previous: bool = False,
    ) -> AsyncWatch: ...

    @property
    def default_timeout(self) -> float:
        """Deadline in seconds of calls without a timeout of their own."""
        return self._timeout

    @property
    def holdings(self) -> Holdings:
        return self._driver.holdings

    async def run_steps(self, steps: Steps[T]) -> T:
        """Carry out the steps of a recipe; the other methods are made of it."""
        return await self._driver.run(steps)

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> AsyncLock:
        """Return a lock for `async with`: held by one at a time, in the order of asking.

        The arguments are those of `allhands.Control.lock`.
        """
        queue = QueueName(self.job_name, "lock", name)
        return AsyncLock(self, queue, ttl, member, self._limit_wait(timeout))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> AsyncSemaphore:
        """Return a semaphore for `async with`: held by `permits` at a time, in order.

        The arguments are those of `allhands.Control.semaphore`.
        """
        queue = QueueName(self.job_name, "semaphore", name, check_permits(permits))
        return AsyncSemaphore(self, queue, ttl, member, self._limit_wait(timeout))

    def election(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        member: str = "",
        timeout: Timeout | None = None,
    ) -> AsyncElection:
        """Return an election, to lead in or to observe; the arguments are those of `lock`."""
        queue = QueueName(self.job_name, "election", name)
        return AsyncElection(self, queue, ttl, member, self._limit_wait(timeout))

    def _limit_wait(self, timeout: Timeout | None) -> float:
        return self._timeout if timeout is None else to_seconds(timeout)
