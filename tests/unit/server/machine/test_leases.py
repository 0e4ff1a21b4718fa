"""Leases: their time, the keys that end with them, and restarts."""

from dataclasses import dataclass, field

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.effects import Answer, Changed, Effect, LeaseTimed
from allhands_server.machine.events import (
    CommitDurable,
    CommitsRefused,
    Event,
    RequestReceived,
    Tick,
)
from allhands_server.machine.member_messages import Leave
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import DeleteJob, ListJobs, Request
from allhands_server.machine.store import leases
from allhands_server.machine.store.keys import Add, Append, CompareSet, List, MultiSet, Set
from allhands_server.machine.store.leases import (
    LeaseGrant,
    LeaseKeepAlive,
    LeaseList,
    LeaseRevoke,
    LeaseStatus,
    LeaseTimeToLive,
)
from allhands_server.machine.store.records import Put, Range
from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits
from allhands_server.testing import Transcript


def start(ttl: float = 10.0, limits: ResourceLimits = DEFAULT_LIMITS) -> tuple[Transcript, int]:
    """Return a machine with a lease of job j, that has the keys a and b beside a free one."""
    t = Transcript(machine=Machine(limits=limits))
    t.ask_now(Set("j", "free", b""))
    lease = t.ask_now(LeaseGrant("j", ttl)).lease
    for key in ("a", "b"):
        t.ask_now(Put("j", key, b"1", lease=lease))
    return t, lease


def remaining(t: Transcript, lease: int) -> float:
    return t.ask_now(LeaseTimeToLive("j", lease)).remaining


def test_a_lease_ends_when_it_is_due_and_takes_its_keys_at_one_revision() -> None:
    t, lease = start()
    t.advance_to(9.99)
    assert t.ask_now(List("j")) == ("a", "b", "free")
    revision = t.ask_now(Range("j", "a")).revision
    t.advance_to(10.0)
    assert t.ask_now(List("j")) == ("free",)
    assert t.ask_now(Range("j", "a")).revision == revision + 1
    assert t.ask_now(LeaseList("j")) == ()
    assert t.ask_refused(LeaseTimeToLive("j", lease)).status is Status.NOT_FOUND


def test_a_keep_alive_begins_the_time_again() -> None:
    t, lease = start()
    for now in (6.0, 12.0, 18.0):
        t.advance_to(now)
        assert t.ask_now(LeaseKeepAlive("j", lease)) == 10.0
        assert remaining(t, lease) == 10.0
    t.advance_to(27.9)
    assert remaining(t, lease) == pytest.approx(0.1)
    t.advance_to(28.0)
    assert t.ask_now(List("j")) == ("free",)
    assert t.ask_refused(LeaseKeepAlive("j", lease)).status is Status.NOT_FOUND


def test_a_keep_alive_in_the_instant_of_the_end_still_counts() -> None:
    t, lease = start()
    t.now = 10.0
    t.ask_now(LeaseKeepAlive("j", lease))
    t.advance_to(19.0)
    assert t.ask_now(List("j")) == ("a", "b", "free")


def test_a_revoked_lease_takes_its_keys() -> None:
    t, lease = start()
    found = t.ask_now(LeaseRevoke("j", lease))
    assert found.deleted == 2
    assert t.ask_now(List("j")) == ("free",)
    assert t.ask_refused(LeaseRevoke("j", lease)).status is Status.NOT_FOUND
    t.advance_to(30.0)


def test_the_keys_of_a_lease_are_told() -> None:
    t, lease = start()
    t.now = 4.0
    found = t.ask_now(LeaseTimeToLive("j", lease, with_keys=True))
    assert found == LeaseStatus(10.0, 6.0, ("a", "b"))
    assert t.ask_now(LeaseTimeToLive("j", lease)).keys == ()


@pytest.mark.parametrize(
    ("request_", "is_bound"),
    [
        (Set("j", "a", b"2"), False),
        (Put("j", "a", b"2"), False),
        (MultiSet("j", (("a", b"2"),)), False),
        (Put("j", "a", b"2", keeps_bindings=True), True),
        (Add("j", "a", 1), True),
        (Append("j", "a", b"2"), True),
        (CompareSet("j", "a", b"1", b"2"), True),
    ],
)
def test_a_key_that_is_set_leaves_its_lease_and_one_that_is_altered_stays(
    request_: Request[object], is_bound: bool
) -> None:
    t, lease = start()
    t.ask_now(request_)
    assert (t.ask_now(Range("j", "a")).records[0].lease == lease) == is_bound
    t.advance_to(10.0)
    assert ("a" in t.ask_now(List("j"))) == (not is_bound)
    assert "b" not in t.ask_now(List("j"))


def test_a_key_changes_its_lease() -> None:
    t, _ = start()
    other = t.ask_now(LeaseGrant("j", 20.0)).lease
    t.ask_now(Put("j", "a", b"", lease=other))
    t.advance_to(10.0)
    assert t.ask_now(List("j")) == ("a", "free")
    t.advance_to(20.0)
    assert t.ask_now(List("j")) == ("free",)


def test_no_two_leases_have_one_number() -> None:
    t = Transcript()
    numbers = [t.ask_now(LeaseGrant("j", 10.0)).lease for _ in range(3)]
    t.ask_now(LeaseRevoke("j", numbers[2]))
    numbers.append(t.ask_now(LeaseGrant("j", 10.0)).lease)
    assert len(set(numbers)) == 4
    assert t.ask_now(LeaseGrant("j", 10.0, 77)).lease == 77
    assert t.ask_refused(LeaseGrant("j", 10.0, 77)).status is Status.ALREADY_EXISTS


@pytest.mark.parametrize("ttl", [0.0, -1.0, 0.01, 1e10, float("nan"), float("inf")])
def test_a_time_that_no_lease_can_have_is_refused(ttl: float) -> None:
    refusal = Transcript().ask_refused(LeaseGrant("j", ttl))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert "0.1 to 1,000,000,000 seconds" in refusal.text


def test_there_are_so_many_leases_of_a_job_and_keys_of_a_lease() -> None:
    t, lease = start(limits=ResourceLimits(job_leases=2, lease_keys=2))
    t.ask_now(LeaseGrant("j", 10.0))
    assert t.ask_refused(LeaseGrant("j", 10.0)).status is Status.RESOURCE_EXHAUSTED
    assert "has 2 keys" in t.ask_refused(Put("j", "c", lease=lease)).text
    t.ask_now(Put("j", "a", b"again", lease=lease))


def test_a_job_lives_as_long_as_its_leases() -> None:
    t = Transcript()
    t.ask_now(LeaseGrant("j", 10.0))
    t.advance_to(9.0)
    assert [one.job for one in t.ask_now(ListJobs())] == ["j"]
    t.advance_to(10.0)
    assert t.ask_now(ListJobs()) == ()
    assert t.machine.next_due is None


def test_a_deleted_job_has_no_leases() -> None:
    t, lease = start()
    t.form_world(1)
    t.ask_now(DeleteJob("j", "me", force=True))
    t.ask_now(Set("j", "k", b""))
    assert t.ask_now(LeaseList("j")) == ()
    assert t.ask_refused(Put("j", "a", lease=lease)).status is Status.NOT_FOUND


# ---------------------------------------------------------------- members


def test_the_keys_of_a_member_go_with_it() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    for session in (first, second):
        t.ask_now(Put("j", f"k{session}", b"", member=f"member{session}"))
    t.ask_now(Put("j", "moved", b"", member=f"member{first}"))
    t.ask_now(Set("j", "moved", b"free"))
    t.send(first, Leave())
    assert t.ask_now(List("j")) == (f"k{second}", "moved")
    t.break_session(second)
    t.advance_to(1.0)
    assert t.ask_now(List("j")) == ("moved",)
    assert t.ask_refused(Put("j", "k", member=f"member{second}")).status is Status.ABORTED
    assert t.ask_refused(Put("j", "k", member="stranger")).status is Status.NOT_FOUND


def test_a_key_is_bound_to_a_member_of_a_complete_world() -> None:
    t = Transcript()
    session = t.join(0, 2)
    refusal = t.ask_refused(Put("j", "k", member=f"member{session}"))
    assert refusal.status is Status.FAILED_PRECONDITION
    t.join(1, 2)
    t.ask_now(Put("j", "k", member=f"member{session}"))


# ---------------------------------------------------------------- the log


class Log:
    """A machine whose commits are kept."""

    def __init__(
        self,
        changes: "list[Change] | None" = None,
        now: float = 0.0,
        remaining: "dict[tuple[str, int], float] | None" = None,
    ) -> None:
        self.machine = Machine(has_log=True)
        self.commits: list[tuple[Change, ...]] = []
        self.machine.restore(changes or [], 0.0)
        self.machine.finish_restore(now, remaining)
        self._tickets = 0

    def ask(self, request: Request[object], now: float) -> object:
        self._tickets += 1
        effects = self.machine.handle(RequestReceived(self._tickets, request), now)
        self._keep(effects)
        (answer,) = (one for one in effects if not isinstance(one, Changed | LeaseTimed))
        return answer.reply if isinstance(answer, Answer) else answer

    def tick(self, now: float) -> None:
        self._keep(self.machine.handle(Tick(), now))

    def settle(self, now: float) -> None:
        for _ in self.commits:
            self._keep(self.machine.handle(CommitDurable(), now))

    def _keep(self, effects: list[Effect]) -> None:
        self.commits += [one.changes for one in effects if isinstance(one, Changed)]

    def list_changes(self) -> list[Change]:
        return [change for commit in self.commits for change in commit]


def fill(log: Log) -> None:
    log.ask(LeaseGrant("j", 10.0, 7), 0.0)
    log.ask(Put("j", "a", b"1", lease=7), 0.0)
    log.ask(Set("j", "free", b""), 0.0)


def test_after_a_restart_a_lease_has_its_time_again_and_its_keys() -> None:
    log = Log()
    fill(log)
    log.ask(LeaseKeepAlive("j", 7), 8.0)
    for changes in (log.list_changes(), [*log.machine.list_changes()]):
        again = Log(changes, now=100.0)
        assert again.ask(LeaseTimeToLive("j", 7, with_keys=True), 100.0) == LeaseStatus(
            10.0, 10.0, ("a",)
        )
        again.tick(109.9)
        assert again.ask(List("j"), 109.9) == ("a", "free")
        again.tick(110.0)
        assert again.ask(List("j"), 110.0) == ("free",)


@pytest.mark.parametrize(("left", "ends"), [(7.0, 107.0), (99.0, 110.0), (-3.0, 105.0)])
def test_after_a_restart_a_lease_has_what_was_left_and_some_seconds_at_least(
    left: float, ends: float
) -> None:
    log = Log()
    fill(log)
    again = Log(log.list_changes(), now=100.0, remaining={("j", 7): left, ("other", 7): 6.0})
    again.tick(ends - 0.1)
    assert again.ask(List("j"), ends - 0.1) == ("a", "free")
    again.tick(ends)
    assert again.ask(List("j"), ends) == ("free",)


def test_the_shell_is_told_when_a_lease_ends() -> None:
    t = Transcript()
    t.now = 3.0
    for request in (LeaseGrant("j", 10.0, 7), LeaseKeepAlive("j", 7)):
        effects = t.handle(RequestReceived(9, request, None))
        assert effects[0] == LeaseTimed("j", 7, t.now + 10.0)
        t.outcomes.clear()
        t.now = 5.0


def test_a_keep_alive_is_no_commit_and_the_end_of_a_lease_is_one() -> None:
    log = Log()
    fill(log)
    count = len(log.commits)
    log.ask(LeaseKeepAlive("j", 7), 1.0)
    assert len(log.commits) == count
    log.tick(11.0)
    assert len(log.commits) == count + 1
    again = Log(log.list_changes())
    assert again.ask(List("j"), 0.0) == ("free",)
    assert again.ask(Range("j", "a", revision=2), 0.0).records[0].lease == 7  # type: ignore[attr-defined]


def test_an_end_that_the_log_refuses_is_tried_again_later() -> None:
    log = Log()
    fill(log)
    log.settle(0.0)
    log.commits.clear()
    log.tick(10.0)
    assert len(log.commits) == 1
    log.machine.handle(CommitsRefused(), 10.0)
    assert log.machine.next_due == 10.0 + leases.RESTART_SECONDS
    assert log.ask(List("j"), 14.9) == ("a", "free")
    log.tick(15.0)
    assert log.ask(List("j"), 15.0) == ("free",)


def test_a_lease_that_the_log_refuses_was_never_granted() -> None:
    log = Log()
    fill(log)
    log.machine.handle(CommitsRefused(), 1.0)
    assert log.machine.next_due is None
    assert log.ask(LeaseList("j"), 1.0) == ()


def test_keys_of_members_that_are_not_back_after_a_restart_are_deleted() -> None:
    t = Transcript(machine=Machine(has_log=True))
    changes: list[Change] = []
    session = t.join(0, 1)
    for effect in t.handle(
        RequestReceived(99, Put("j", "k", b"", member=f"member{session}"), None)
    ):
        if isinstance(effect, Changed):
            changes += effect.changes
    again = Log(changes, now=1.0)
    assert again.ask(List("j"), 1.0) == ()
    (commit,) = again.commits  # the deletion is a change as well
    assert Log([*changes, *commit]).ask(List("j"), 1.0) == ()


@dataclass
class Recorded(Transcript):
    """A machine with a log."""

    machine: Machine = field(default_factory=lambda: Machine(has_log=True))
    changes: list[Change] = field(default_factory=list)

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        made = (effect for effect in effects if isinstance(effect, Changed))
        self.changes += [change for one in made for change in one.changes]
        return effects


def test_keys_of_members_stay_over_a_restart_while_the_members_may_come_back() -> None:
    before = Recorded()
    _, second = before.form_world(2, window=2.0)
    before.ask_now(Put("j", "k", b"", member=f"member{second}"))
    after = Recorded()
    after.machine.restore(before.changes)
    after.machine.finish_restore(0.0)
    after.advance_to(1.0)
    assert after.ask_now(List("j")) == ("k",)
    assert after.ask_now(Range("j", "k")).records[0].member == f"member{second}"
    after.advance_to(60.0)
    assert after.ask_now(List("j")) == ()
    # The log has it all: the loss, and the deletion with it.
    again = Transcript()
    again.machine.restore([*before.changes, *after.changes])
    assert again.ask_now(List("j")) == ()
