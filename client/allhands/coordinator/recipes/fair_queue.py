"""Places in fair queues: taken, waited in and left, by steps.

The places of a queue are keys under its prefix, bound to their sessions' leases, in the order of
their creation: who comes first is first, and has the revision of the creation as a fencing token. A
place waits for the one before it alone, so the end of one wakes one.
"""

import time
from collections.abc import Callable, Hashable

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import DeleteResult, KeyRange, PutResult, TxnResult
from allhands.coordinator.kv.requests import WatchedKeys
from allhands.coordinator.kv.transactions import (
    Condition,
    Delete,
    Get,
    Operation,
    Put,
    create_revision,
    version,
)
from allhands.coordinator.recipes.leaving import LEAVE_SECONDS, remove
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.session import Session
from allhands.coordinator.recipes.standing import (
    LockStatus,
    encode_since,
    make_status,
    make_status_requests,
    read_permits,
)
from allhands.coordinator.recipes.steps import Ask, Background, OpenSession, Steps
from allhands.coordinator.recipes.waiting import find_remaining, wait_for_event
from allhands.deadlines import clip_or_raise
from allhands.errors import (
    AllhandsError,
    CoordinatorUnavailable,
    LeaseNotFound,
    LockHeld,
    LockLost,
    LockTimeout,
    NotFound,
    Refused,
    StoreTimeout,
)
from allhands_proto import forks
from allhands_proto.quick_dataclass import dataclass

_LONG_SECONDS = 0.5
"""Who has waited for longer says anew since when it holds."""
Holdings = dict[tuple[str, Hashable], "QueuePlace"]
"""Locks and elections of a client, by the prefix of their keys and the thread or task."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a place waits for, as seen at a revision; keys None: for nothing."""

    revision: int
    keys: WatchedKeys | None = None


class QueuePlace:
    """A caller's place in a fair queue; without one until `enter`, and after `leave`."""

    def __init__(
        self,
        queue: QueueName,
        holdings: Holdings,
        *,
        ttl: float,
        member: str,
        on_lost: Callable[[], None],
    ) -> None:
        """Make a place that is not taken; `on_lost` is called when its lease was lost."""
        self.queue = queue
        self._holdings = holdings
        self._ttl = ttl
        self._member = member
        self._on_lost = on_lost
        self._session: Session | None = None
        self._held_as: tuple[str, Hashable] | None = None
        self._is_sent = False
        """Whether there may be a key."""
        self._generation = 0
        """Process that has the place, as `forks` counts."""
        self.key = ""
        self.revision = 0
        """Fencing token, of a place that is held; else 0."""

    @property
    def condition(self) -> Condition:
        """The condition that this place is held, for transactions."""
        if not self.revision:
            raise LockLost(f"{self.queue} is not held")
        made: Condition = create_revision(self.key) == self.revision
        return made

    def note_lost(self) -> None:
        """Hear of the loss of the lease."""
        if self.revision:
            self._on_lost()

    def enter(
        self,
        owner: Hashable,
        timeout: float,
        value: bytes | None = None,
        *,
        waits: bool = True,
    ) -> Steps[bool]:
        """Take a place and wait until it is among the first; return whether it is held.

        It is not, and left again, where others hold it and `waits` is false. `value` None: the time
        from which on it is held.

        Raises:
            LockTimeout: others held it at the deadline; names them.
            LockHeld: the owner holds it.
            Refused: others use the semaphore with another number of permits.
            LockLost: the lease was lost meanwhile.
        """
        limit = clip_or_raise(lambda: f"acquire {self.queue}", timeout)
        self._check_free(owner)
        begun = time.monotonic()
        deadline = begun + limit
        try:
            turn = yield from self._take(deadline, value)
            if turn.keys is not None and not waits:
                yield from self._give_up()
                return False
            while turn.keys is not None:
                assert self._session is not None
                yield from wait_for_event(
                    self.queue.job, turn.keys, turn.revision, self._session, deadline
                )
                turn = yield from self._look(deadline)
                if turn.keys is None:
                    yield from self._tell_since(value, begun, deadline)
            self._check_session()
        except StoreTimeout as error:
            raise (yield from self._explain_timeout(time.monotonic() - begun)) from error
        except BaseException:
            yield from self._give_up()
            raise
        return True

    def leave(self, timeout: float) -> Steps[None]:
        """Leave the place; where the coordinator is away, at the latest with the lease's end.

        Raises:
            LockLost: the place had ended before.
        """
        session = self._check_held()
        key, self.revision = self.key, 0
        is_gone = session.is_lost
        try:
            if not is_gone:
                delete = requests.make_delete(self.queue.job, Delete(key))
                limit = min(timeout, self._ttl)
                is_gone = (yield Ask(delete, limit, is_detached=True)).deleted == 0
        except (CoordinatorUnavailable, StoreTimeout, Refused):  # refused by a full log
            yield Background(remove(self.queue.job, key, is_unsure=False))
        except BaseException:
            yield Background(remove(self.queue.job, key, is_unsure=False))
            raise
        finally:
            self._forget()
        if is_gone:
            raise LockLost(
                f"{self.queue} was lost before its release: the lease had ended, or the key "
                f"{key!r} was deleted; others may have held it meanwhile"
            )

    def update(self, value: bytes, timeout: float) -> Steps[int]:
        """Set the value of a place that is held; return the revision of the change.

        Raises:
            LockLost: the place had ended before.
        """
        session = self._check_held()
        put = Put(self.key, value, session.number, self._member)
        asked = requests.make_txn(self.queue.job, [self.condition], [put], [])
        try:
            done: TxnResult = yield Ask(asked, timeout)
        except NotFound as error:  # the lease
            raise self._make_lost() from error
        if not done.succeeded:
            raise self._make_lost()
        return done.revision

    def describe(self, timeout: float) -> Steps[LockStatus]:
        """Return the holders, and the number of those that wait."""
        head = yield Ask(requests.make_get(self.queue.job, self._make_full_head()), timeout)
        return (yield from self._name_holders(head, head.count, timeout))

    # ------------------------------------------------------------ taking a place

    def _check_free(self, owner: Hashable) -> None:
        if forks.is_inherited(self._generation):  # the parent's
            self._generation, self.revision = forks.generation, 0
            self._session = self._held_as = None
        if self._session is not None:
            raise LockHeld(f"this object holds {self.queue}, or waits for it: use another one")
        if self.queue.permits == 1:
            held_as = self.queue.prefix, owner
            if held_as in self._holdings:
                raise LockHeld(
                    f"{self.queue} is held, or waited for, by this thread or task, which would "
                    "wait for itself: it is not re-entrant"
                )
            self._holdings[held_as] = self
            self._held_as = held_as

    def _take(self, deadline: float, value: bytes | None) -> Steps[_Turn]:
        """Put the key, in the client's session."""
        is_repeated = False
        while True:
            session: Session = yield OpenSession(self._ttl, self, find_remaining(deadline))
            self._session = session
            self.key = self.queue.make_key(session.number, session.make_number())
            try:
                return (yield from self._put(session, deadline, value))
            except NotFound:  # the lease, or the member
                # The coordinator lost the lease, and the keep-alives have not found out yet.
                if is_repeated or not (yield from self._has_ended(session, deadline)):
                    raise
            is_repeated = True
            session.users.discard(self)
            session.lose()

    def _put(self, session: Session, deadline: float, value: bytes | None) -> Steps[_Turn]:
        queue = self.queue
        since = encode_since(queue.permits) if value is None else value
        put = Put(self.key, since, session.number, self._member)
        head, tail = queue.make_head(queue.permits + 1), queue.make_tail(2)
        asked = requests.make_txn(queue.job, [version(self.key) == 0], [put, head, tail], [])
        self._is_sent = True
        done: TxnResult = yield Ask(asked, find_remaining(deadline))
        if not done.succeeded:
            raise AllhandsError(f"{queue}: key {self.key!r} of this place exists")
        stored, first, last = done.results
        assert isinstance(stored, PutResult)
        assert isinstance(first, KeyRange)
        assert isinstance(last, KeyRange)
        if (others := read_permits(first.records[0])) != queue.permits and value is None:
            raise Refused(
                f"{queue} is used with {others} permits by those who are there, and this caller "
                f"comes with {queue.permits}"
            )
        turn = self._find_turn(first, done.revision)
        return turn or self._wait_for(last.records[1].key, done.revision)

    def _has_ended(self, session: Session, deadline: float) -> Steps[bool]:
        asked = requests.make_keep_alive(self.queue.job, session.number)
        try:
            yield Ask(asked, find_remaining(deadline))
        except LeaseNotFound:
            return True
        return False

    # ------------------------------------------------------------ waiting

    def _find_turn(self, head: KeyRange, revision: int) -> _Turn | None:
        """Return what to wait for; None: the place is not in the head."""
        queue = self.queue
        keys = [one.key for one in head.records]
        if self.key not in keys:
            is_behind = head.has_more and len(keys) > queue.permits + 1
            return self._wait_for(keys[-1], revision) if is_behind else None
        place = keys.index(self.key)
        if place < queue.permits:
            self.revision = head.records[place].create_revision
            return _Turn(revision)
        if place > queue.permits or queue.permits == 1:
            return self._wait_for(keys[place - 1], revision)
        # The first of those that wait: any holder may be the next to leave.
        return _Turn(revision, WatchedKeys(queue.prefix, prefix=True, puts=False))

    def _wait_for(self, key: str, revision: int) -> _Turn:
        """Wait for the end of the place before, or for its turn where there are more permits."""
        return _Turn(revision, WatchedKeys(key, puts=self.queue.permits > 1))

    def _look(self, deadline: float) -> Steps[_Turn]:
        """Return what the place waits for now.

        Raises:
            LockLost: the place has ended.
        """
        job, queue = self.queue.job, self.queue
        head = queue.make_head(queue.permits + 1, keys_only=True)
        found: KeyRange = yield Ask(requests.make_get(job, head), find_remaining(deadline))
        if (turn := self._find_turn(found, found.revision)) is None:
            whole = queue.make_head(0, keys_only=True)
            found = yield Ask(requests.make_get(job, whole), find_remaining(deadline))
            turn = self._find_turn(found, found.revision)
        if turn is None:
            raise self._make_lost()
        return turn

    def _tell_since(self, value: bytes | None, begun: float, deadline: float) -> Steps[None]:
        """Say since when the place is held; the next one in a semaphore's queue hears of it."""
        if value is not None:
            return
        if self.queue.permits == 1 and time.monotonic() - begun < _LONG_SECONDS:
            return
        put = Put(self.key, encode_since(self.queue.permits), keeps_bindings=True)
        try:
            yield Ask(requests.make_put(self.queue.job, put), find_remaining(deadline))
        except NotFound as error:
            raise self._make_lost() from error

    # ------------------------------------------------------------ leaving

    def _give_up(self) -> Steps[KeyRange | None]:
        """Leave the queue, held or not; return the queue's head as it was, if that is known."""
        key, was_sent, was_known = self.key, self._is_sent, self.revision > 0
        self.revision = 0
        job = self.queue.job
        try:
            if not was_sent:
                return None
            parts: list[Operation] = [self._make_full_head(), Delete(key)]
            asked = requests.make_txn(job, [], parts, [])
            done: TxnResult = yield Ask(asked, LEAVE_SECONDS, is_detached=True)
        except BaseException as error:
            yield Background(remove(job, key, is_unsure=not was_known))
            if not isinstance(error, Exception):
                raise
            return None
        finally:
            self._forget()
        head, deletion = done.results
        assert isinstance(head, KeyRange)
        assert isinstance(deletion, DeleteResult)
        if not deletion.deleted:  # a request that is still on its way may put it yet
            yield Background(remove(job, key, is_unsure=True))
        return head

    def _explain_timeout(self, waited: float) -> Steps[Exception]:
        """Leave the queue; return the error that names the holders."""
        queue = self.queue
        said = f"timeout: {queue} was not acquired in {waited:.3g} s"
        own = self.key
        if (head := (yield from self._give_up())) is None:
            return LockTimeout(f"{said}: the coordinator does not say who holds it", (), 0)
        status = yield from self._name_holders(head, head.count, LEAVE_SECONDS)
        holders = tuple(one for one in status.holders if one.key != own)
        waiting = max(status.waiting - 1, 0)
        named = "; ".join(map(str, holders)) or "nobody any more"
        return LockTimeout(
            f"{said}: held by {named}; {waiting} more {'waits' if waiting == 1 else 'wait'}",
            holders,
            waiting,
        )

    def _name_holders(self, head: KeyRange, count: int, timeout: float) -> Steps[LockStatus]:
        holders, asked = make_status_requests(self.queue, head)
        sessions: TxnResult | None = None
        if holders:
            try:
                sessions = yield Ask(asked, timeout, is_detached=True)
            except AllhandsError:  # then the keys have to do
                sessions = None
        return make_status(self.queue, count, holders, sessions)

    def _make_full_head(self) -> Get:
        return self.queue.make_head(min(self.queue.permits, 8) + 1)

    def _forget(self) -> None:
        """Be without a place."""
        if self._session is not None:
            self._session.users.discard(self)
        self._session = None
        self._is_sent = False
        if self._held_as is not None:
            self._holdings.pop(self._held_as, None)
            self._held_as = None

    # ------------------------------------------------------------ checks

    def _check_held(self) -> Session:
        if self.revision and forks.is_inherited(self._generation):
            raise LockLost(
                f"{self.queue} is held by the process that this one was forked from, and not by "
                "its child"
            )
        if self._session is None or not self.revision:
            raise LockLost(f"{self.queue} is not held")
        return self._session

    def _check_session(self) -> None:
        if self._session is None or self._session.is_lost:
            raise self._make_lost()

    def _make_lost(self) -> LockLost:
        return LockLost(
            f"{self.queue} was lost: the lease of {self._ttl:g} s had ended, or the key "
            f"{self.key!r} was deleted"
        )
