"""Locks, semaphores and elections for threads."""

import contextlib
import threading
from collections.abc import Generator
from types import TracebackType
from typing import Protocol, Self, TypeVar

from allhands.coordinator.kv.records import KeyRange
from allhands.coordinator.kv.transactions import Condition
from allhands.coordinator.kv.values import encode
from allhands.coordinator.recipes.fair_queue import Holdings, QueuePlace
from allhands.coordinator.recipes.leadership import Leader, LeaderTracker, find_leader
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.standing import LockStatus
from allhands.coordinator.recipes.steps import Steps
from allhands.coordinator.watch import Watch
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import LockLost

T = TypeVar("T")


class RecipeClient(Protocol):
    """Client of locks and elections."""

    @property
    def default_timeout(self) -> float:
        """Seconds."""

    @property
    def holdings(self) -> Holdings: ...

    def run_steps(self, steps: Steps[T]) -> T: ...

    def get_prefix(self, prefix: str, *, timeout: Timeout | None = None) -> KeyRange: ...

    def watch(self, key: str, *, prefix: bool = False, revision: int = 0) -> Watch: ...


class _Place:
    """A place in a fair queue, with the event of its loss."""

    def __init__(
        self, client: RecipeClient, queue: QueueName, ttl: float, member: str, timeout: float
    ) -> None:
        self._client = client
        self._timeout = timeout
        self.lost = threading.Event()
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

    def _enter(
        self, timeout: Timeout | None, value: bytes | None = None, *, waits: bool = True
    ) -> bool:
        self.lost.clear()
        entering = self._place.enter(
            threading.get_ident(), self._limit(timeout), value, waits=waits
        )
        return self._client.run_steps(entering)

    def _leave(self, timeout: Timeout | None = None) -> None:
        self._client.run_steps(self._place.leave(self._limit(timeout)))


class Lock(_Place):
    """A lock of the job, held by one at a time in the order of asking; for `with`.

    Bound to a lease that is kept alive: the lock of a process that dies is free when the lease
    ends. `lost` is set when the lease could not be kept alive; `condition`, in a transaction, lets
    nobody write who has lost the lock without knowing. An object is for one thread at a time; a
    thread that asks for what it holds gets LockHeld.
    """

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of the block tells more than the loss.
        with contextlib.suppress(*((LockLost,) if error is not None else ())):
            self.release()

    def acquire(self, *, timeout: Timeout | None = None) -> None:
        """Wait until this is held.

        Who gives up (deadline, Ctrl-C) leaves the queue.

        Raises:
            LockTimeout: others held it at the deadline; names them.
            LockHeld: this thread holds it, or waits for it.
            LockLost: the lease was lost meanwhile.
        """
        self._enter(timeout)

    def try_acquire(self, *, timeout: Timeout | None = None) -> bool:
        """Take it if it is free at once; return whether it is held.

        Raises:
            LockHeld: this thread holds it, or waits for it.
        """
        return self._enter(timeout, waits=False)

    def release(self, *, timeout: Timeout | None = None) -> None:
        """Let the next one have it; where the coordinator is away, as soon as it is back.

        Raises:
            LockLost: it was lost before.
        """
        self._leave(timeout)

    def status(self, *, timeout: Timeout | None = None) -> LockStatus:
        """Return the holders, and the number of those that wait."""
        return self._client.run_steps(self._place.describe(self._limit(timeout)))


class Semaphore(Lock):
    """A semaphore of the job: as a `Lock`, but held by several at a time.

    Also one thread may hold several of its permits, each by an object of its own.
    """


class Election(_Place):
    """An election of the job: a leader with a value, and the others in line behind.

    As a `Lock`: bound to a lease, fenced by `condition`, with `lost`. With `with`, the leadership
    ends with the block.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.revision:
            with contextlib.suppress(*((LockLost,) if error is not None else ())):
                self.resign()

    def campaign(self, value: bytes | str, *, timeout: Timeout | None = None) -> None:
        """Wait until this is the leader, with a value for all to see.

        Raises:
            LockTimeout: another was the leader at the deadline; names it.
            LockHeld: this thread is the leader, or a candidate.
            LockLost: the lease was lost meanwhile.
        """
        self._enter(timeout, encode(value))

    def proclaim(self, value: bytes | str, *, timeout: Timeout | None = None) -> int:
        """Change the leader's value; return the revision of the change.

        Raises:
            LockLost: this is not the leader; nothing was changed.
        """
        limit = self._limit(timeout)
        return self._client.run_steps(self._place.update(encode(value), limit))

    def resign(self, *, timeout: Timeout | None = None) -> None:
        """End the leadership.

        Raises:
            LockLost: it had ended before.
        """
        self._leave(timeout)

    def leader(self, *, timeout: Timeout | None = None) -> Leader | None:
        """Return the leader; None: there is none."""
        return self._client.run_steps(find_leader(self._place.queue, self._limit(timeout)))

    def observe(self) -> Generator[Leader, None, None]:
        """Yield the leader, and from then on each new leader or value, none missed, in order.

        Endless, over broken connections and restarts of the coordinator.

        Raises:
            Compacted: the caller has fallen behind the history of the keys.
            CoordinatorUnavailable: the coordinator was away for long.
        """
        prefix = self._place.queue.prefix
        tracker = LeaderTracker(found := self._client.get_prefix(prefix))
        if tracker.leader is not None:
            yield tracker.leader
        with self._client.watch(prefix, prefix=True, revision=found.revision + 1) as events:
            for event in events:
                leader = tracker.take(event, is_last=events.next_revision != event.revision)
                if leader is not None:
                    yield leader
