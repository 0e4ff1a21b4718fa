"""Changes of the durable state: a log of them gives the state again, and they can be undone."""

import random
from collections.abc import Iterator

import pytest

from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.effects import Answer, Changed, Effect, Refuse
from allhands_server.machine.events import CommitDurable, CommitsRefused, RequestReceived
from allhands_server.machine.requests import Barrier, DeleteJob, Request
from allhands_server.machine.store import keys, leases, queues, records, transactions
from allhands_server.machine.store.key_results import RangeResult

_JOBS = ("a", "b")
_NAMES = ("x", "y", "z")


class Logged:
    """A machine with a log that keeps what it is given."""

    def __init__(self, log: "list[tuple[Change, ...]] | None" = None) -> None:
        self.machine = Machine(has_log=True)
        self.log = list(log or ())
        self.durable = len(self.log)
        """Commits that the machine was told are durable."""
        self.answers: dict[int, object] = {}
        self._tickets = 0
        for commit in self.log:
            self.machine.restore(commit, 0.0)
        self.machine.finish_restore(0.0)

    def ask(self, request: Request[object]) -> int:
        self._tickets += 1
        self.take(self.machine.handle(RequestReceived(self._tickets, request, None), 0.0))
        return self._tickets

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Changed(changes):
                    assert changes
                    self.log.append(changes)
                case Answer(ticket, reply):
                    self.answers[ticket] = reply
                case Refuse(ticket, refusal):
                    self.answers[ticket] = refusal

    def settle(self, durable: int) -> None:
        """Tell the machine that the first commits of the log are durable."""
        while self.durable < durable:
            self.durable += 1
            self.take(self.machine.handle(CommitDurable(), 0.0))

    def refuse(self) -> None:
        """Tell the machine that the commits which are not durable were refused."""
        del self.log[self.durable :]
        self.take(self.machine.handle(CommitsRefused(), 0.0))

    def read(self) -> list[object]:
        """Return all that requests can see of keys, queues and barriers."""
        seen: list[object] = []
        for job in _JOBS:
            for request in _list_reads(job):
                found = self.answers.pop(self.ask(request))
                # Not the revision: those of refused commits are not given again.
                seen.append(found.records if isinstance(found, RangeResult) else found)
        return seen


def _list_reads(job: str) -> Iterator[Request[object]]:
    yield keys.List(job)
    yield records.Range(job, "", prefix=True)
    yield leases.LeaseList(job)
    for number in range(1, 4):
        yield leases.LeaseTimeToLive(job, number, with_keys=True)
    for name in _NAMES:
        yield keys.Get(job, name)
        yield queues.QueueLength(job, name)


def make_write(randomly: random.Random) -> Request[object]:
    job, name = randomly.choice(_JOBS), randomly.choice(_NAMES)
    value = b"%d" % randomly.randrange(100)
    return randomly.choice(
        (
            keys.Set(job, name, value),
            keys.Add(job, name, randomly.randrange(-5, 5)),
            keys.Append(job, name, value),
            keys.CompareSet(job, name, b"", value),
            keys.MultiSet(job, tuple((one, value) for one in _NAMES)),
            keys.Delete(job, name),
            keys.Delete(job, name),
            records.Put(job, name, value),
            records.DeleteRange(job, name, "z"),
            leases.LeaseGrant(job, 10.0, randomly.randrange(1, 4)),
            leases.LeaseRevoke(job, randomly.randrange(1, 4)),
            records.Put(job, name, value, lease=randomly.randrange(1, 4)),
            transactions.Txn(
                job,
                (),
                (
                    records.DeleteRange(job, "x", "z"),
                    records.Put(job, "z", value, lease=randomly.randrange(0, 3)),
                ),
                (),
            ),
            queues.QueuePush(job, name, value),
            queues.QueuePop(job, name),
            Barrier(job, name, "p", ("p",)),
        )
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_log_of_any_history_gives_its_state(seed: int) -> None:
    randomly = random.Random(seed)
    live = Logged()
    seen = []
    for _ in range(60):
        live.ask(make_write(randomly))
        seen.append((len(live.log), live.read()))
    for length, expected in seen[:: 1 + seed % 7]:
        again = Logged(live.log[:length])
        assert again.read() == expected
        shortened = Logged([tuple(again.machine.list_changes())])
        assert shortened.read() == expected
        # Revisions and generations go on where they were.
        probes = [keys.Set(_JOBS[0], "new", b""), Barrier(_JOBS[1], "x", "p", ("p",))]
        assert [again.answers[again.ask(one)] for one in probes] == [
            shortened.answers[shortened.ask(one)] for one in probes
        ]


@pytest.mark.parametrize("seed", range(40))
def test_refused_commits_leave_the_state_that_the_log_gives(seed: int) -> None:
    randomly = random.Random(seed)
    live = Logged()
    for _ in range(6):
        for _ in range(10):
            live.ask(make_write(randomly))
        live.settle(randomly.randint(live.durable, len(live.log)))
        live.refuse()
        live.settle(len(live.log))
        assert live.read() == Logged(live.log).read()


def test_a_snapshot_is_of_the_moment_it_was_asked_for() -> None:
    live = Logged()
    live.ask(keys.Set("a", "x", b"1"))
    live.ask(queues.QueuePush("a", "q", b"1"))
    snapshot = live.machine.list_changes()
    live.ask(keys.Set("a", "x", b"2"))
    live.ask(keys.Set("a", "y", b"2"))
    live.ask(queues.QueuePop("a", "q"))
    again = Logged([tuple(snapshot)])
    assert again.answers[again.ask(keys.MultiGet("a", ("x",)))] == (b"1",)
    assert again.answers[again.ask(keys.Count("a"))] == 1
    assert again.answers[again.ask(queues.QueueLength("a", "q"))] == 1


def test_who_waits_for_what_comes_back_is_answered() -> None:
    live = Logged()
    live.ask(keys.Set("a", "x", b"1"))
    live.ask(queues.QueuePush("a", "q", b"2"))
    live.settle(2)
    live.ask(keys.Delete("a", "x"))
    live.ask(queues.QueuePop("a", "q"))
    get = live.ask(keys.Get("a", "x", wait=True))
    pop = live.ask(queues.QueuePop("a", "q", wait=True))
    assert not live.answers.keys() & {get, pop}
    live.refuse()
    assert live.answers[get].value == b"1"  # type: ignore[attr-defined]
    assert live.answers[pop] == b"2"


def test_who_waits_for_what_goes_again_waits_on() -> None:
    live = Logged()
    waiting = live.ask(keys.Wait("a", ("x", "y")))
    live.ask(keys.Set("a", "x", b"1"))
    live.refuse()
    live.ask(keys.Set("a", "y", b"1"))
    assert waiting not in live.answers
    live.ask(keys.Set("a", "x", b"1"))
    assert waiting in live.answers


def test_what_was_cleared_does_not_come_back_where_the_log_refuses() -> None:
    live = Logged()
    for request in (keys.Set("a", "old", b"1"), Barrier("a", "x", "p", ("p",))):
        live.ask(request)
    live.settle(len(live.log))
    live.ask(keys.Set("a", "new", b"2"))
    live.ask(keys.Delete("a", "old"))
    live.ask(queues.QueuePush("a", "q", b"3"))
    live.ask(Barrier("a", "x", "p", ("p",)))
    live.ask(keys.Set("b", "x", b"4"))
    live.ask(DeleteJob("a", "somebody", True))
    live.refuse()
    assert live.answers[live.ask(keys.List("a"))] == ()
    assert live.answers[live.ask(queues.QueueLength("a", "q"))] == 0
    assert live.answers[live.ask(keys.List("b"))] == ()
    live.ask(keys.Set("a", "later", b"5"))
    assert Logged(live.log).read() == live.read()


def test_reads_are_no_commits() -> None:
    live = Logged()
    live.read()
    live.ask(keys.Delete("a", "none"))
    live.ask(keys.CompareSet("a", "x", b"other", b"v"))
    assert live.log == []
