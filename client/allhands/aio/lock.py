"""Locks, semaphores and elections for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Protocol, Self, TypeVar

from allhands.aio.watch import AsyncWatch
from allhands.coordinator.kv.records import KeyRange
from allhands.coordinator.kv.transactions import Condition
from allhands.coordinator.kv.values import encode
from allhands.coordinator.recipes.fair_queue import Holdings, QueuePlace
from allhands.coordinator.recipes.leadership import Leader, LeaderTracker, find_leader
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.standing import LockStatus
from allhands.coordinator.recipes.steps import Steps
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import LockLost

T = TypeVar("T")


class AsyncRecipeClient(Protocol):
    """Client of locks and elections."""

    @property
    def default_timeout(self) -> float:
        """Seconds."""

    @property
    def holdings(self) -> Holdings: ...

    async def run_steps(self, steps: Steps[T]) -> T: ...

    async def get_prefix(self, prefix: str, *, timeout: Timeout | None = None) -> KeyRange: ...

    def watch(self, key: str, *, prefix: bool = False, revision: int = 0) -> AsyncWatch: ...


class _Place:
    """A place in a fair queue, with the event of its loss."""

    def __init__(
        self, client: AsyncRecipeClient, queue: QueueName, ttl: float, member: str, timeout: float
    ) -> None:
        self._client = client
        self._timeout = timeout
        self.lost = asyncio.Event()
        """Set when the lease was lost: by then others may hold what this holds."""
        self._place = QueuePlace(
            queue, client.holdings, ttl=ttl, member=member, on_lost=self.lost.set
        )

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    @property
    def is_held(self) -> bool:
        """Whether this is held, as far as this process knows."""
        return self.revision > 0 and not self.is_lost

    @property
    def key(self) -> str:
        """Key of the place in the queue, in the name space of the job; empty: none yet."""
        return self._place.key

    @property
    def revision(self) -> int:
        """Fencing token: grows from each holder to the next; 0: not held."""
        return self._place.revision

    @property
    def condition(self) -> Condition:
        """Condition that this is held, for transactions.

        Raises:
            LockLost: it is not held, as far as this process knows.
        """
        return self._place.condition

    def _limit(self, timeout: Timeout | None) -> float:
        return self._client.default_timeout if timeout is None else to_seconds(timeout)

    async def _enter(
        self, timeout: Timeout | None, value: bytes | None = None, *, waits: bool = True
    ) -> bool:
        self.lost.clear()
        limit = self._timeout if timeout is None else to_seconds(timeout)
        entering = self._place.enter(asyncio.current_task(), limit, value, waits=waits)
        return await self._client.run_steps(entering)

    async def _leave(self, timeout: Timeout | None = None) -> None:
        await self._client.run_steps(self._place.leave(self._limit(timeout)))


class AsyncLock(_Place):
    """A lock of the job, held by one at a time in the order of asking; for `async with`.

    As `allhands.Lock`, for tasks in the place of threads.
    """

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of the block tells more than the loss.
        with contextlib.suppress(*((LockLost,) if error is not None else ())):
            await self.release()

    async def acquire(self, *, timeout: Timeout | None = None) -> None:
        """Wait until this is held; who gives up (deadline, cancellation) leaves the queue.

        Raises:
            LockTimeout: others held it at the deadline; names them.
            LockHeld: this task holds it, or waits for it.
            LockLost: the lease was lost meanwhile.
        """
        await self._enter(timeout)

    async def try_acquire(self, *, timeout: Timeout | None = None) -> bool:
        """Take it if it is free at once; return whether it is held.

        Raises:
            LockHeld: this task holds it, or waits for it.
        """
        return await self._enter(timeout, waits=False)

    async def release(self, *, timeout: Timeout | None = None) -> None:
        """Let the next one have it; where the coordinator is away, as soon as it is back.

        Raises:
            LockLost: it was lost before.
        """
        await self._leave(timeout)

    async def status(self, *, timeout: Timeout | None = None) -> LockStatus:
        """Return the holders, and the number of those that wait."""
        return await self._client.run_steps(self._place.describe(self._limit(timeout)))


class AsyncSemaphore(AsyncLock):
    """A semaphore of the job: as an `AsyncLock`, but held by several at a time.

    Also one task may hold several of its permits, each by an object of its own.
    """


class AsyncElection(_Place):
    """An election of the job: a leader with a value, and the others in line behind.

    As `allhands.Election`, for tasks in the place of threads.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.revision:
            with contextlib.suppress(*((LockLost,) if error is not None else ())):
                await self.resign()

    async def campaign(self, value: bytes | str, *, timeout: Timeout | None = None) -> None:
        """Wait until this is the leader, with a value for all to see.

        Raises:
            LockTimeout: another was the leader at the deadline; names it.
            LockHeld: this task is the leader, or a candidate.
            LockLost: the lease was lost meanwhile.
        """
        await self._enter(timeout, encode(value))

    async def proclaim(self, value: bytes | str, *, timeout: Timeout | None = None) -> int:
        """Change the leader's value; return the revision of the change.

        Raises:
            LockLost: this is not the leader; nothing was changed.
        """
        limit = self._limit(timeout)
        return await self._client.run_steps(self._place.update(encode(value), limit))

    async def resign(self, *, timeout: Timeout | None = None) -> None:
        """End the leadership.

        Raises:
            LockLost: it had ended before.
        """
        await self._leave(timeout)

    async def leader(self, *, timeout: Timeout | None = None) -> Leader | None:
        """Return the leader; None: there is none."""
        return await self._client.run_steps(find_leader(self._place.queue, self._limit(timeout)))

    async def observe(self) -> AsyncGenerator[Leader, None]:
        """Yield the leader, and from then on each new leader or value, none missed, in order.

        Endless, over broken connections and restarts of the coordinator.

        Raises:
            Compacted: the caller has fallen behind the history of the keys.
            CoordinatorUnavailable: the coordinator was away for long.
        """
        prefix = self._place.queue.prefix
        tracker = LeaderTracker(found := await self._client.get_prefix(prefix))
        if tracker.leader is not None:
            yield tracker.leader
        async with self._client.watch(prefix, prefix=True, revision=found.revision + 1) as events:
            async for event in events:
                leader = tracker.take(event, is_last=events.next_revision != event.revision)
                if leader is not None:
                    yield leader
