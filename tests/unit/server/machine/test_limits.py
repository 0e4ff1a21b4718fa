"""Limits of jobs: counts and bytes, refused by name before anything changes."""

import random

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.effects import Answer, Changed
from allhands_server.machine.events import CommitsRefused, RequestCancelled, RequestReceived
from allhands_server.machine.member_messages import Leave, OpenGroup
from allhands_server.machine.memory_use import (
    LEASE_NBYTES,
    NAME_NBYTES,
    QUEUED_NBYTES,
    RECORD_NBYTES,
    WAITER_NBYTES,
)
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import Barrier, DeleteJob, Request
from allhands_server.machine.store.key_results import RangeResult
from allhands_server.machine.store.keys import (
    Add,
    Append,
    CompareSet,
    Count,
    Delete,
    Get,
    MultiSet,
    Set,
    Wait,
)
from allhands_server.machine.store.leases import LeaseGrant, LeaseRevoke
from allhands_server.machine.store.queues import QueuePop, QueuePush
from allhands_server.machine.store.records import DeleteRange, Put, Range
from allhands_server.machine.store.transactions import Txn
from allhands_server.resource_limits import ResourceLimits
from allhands_server.testing import Transcript

MEMORY = 16 << 20
_JOB_MOST = MEMORY // 4


def start(**limits: int) -> Transcript:
    return Transcript(machine=Machine(limits=ResourceLimits(**limits)))


def used(t: Transcript) -> int:
    """Return the bytes of all jobs, which are those of each together."""
    jobs = t.machine._jobs
    assert jobs.signals.memory.nbytes == sum(job.memory.nbytes for job in jobs)
    return jobs.signals.memory.nbytes


# ---------------------------------------------------------------- counts


def test_a_job_has_so_many_keys_and_others_have_theirs() -> None:
    t = start(job_keys=2)
    for key in "ab":
        t.ask_now(Set("j", key, b""))
    refusal = t.ask_refused(Set("j", "c", b""))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "job j has 2 keys" in refusal.text
    assert "--limit job-keys=" in refusal.text
    t.ask_now(Set("j", "a", b"again"))
    t.ask_now(Set("other", "c", b""))
    t.ask_now(Delete("j", "a"))
    t.ask_now(Set("j", "c", b""))


@pytest.mark.parametrize(
    "request_",
    [
        MultiSet("j", (("a", b""), ("b", b""), ("c", b""))),
        Txn("j", (), (Put("j", "b"), Put("j", "c")), ()),
    ],
)
def test_puts_of_one_request_are_counted_together(request_: Request[object]) -> None:
    t = start(job_keys=2)
    t.ask_now(Set("j", "a", b"old"))
    assert "job-keys" in t.ask_refused(request_).text
    assert t.ask_now(Count("j")) == 1
    assert t.ask_now(Get("j", "a")).value == b"old"


@pytest.mark.parametrize(
    "request_",
    [
        Set("j", "k", b"12345"),
        Put("j", "k", b"12345"),
        CompareSet("j", "k", b"", b"12345"),
        MultiSet("j", (("k", b"12345"),)),
        QueuePush("j", "k", b"12345"),
    ],
)
def test_values_are_of_the_configured_size(request_: Request[object]) -> None:
    refusal = start(value_size=4).ask_refused(request_)
    assert refusal.status is Status.INVALID_ARGUMENT
    assert "5 bytes; 4 is the most" in refusal.text


def test_a_value_grows_up_to_the_configured_size() -> None:
    t = start(value_size=4)
    t.ask_now(Append("j", "k", b"123"))
    assert "5 bytes; 4 is the most" in t.ask_refused(Append("j", "k", b"45")).text
    assert t.ask_now(Get("j", "k")).value == b"123"


def test_so_many_calls_of_a_job_wait() -> None:
    t = start(job_waiters=2)
    first = t.ask(Get("j", "k", wait=True))
    t.ask(Barrier("j", "b", "p", ("p", "q")))
    for request in (
        Get("j", "k", wait=True),
        QueuePop("j", "q", wait=True),
        Barrier("j", "other", "p", ("p", "q")),
    ):
        refusal = t.ask_refused(request)
        assert refusal.status is Status.RESOURCE_EXHAUSTED
        assert "2 waiting calls" in refusal.text
    t.ask(Get("other", "k", wait=True))
    t.handle(RequestCancelled(first))
    t.ask(Get("j", "k", wait=True))


def test_an_arrival_that_is_refused_does_not_count() -> None:
    t = start(job_waiters=1)
    t.ask(Get("j", "k", wait=True))
    t.ask_refused(Barrier("j", "b", "p", ("p", "q")))
    t.ask_now(Set("j", "k", b""))
    arrived = t.ask(Barrier("j", "b", "p", ("p", "q")))
    t.ask(Barrier("j", "b", "q", ("p", "q")))
    assert t.outcomes[arrived] == 1


def test_there_are_so_many_jobs_and_an_idle_one_makes_room() -> None:
    t = start(jobs=2)
    t.ask_now(Set("a", "k", b""))
    t.ask_now(Set("b", "k", b""))
    refusal = t.ask_refused(Set("c", "k", b""))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "there are 2 jobs" in refusal.text
    t.ask_now(DeleteJob("b", "somebody"))
    for session in t.form_world(1, job="ended"):
        t.ask_now(Set("ended", "k", b"of an ended world"))
        t.send(session, Leave())
    t.ask_now(Set("c", "k", b""))
    assert used(t) == 2 * (RECORD_NBYTES + 1)


def test_a_job_has_so_many_members() -> None:
    t = start(job_members=2)
    for rank in range(2):
        t.join(rank=rank, job="j", world_size=3)
    refused = t.join(rank=2, job="j", world_size=3)
    refusal = t.ends[refused]
    assert isinstance(refusal, Refusal)
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "job j has 2 members" in refusal.text


def test_a_job_has_so_many_groups() -> None:
    t = start(job_groups=1)
    sessions = t.form_world(2, job="j")
    for session in sessions:
        t.send(session, OpenGroup("one", (0, 1)))
    t.send(sessions[0], OpenGroup("two", (0, 1)))
    refusal = t.ends[sessions[0]]
    assert isinstance(refusal, Refusal)
    assert "job j has 1 groups" in refusal.text


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    "make",
    [
        lambda n: Set("j", f"k{n}", bytes(1 << 20)),
        lambda n: Append("j", f"k{n}", bytes(1 << 20)),
        lambda n: CompareSet("j", f"k{n}", b"", bytes(1 << 20)),
        lambda n: Put("j", f"k{n}", bytes(1 << 20)),
        lambda n: MultiSet("j", ((f"k{n}", bytes(1 << 20)),)),
        lambda n: Txn("j", (), (Put("j", f"k{n}", bytes(1 << 20)),), ()),
        lambda n: QueuePush("j", "q", bytes(1 << 20)),
        lambda n: LeaseGrant("j", 1e6),
        lambda n: Wait("j", tuple(f"{n} {key}" for key in range(1000))),
    ],
)
def test_the_bytes_of_a_job_are_bounded_and_leave_room_for_others(make: object) -> None:
    t = start(memory=MEMORY, job_leases=0)
    refusal = None
    for number in range(_JOB_MOST // LEASE_NBYTES + 2):
        ticket = t.ask(make(number))  # type: ignore[operator]
        if isinstance(refusal := t.outcomes.get(ticket), Refusal):
            break
    assert isinstance(refusal, Refusal)
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "--limit job-bytes=" in refusal.text
    assert used(t) <= _JOB_MOST
    t.ask_now(Set("other", "k", bytes(1 << 20)))


def test_the_bytes_of_all_jobs_are_bounded_and_deletions_make_room() -> None:
    t = start(memory=MEMORY, job_bytes=1 << 30)
    for number in range(7):
        t.ask_now(Set(f"j{number}", "k", bytes(1 << 20)))
    refusal = t.ask_refused(Set("last", "k", bytes(1 << 20)))
    assert "all jobs together have" in refusal.text
    assert "--limit memory=" in refusal.text
    assert t.ask_now(Get("j0", "k")).value == bytes(1 << 20)
    t.ask_now(Add("j0", "small", 1))
    t.ask_now(Delete("j0", "k"))
    t.ask_now(Set("last", "k", bytes(1 << 20)))


def test_a_put_that_takes_no_more_room_is_made_where_there_is_none() -> None:
    t = start(memory=MEMORY)
    for number in range(3):
        t.ask_now(Set("j", f"k{number}", bytes(1 << 20)))
    t.ask_refused(Set("j", "k3", bytes(1 << 20)))
    t.ask_now(Set("j", "k0", bytes(1 << 20)))
    t.ask_now(Set("j", "k0", b""))
    t.ask_now(Set("j", "k3", bytes(1 << 19)))


def test_histories_take_a_quarter_of_the_memory_at_most() -> None:
    t = start(memory=MEMORY)
    for number in range(64):
        t.ask_now(Set(f"j{number % 4}", "k", bytes(1 << 18)))
    histories = t.machine._jobs.signals.histories
    assert 0 < histories.nbytes <= MEMORY // 4


def test_what_was_durable_under_larger_limits_is_there_under_smaller_ones() -> None:
    t = Transcript(machine=Machine(has_log=True))
    for number in range(8):
        t.ask_now(Set("j", f"k{number}", bytes(1 << 20)))
    small = start(memory=MEMORY, job_keys=2)
    small.machine.restore(t.machine.list_changes())
    small.machine.finish_restore(0.0)
    assert small.ask_now(Count("j")) == 8
    assert used(small) == used(t)
    small.ask_refused(Set("j", "another", b""))
    small.ask_now(DeleteRange("j", "k", prefix=True))
    assert used(small) == 0


# ---------------------------------------------------------------- what is counted


def measure(t: Transcript, waiting: dict[int, int]) -> int:
    """Count anew what the jobs hold."""
    total = sum(waiting.values())
    for job in t.machine._jobs:
        for record in job.table.records.values():
            total += RECORD_NBYTES + len(record.key) + len(record.value)
        for key, values in job.queues._values.items():
            total += sum(QUEUED_NBYTES + len(key) + len(value) for value in values)
        total += LEASE_NBYTES * len(job.leases)
    return total


def choose_request(chance: random.Random) -> Request[object]:
    job, key = chance.choice("jk"), chance.choice("abc")
    value = bytes(chance.randrange(50))
    return chance.choice(
        [
            Set(job, key, value),
            Append(job, key, value),
            Add(job, "n", 1),
            Put(job, key, value, lease=chance.randrange(3)),
            MultiSet(job, (("a", value), ("b", b"x"))),
            Txn(job, (), (Put(job, key, value), DeleteRange(job, "x", prefix=True)), ()),
            Delete(job, key),
            DeleteRange(job, "a", "c"),
            QueuePush(job, key, value),
            QueuePop(job, key),
            QueuePop(job, key, wait=True),
            Wait(job, (key, "never")),
            LeaseGrant(job, 100.0, chance.randrange(1, 3)),
            LeaseRevoke(job, chance.randrange(1, 3)),
            DeleteJob(job, "somebody"),
        ]
    )


def describe_waiting(request: Request[object]) -> int:
    names = getattr(request, "keys", ())
    return WAITER_NBYTES + NAME_NBYTES * len(names) + sum(map(len, names))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("has_log", [False, True])
def test_bytes_are_counted_as_they_come_and_go(seed: int, has_log: bool) -> None:
    chance = random.Random(seed)
    t = Transcript(machine=Machine(has_log=has_log))
    waiting: dict[int, int] = {}
    unsettled: list[tuple[Change, ...]] = []
    for ticket in range(1, 150):
        request = choose_request(chance)
        effects = t.machine.handle(RequestReceived(ticket, request), 0.0)
        waiting[ticket] = describe_waiting(request)
        if has_log and chance.random() < 0.1:
            effects += t.machine.handle(CommitsRefused(), 0.0)
        for effect in effects:
            if isinstance(effect, Changed):
                unsettled.append(effect.changes)
            elif isinstance(effect, Answer) or hasattr(effect, "refusal"):
                waiting.pop(effect.ticket, None)  # type: ignore[union-attr]
        if waiting and chance.random() < 0.1:
            ticket_gone = chance.choice(list(waiting))
            del waiting[ticket_gone]
            t.machine.handle(RequestCancelled(ticket_gone), 0.0)
        assert used(t) == measure(t, waiting)
    for ticket in waiting:
        t.machine.handle(RequestCancelled(ticket), 0.0)
    restored = Transcript(machine=Machine())
    restored.machine.restore(t.machine.list_changes())
    assert used(restored) == used(t)
    for job in "jk":
        t.machine.handle(RequestReceived(1000 + ord(job), DeleteJob(job, "somebody")), 0.0)
    assert used(t) == 0


def test_reads_take_no_room() -> None:
    t = start(memory=MEMORY)
    found = t.ask_now(Range("absent", "k"))
    assert isinstance(found, RangeResult)
    assert used(t) == 0
