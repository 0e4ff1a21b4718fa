"""Barriers, locks, semaphores and elections of a job, for the synchronous client."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from allhands.coordinator.double_barrier import DoubleBarrier
from allhands.coordinator.key_value import KeyValueClient
from allhands.coordinator.kv.barrier_requests import (
    BarrierStatus,
    make_barrier,
    make_cancel_barrier,
    make_list_barriers,
    shorten_barrier,
)
from allhands.coordinator.lock import Election, Lock, Semaphore
from allhands.coordinator.recipes.blocking import BlockingDriver
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.queue_name import QueueName, check_permits
from allhands.coordinator.recipes.session import describe_process
from allhands.coordinator.recipes.steps import Steps
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import Refused
from allhands.tracebacks import trims_tracebacks

T = TypeVar("T")


@trims_tracebacks
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

    def barrier(
        self,
        name: str,
        participant: str,
        participants: Sequence[str],
        *,
        timeout: Timeout | None = None,
    ) -> int:
        """Wait until every participant has arrived; return the count of this name's openings.

        A participant that gives up (deadline, Ctrl-C) no longer counts as arrived. The count starts
        again with the next world of the job, and after the job's deletion.

        Raises:
            StoreTimeout: participants were missing at the deadline; the text names them.
            Refused: the barrier of this name waits for other participants.
            BarrierCancelled: somebody cancelled it.
        """
        asked = make_barrier(self._require_job(), name, participant, participants)
        if (short := shorten_barrier(asked)) is not None:
            with contextlib.suppress(Refused, ValueError):
                return self.request(short, timeout).generation
        return self.request(asked, timeout).generation

    def cancel_barrier(
        self, name: str, reason: str, *, by: str = "", timeout: Timeout | None = None
    ) -> int:
        """Let all fail who wait at a barrier; return their number.

        They get BarrierCancelled, with the reason and `by` whom, for people; empty: this process.

        Raises:
            NotFound: nobody waits there.
        """
        asked = make_cancel_barrier(self._require_job(), name, by or describe_process(), reason)
        return self.request(asked, timeout)

    def barriers(self, *, timeout: Timeout | None = None) -> tuple[BarrierStatus, ...]:
        """Return the barriers at which somebody waits, by name: who has come, and who is missing.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        return self.request(make_list_barriers(self._require_job()), timeout)

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

    def double_barrier(
        self, name: str, size: int, *, ttl: float = 10.0, timeout: Timeout | None = None
    ) -> DoubleBarrier:
        """Return a double barrier for `with`: `size` participants begin and end together.

        Args:
            ttl: seconds after which nobody waits any more for a participant that died within.
            timeout: deadline in seconds for `enter`, and for `leave`.
        """
        barrier = QueueName(self._require_job(), "double barrier", name)
        return DoubleBarrier(self, barrier, size, ttl, self._limit_wait(timeout))

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
