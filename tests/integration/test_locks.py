"""Locks, semaphores and elections for threads."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import allhands as ah
from allhands import kv
from allhands.coordinator.client import Control
from allhands.coordinator.recipes.steps import Ask, Await
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember

_PATIENCE = 60.0
_SHORT = 3.0
"""A deadline that passes, with room for the calls before the wait."""
_TTL = 9.0
"""A loss is noticed after a third of it, and nothing is lost on a busy host."""


@pytest.fixture
def connect(daemon: DaemonProcess, job_name: str) -> Callable[[], Control]:
    """Return a factory of clients of the test's job."""
    return lambda: Control(daemon.endpoint, job=job_name, timeout=_PATIENCE)


@pytest.fixture
def control(connect: Callable[[], Control]) -> Iterator[Control]:
    with connect() as made:
        yield made


@pytest.fixture
def other(connect: Callable[[], Control]) -> Iterator[Control]:
    with connect() as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


def await_waiting(lock: ah.Lock, count: int) -> None:
    poll_until(lambda: lock.status().waiting == count, _PATIENCE)


def test_a_lock_is_held_by_one_at_a_time_in_the_order_of_asking(
    control: Control, other: Control, pool: ThreadPoolExecutor
) -> None:
    order: list[int] = []
    revisions: list[int] = []
    inside = threading.Semaphore(1)

    def hold(number: int) -> None:
        with (control, other)[number % 2].lock("l") as lock:
            assert inside.acquire(blocking=False)
            order.append(number)
            revisions.append(lock.revision)
            inside.release()

    with control.lock("l") as first:
        waiting: list[Future[None]] = []
        for number in range(6):
            waiting.append(pool.submit(hold, number))
            await_waiting(first, number + 1)
        assert not order
    for one in waiting:
        one.result(_PATIENCE)
    assert order == list(range(6))
    assert revisions == sorted(set(revisions))
    assert control.list("_allhands/locks/") == ()


def test_names_with_a_slash_are_locks_of_their_own(control: Control) -> None:
    with control.lock("a/b"), control.lock("a"), control.lock("a%2Fb"):
        assert len(control.list("_allhands/locks/")) == 3


def test_a_lock_that_was_lost_lets_nobody_write(control: Control, other: Control) -> None:
    lock = control.lock("l")
    with pytest.raises(ah.LockLost, match="is not held"):
        _ = lock.condition
    lock.acquire()
    held = lock.condition
    assert (lock.is_held, lock.revision > 0) == (True, True)
    assert control.transaction([held], [kv.Put("k", "mine")])
    lock.release()
    assert [lock.is_held, lock.revision] == [False, 0]
    assert not control.transaction([held], [kv.Put("k", "late")])
    with other.lock("l") as next_one:
        assert next_one.key != lock.key
        assert not control.transaction([held], [kv.Put("k", "late")])
    assert control.get("k") == b"mine"


def test_a_thread_that_waits_for_itself_is_told(control: Control, other: Control) -> None:
    with control.lock("l") as lock:
        with pytest.raises(ah.LockHeld, match="this object holds lock 'l'"):
            lock.acquire()
        with pytest.raises(ah.LockHeld, match="not re-entrant"):
            control.lock("l").acquire()
        assert not other.lock("l").try_acquire()
    with control.lock("l"):
        pass


def test_a_deadline_names_the_holder_and_leaves_the_queue(
    control: Control, other: Control, pool: ThreadPoolExecutor
) -> None:
    with control.lock("l") as lock:
        longer = pool.submit(other.lock("l").acquire)
        await_waiting(lock, 1)
        with pytest.raises(ah.LockTimeout) as caught:
            other.lock("l").acquire(timeout=_SHORT)
        await_waiting(lock, 1)
        (holder,) = caught.value.holders
        assert (holder.pid, holder.key) == (os.getpid(), lock.key)
        assert holder.revision == lock.revision
        assert holder.since is not None
        assert abs(holder.since - time.time()) < _PATIENCE
        assert caught.value.waiting == 1
        said = str(caught.value)
        assert f"pid {os.getpid()} since 20" in said
        assert "1 more waits" in said
    longer.result(_PATIENCE)


def test_a_block_s_deadline_ends_a_wait_and_its_place(control: Control, other: Control) -> None:
    with control.lock("l") as lock:
        with ah.deadline(_SHORT), pytest.raises(ah.LockTimeout, match="held by"):
            other.lock("l").acquire()
        assert lock.status().waiting == 0
        with ah.deadline(0), pytest.raises(ah.StoreTimeout, match="acquire lock 'l'"):
            other.lock("l").acquire()
        with ah.deadline(0):
            lock.release()
        lock.acquire()


def test_ctrl_c_leaves_the_queue(control: Control, other: Control) -> None:
    with control.lock("l") as lock:

        def interrupt() -> None:
            await_waiting(lock, 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            other.lock("l").acquire()
        thread.join()
        assert lock.status().waiting == 0


def test_a_free_lock_is_taken_and_a_held_one_is_not(control: Control, other: Control) -> None:
    lock = control.lock("l")
    assert lock.try_acquire()
    assert not other.lock("l").try_acquire()
    assert lock.status().waiting == 0
    lock.release()
    assert other.lock("l").try_acquire()


def test_the_loss_of_the_lease_is_told_to_holder_and_waiter(
    control: Control, other: Control, pool: ThreadPoolExecutor, connect: Callable[[], Control]
) -> None:
    lock = control.lock("l", ttl=_TTL)
    lock.acquire()
    waiting = pool.submit(other.lock("l", ttl=_TTL).acquire)
    await_waiting(lock, 1)
    with connect() as third:
        late = pool.submit(third.lock("l").acquire)
        await_waiting(lock, 2)
        places = "_allhands/locks/l/"
        first, second = control.get_range(places, prefix=True, sort_by="create").records[:2]
        for place in (second, first):  # else the second one may hold it before it loses it
            control.revoke_lease(place.lease)
        late.result(_PATIENCE)
        assert lock.lost.wait(_PATIENCE)
        with pytest.raises(ah.LockLost):
            waiting.result(_PATIENCE)
        with pytest.raises(ah.LockLost, match="lost before its release"):
            lock.release()
        with control.lock("m", ttl=_TTL) as fresh:  # of a new session
            assert not fresh.is_lost


def test_a_block_that_lost_its_lock_does_not_end_well(control: Control) -> None:
    with pytest.raises(ah.LockLost, match="lost before its release"), control.lock("l") as lock:
        control.delete(lock.key)
    error = ZeroDivisionError()

    def lose_and_fail() -> None:
        with control.lock("l") as lock:
            control.delete(lock.key)
            raise error

    with pytest.raises(ZeroDivisionError):
        lose_and_fail()


def test_the_end_of_one_place_wakes_one_place(
    control: Control, other: Control, pool: ThreadPoolExecutor
) -> None:
    asked: Counter[str] = Counter()
    perform = other._driver._perform

    def count(job: str, step: Any) -> Any:
        if isinstance(step, Ask | Await):
            asked[type(step.asked.message).__name__] += 1
        return perform(job, step)

    other._driver._perform = count  # type: ignore[method-assign]
    held = control.lock("l")
    held.acquire()
    let_go = threading.Event()

    def hold() -> None:
        with other.lock("l"):
            assert let_go.wait(_PATIENCE)

    for number in range(5):
        pool.submit(hold)
        await_waiting(held, number + 1)
    poll_until(lambda: asked["WatchRequest"] == 5, _PATIENCE)
    before = asked.copy()
    held.release()
    poll_until(lambda: asked["RangeRequest"] > before["RangeRequest"], _PATIENCE)
    await_waiting(held, 4)
    assert asked["RangeRequest"] - before["RangeRequest"] == 1
    assert asked["WatchRequest"] == before["WatchRequest"]
    let_go.set()


def test_a_place_that_gives_up_wakes_the_one_behind_to_wait_on(
    control: Control, other: Control, pool: ThreadPoolExecutor, connect: Callable[[], Control]
) -> None:
    with control.lock("l") as lock:
        with connect() as third:
            short = pool.submit(third.lock("l").acquire)
            await_waiting(lock, 1)
            longer = pool.submit(other.lock("l").acquire)
            await_waiting(lock, 2)
        assert isinstance(short.exception(_PATIENCE), ah.CoordinatorUnavailable)
        await_waiting(lock, 1)
        assert not longer.done()
    longer.result(_PATIENCE)


def test_a_closed_client_lets_go_at_once(
    connect: Callable[[], Control], other: Control, pool: ThreadPoolExecutor
) -> None:
    with connect() as control:
        control.lock("l", ttl=3600).acquire()
        waiting = pool.submit(other.lock("l").acquire)
        await_waiting(control.lock("l"), 1)
    waiting.result(_PATIENCE)


def test_one_session_serves_the_locks_of_a_client_and_ends_without_them(control: Control) -> None:
    for _ in range(3):
        with control.lock("a", ttl=3), control.lock("b", ttl=3):
            assert len(control.leases()) == 1
    poll_until(lambda: control.leases() == (), _PATIENCE)
    with control.lock("a", ttl=3):
        assert len(control.leases()) == 1


def test_a_lock_bound_to_a_member_ends_with_it(
    control: Control, other: Control, join_job: Callable[[int, int], RawMember]
) -> None:
    joined = join_job(0, 1)
    member = joined.receive("world_formed").world_formed.members[0].member_id
    lock = control.lock("l", ttl=3600, member=member)
    lock.acquire()
    joined.close()
    other.lock("l").acquire()
    with pytest.raises(ah.LockLost):
        lock.release()


def test_a_forked_child_leaves_the_lock_to_its_parent(control: Control, other: Control) -> None:
    with control.lock("l") as lock:
        if (child := os.fork()) == 0:
            status = 1
            try:
                lock.release()
            except ah.LockLost:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not other.lock("l").try_acquire()


def test_a_semaphore_is_held_by_as_many_as_it_has_permits(
    control: Control, other: Control, pool: ThreadPoolExecutor
) -> None:
    held = [control.semaphore("s", 2), control.semaphore("s", 2)]
    for one in held:
        one.acquire()
    order: list[int] = []

    def hold(number: int) -> None:
        with other.semaphore("s", 2):
            order.append(number)
            assert let_go[number].wait(_PATIENCE)

    let_go = [threading.Event() for _ in range(4)]
    waiting = []
    for number in range(4):
        waiting.append(pool.submit(hold, number))
        await_waiting(held[0], number + 1)
    with pytest.raises(ah.LockTimeout) as caught:
        other.semaphore("s", 2).acquire(timeout=_SHORT)
    assert [one.key for one in caught.value.holders] == [one.key for one in held]
    held[1].release()
    poll_until(lambda: order == [0], _PATIENCE)
    held[0].release()
    poll_until(lambda: order == [0, 1], _PATIENCE)
    let_go[1].set()
    poll_until(lambda: order == [0, 1, 2], _PATIENCE)
    for event in let_go:
        event.set()
    for result in waiting:
        result.result(_PATIENCE)
    assert order == list(range(4))


def test_another_number_of_permits_is_refused_at_once(control: Control, other: Control) -> None:
    with control.semaphore("s", 2) as first:
        with pytest.raises(ah.Refused, match="used with 2 permits by those"):
            other.semaphore("s", 3).acquire()
        assert first.status().waiting == 0
    with other.semaphore("s", 3):
        pass
    with pytest.raises(ValueError, match="1 to 1,000 permits"):
        control.semaphore("s", 0)


def test_an_election_has_one_leader_after_the_other(
    control: Control, other: Control, pool: ThreadPoolExecutor
) -> None:
    watching = other.election("e").observe()
    with control.election("e") as first:
        assert first.leader() is None
        first.campaign("one")
        seen = [next(watching)]
        assert seen[0].revision == first.revision
        second = other.election("e")
        candidate = pool.submit(second.campaign, "two")
        poll_until(lambda: control.count("_allhands/elections/e/") == 2, _PATIENCE)
        changed = first.proclaim("one more")
        seen.append(next(watching))
        assert seen[1].mod_revision == changed
        assert other.election("e").leader() == seen[1]
        with pytest.raises(ah.LockTimeout, match="election 'e'"):
            pool.submit(control.election("e").campaign, "late", timeout=0.2).result(_PATIENCE)
    candidate.result(_PATIENCE)
    second.proclaim("three")
    seen += [next(watching), next(watching)]
    assert [one.value for one in seen] == [b"one", b"one more", b"two", b"three"]
    assert seen[2].revision > seen[1].revision
    with pytest.raises(ah.LockLost):
        first.proclaim("late")
    control.delete(second.key)
    with pytest.raises(ah.LockLost):
        second.proclaim("late")


def test_bad_names_are_refused(control: Control) -> None:
    for name in ("", "x" * 257):
        with pytest.raises(ValueError, match="text of 1 to 256 characters"):
            control.lock(name)
    with pytest.raises(ValueError, match="a lease lives from"):
        control.lock("l", ttl=0.01).acquire()
