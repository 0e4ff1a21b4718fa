"""Barriers, locks, semaphores and elections of a job, for the asyncio client."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from allhands.aio.double_barrier import AsyncDoubleBarrier
from allhands.aio.lock import AsyncElection, AsyncLock, AsyncSemaphore
from allhands.aio.recipes import AsyncDriver
from allhands.aio.watch import AsyncWatch
from allhands.coordinator.kv.barrier_requests import (
    BarrierStatus,
    make_barrier,
    make_cancel_barrier,
    make_list_barriers,
    shorten_barrier,
)
from allhands.coordinator.kv.records import KeyRange
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.queue_name import QueueName, check_permits
from allhands.coordinator.recipes.session import describe_process
from allhands.coordinator.recipes.steps import Steps
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import Refused
from allhands.tracebacks import trims_tracebacks

T = TypeVar("T")


@trims_tracebacks
class AsyncSynchronizingClient(ABC):
    """The part of `AsyncControl` for locks and elections; see there."""

    _driver: AsyncDriver
    _timeout: float

    @property
    @abstractmethod
    def job_name(self) -> str:
        """Job of this client's keys."""

    @abstractmethod
    async def request(self, asked: AnyKvRequest[T], timeout: Timeout | None = None) -> T: ...

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

    async def barrier(
        self,
        name: str,
        participant: str,
        participants: Sequence[str],
        *,
        timeout: Timeout | None = None,
    ) -> int:
        """Wait until every participant has arrived; return the count of this name's openings.

        A participant that gives up (deadline, cancellation) no longer counts as arrived. The errors
        are those of `allhands.Control.barrier`.
        """
        asked = make_barrier(self.job_name, name, participant, participants)
        if (short := shorten_barrier(asked)) is not None:
            with contextlib.suppress(Refused, ValueError):
                return (await self.request(short, timeout)).generation
        return (await self.request(asked, timeout)).generation

    async def cancel_barrier(
        self, name: str, reason: str, *, by: str = "", timeout: Timeout | None = None
    ) -> int:
        """Let all fail who wait at a barrier; return their number.

        They get BarrierCancelled, with the reason and `by` whom, for people; empty: this process.

        Raises:
            NotFound: nobody waits there.
        """
        asked = make_cancel_barrier(self.job_name, name, by or describe_process(), reason)
        return await self.request(asked, timeout)

    async def barriers(self, *, timeout: Timeout | None = None) -> tuple[BarrierStatus, ...]:
        """Return the barriers at which somebody waits, by name: who has come, and who is missing.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        return await self.request(make_list_barriers(self.job_name), timeout)

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

    def double_barrier(
        self, name: str, size: int, *, ttl: float = 10.0, timeout: Timeout | None = None
    ) -> AsyncDoubleBarrier:
        """Return a double barrier for `async with`: `size` participants begin and end together.

        Args:
            ttl: seconds after which nobody waits any more for a participant that died within.
            timeout: deadline in seconds for `enter`, and for `leave`.
        """
        barrier = QueueName(self.job_name, "double barrier", name)
        return AsyncDoubleBarrier(self, barrier, size, ttl, self._limit_wait(timeout))

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
