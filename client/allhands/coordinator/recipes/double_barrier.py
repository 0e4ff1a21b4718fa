"""Double barriers: a number of participants begin together, and end together.

They enter by a named barrier of the coordinator, whose answer names all of them. Each has a key
bound to its session's lease, until it leaves: so nobody waits for a participant that has died. All
wait for the first of them, who goes last, and waits for the others one by one: so each end wakes
one, and the last one all.
"""

import time
from collections.abc import Callable

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.barrier_requests import BarrierPassage, make_barrier
from allhands.coordinator.kv.records import KeyRange, TxnResult
from allhands.coordinator.kv.requests import WatchedKeys
from allhands.coordinator.kv.transactions import Delete, Get, Operation, Put
from allhands.coordinator.recipes.leaving import LEAVE_SECONDS, remove
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.session import Session, describe_process
from allhands.coordinator.recipes.steps import Ask, Await, Background, OpenSession, Steps
from allhands.coordinator.recipes.waiting import find_remaining, wait_for_event
from allhands.deadlines import clip_or_raise
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    LockHeld,
    LockLost,
    NotFound,
    Refused,
    StoreTimeout,
)
from allhands_proto import forks

MOST_PARTICIPANTS = 10_000
_MOST_NAMED = 8


class Participation:
    """A participant's place within a double barrier; outside until `enter`, after `leave`."""

    def __init__(
        self, name: QueueName, size: int, *, ttl: float, on_lost: Callable[[], None]
    ) -> None:
        """Be outside; `on_lost` is called when the lease was lost within."""
        if not isinstance(size, int) or not 1 <= size <= MOST_PARTICIPANTS:
            raise ValueError(
                f"a double barrier has 1 to {MOST_PARTICIPANTS:,} participants, not {size!r}"
            )
        self.name = name
        self._size = size
        self._ttl = ttl
        self._on_lost = on_lost
        self._session: Session | None = None
        self._generation = 0
        """Process that is within, as `forks` counts."""
        self._key = ""
        self.participants: tuple[str, ...] = ()
        """Of the round within which this is, sorted; none: it is outside."""

    def note_lost(self) -> None:
        """Hear of the loss of the lease."""
        if self.participants:
            self._on_lost()

    def enter(self, timeout: float) -> Steps[None]:
        """Wait until all participants have come.

        Raises:
            StoreTimeout: some were missing at the deadline; names those that came.
            Refused: others wait there with another size.
            BarrierCancelled: somebody cancelled it.
            LockLost: the lease was lost meanwhile.
        """
        job = self.name.job
        limit = clip_or_raise(lambda: f"enter {self.name}", timeout)
        if self._session is not None and not forks.is_inherited(self._generation):
            raise LockHeld(f"this object is within {self.name}, or waits there: use another one")
        self._generation = forks.generation
        deadline = time.monotonic() + limit
        try:
            session: Session = yield OpenSession(self._ttl, self, find_remaining(deadline))
            self._session = session
            place = f"{session.number:016x}-{session.make_number()}"
            self._key = self.name.prefix + place
            put = Put(self._key, describe_process(), session.number)
            yield Ask(requests.make_put(job, put), find_remaining(deadline))
            # Its name ends with that of the key.
            own = f"{describe_process()} #{place}"
            asked = make_barrier(job, self.name.name, own, size=self._size)
            passed: BarrierPassage = yield Await(asked, find_remaining(deadline), session)
        except BaseException as error:
            yield from self._remove()
            if isinstance(error, NotFound):
                raise self._make_lost() from error
            raise
        self.participants = passed.arrived
        if session.is_lost:
            yield from self._remove()
            raise self._make_lost()

    def leave(self, timeout: float) -> Steps[None]:
        """Wait until all participants leave, or have died; outside afterwards in any case.

        Raises:
            StoreTimeout: some were within at the deadline; names them.
            LockLost: this is not within, or the lease was lost.
        """
        session = self._session
        if session is None or not self.participants or forks.is_inherited(self._generation):
            raise LockLost(f"this process is not within {self.name}")
        limit = clip_or_raise(lambda: f"leave {self.name}", timeout)
        deadline = time.monotonic() + limit
        names = {self.name.prefix + one.rpartition("#")[2]: one for one in self.participants}
        others: list[str] = []
        try:
            if session.is_lost:
                raise self._make_lost()
            while (awaited := (yield from self._look(sorted(names), deadline, others))) is not None:
                key, revision = awaited
                keys = WatchedKeys(key, puts=False)
                yield from wait_for_event(self.name.job, keys, revision, session, deadline)
        except StoreTimeout as error:
            named = ", ".join(names[key] for key in others[:_MOST_NAMED])
            more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
            raise StoreTimeout(
                f"timeout: {len(others)} of {self._size} are still within {self.name} after "
                f"{limit:.3g} s: {named}{more}"
            ) from error
        finally:
            if self._key:
                yield from self._remove()

    def _look(
        self, keys: list[str], deadline: float, others: list[str]
    ) -> Steps[tuple[str, int] | None]:
        """Leave where it is this one's turn; return the key to wait for with the revision.

        `others` are set to the keys of the others that are within. None: it is over.
        """
        job = self.name.job
        everyone = Get(self.name.prefix, prefix=True, keys_only=True)
        parts: list[Operation] = [everyone]
        is_first = keys[0] == self._key or self._key == ""
        if not is_first:
            parts.insert(0, Delete(self._key))
        asked = requests.make_txn(job, [], parts, [])
        done: TxnResult = yield Ask(asked, find_remaining(deadline))
        if not is_first:
            self._forget_key()
        found = done.results[-1]
        assert isinstance(found, KeyRange)
        inside = {one.key for one in found.records}
        within = [key for key in keys if key in inside and key != self._key]
        others[:] = within
        if not within:
            if self._key:
                yield from self._remove()
            return None
        # The first one goes last, and has the others go one by one.
        return (within[-1] if self._key else within[0]), done.revision

    def _remove(self) -> Steps[None]:
        """Be outside."""
        key, job = self._key, self.name.job
        self._forget_key()
        if not key:
            return
        try:
            asked = requests.make_delete(job, Delete(key))
            yield Ask(asked, LEAVE_SECONDS, is_detached=True)
        except (CoordinatorUnavailable, StoreTimeout, Refused):
            yield Background(remove(job, key, is_unsure=True))
        except AllhandsError:
            return  # not allowed: it ends with its lease
        except BaseException:
            yield Background(remove(job, key, is_unsure=True))
            raise

    def _forget_key(self) -> None:
        if self._session is not None:
            self._session.users.discard(self)
        self._session = None
        self._key = ""
        self.participants = ()

    def _make_lost(self) -> LockLost:
        return LockLost(f"{self.name} was left by the loss of the lease of {self._ttl:g} s")
