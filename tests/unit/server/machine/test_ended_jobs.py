"""Jobs that have ended leave nothing but a bounded record."""

from dataclasses import dataclass

import pytest

from allhands_server.machine import Machine, idle_jobs
from allhands_server.machine.member_messages import Leave, OpenGroup
from allhands_server.machine.requests import Barrier
from allhands_server.machine.store.keys import Get, Set
from allhands_server.machine.store.leases import LeaseGrant
from allhands_server.machine.store.queues import QueuePush
from allhands_server.machine.store.records import Put
from allhands_server.machine.store.watches import HOLD_SECONDS, Watch
from allhands_server.testing import Transcript

_KEPT = 5


@dataclass(frozen=True)
class Left:
    """What a machine has of its jobs."""

    jobs: int
    nbytes: int
    histories: int
    history_nbytes: int
    waiting: int
    sessions: int
    timers: int
    changes: int


def count(t: Transcript) -> Left:
    machine = t.machine
    jobs = machine._jobs
    return Left(
        len(jobs),
        jobs.signals.memory.nbytes,
        len(jobs.signals.histories.histories),
        jobs.signals.histories.nbytes,
        len(machine._waiting),
        len(machine._sessions._sessions),
        sum(timer.action is not None for _, _, timer in machine._timers._heap),
        len(list(machine.list_changes())),
    )


def run_job(t: Transcript, job: str) -> None:
    """Run a job with all that a job may have, from its first join to its last leave."""
    sessions = t.form_world(2, job=job)
    lease = t.ask_now(LeaseGrant(job, 30.0)).lease
    t.ask_now(Put(job, "leased", b"1", lease=lease))
    t.ask_now(QueuePush(job, "queue", b"1"))
    t.ask(Watch(job, "k", prefix=True, wait=True))
    t.ask(Get(job, "k", wait=True))
    t.ask_now(Set(job, "k", bytes(100)))
    for participant in ("p", "q"):
        t.ask(Barrier(job, "barrier", participant, ("p", "q")))
    for session in sessions:
        t.send(session, OpenGroup("group", (0, 1)))
    for session in sessions:
        t.send(session, Leave())
    t.advance_to(t.now + 2 * HOLD_SECONDS)


@pytest.mark.parametrize("has_log", [False, True], ids=["memory", "log"])
def test_jobs_that_have_ended_leave_nothing_but_the_latest_of_them(
    has_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_jobs, "IDLE_JOBS_KEPT", _KEPT)
    t = Transcript(machine=Machine(has_log=has_log))
    for number in range(100, 120):
        run_job(t, f"job-{number}")
    before = count(t)
    assert before.jobs == _KEPT
    assert before.waiting == before.sessions == 0
    for number in range(120, 200):
        run_job(t, f"job-{number}")
    assert count(t) == before
