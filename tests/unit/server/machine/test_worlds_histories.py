"""Random histories of membership: invariants of a world."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allhands_server.machine.effects import (
    Joined,
    MemberLeft,
    MemberLost,
    Notification,
    WorldFormed,
)
from allhands_server.machine.member_messages import Heartbeat, Leave, LinkBroken, LinkSilent
from allhands_server.machine.requests import DescribeJob, ListJobs
from allhands_server.machine.values import JobView, Presence
from allhands_server.testing import Transcript

RANKS = st.integers(-1, 3)
SIZES = st.integers(0, 4)


@dataclass
class Worker:
    """News received by one worker."""

    joined: Joined | None = None
    formed: WorldFormed | None = None
    gone: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)


class Membership(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.t = Transcript()
        self.workers: dict[int, Worker] = {}
        self.broken: set[int] = set()
        self.worlds: dict[str, WorldFormed] = {}

    @rule(rank=RANKS, size=SIZES, window=st.sampled_from([0.0, 1.0]))
    def join(self, rank: int, size: int, window: float) -> None:
        self.workers[self.t.join(rank, size, window=window)] = Worker()

    @property
    def alive(self) -> list[int]:
        return [one for one in self.workers if one not in self.t.ends and one not in self.broken]

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), Heartbeat())

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), Leave())

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def break_session(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.alive))
        self.broken.add(session)
        self.t.break_session(session)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), rank=RANKS)
    def break_link(self, data: st.DataObject, rank: int) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), LinkBroken(rank, "reset"))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), rank=RANKS, seconds=st.floats(0.0, 3.0), is_over=st.booleans())
    def silence_link(self, data: st.DataObject, rank: int, seconds: float, is_over: bool) -> None:
        session = data.draw(st.sampled_from(self.alive))
        self.t.send(session, LinkSilent(rank, seconds, is_over))

    @rule(seconds=st.floats(0.05, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.t.advance_to(self.t.now + seconds)

    @rule(seconds=st.floats(0.05, 30.0))
    def oversleep(self, seconds: float) -> None:
        self.t.oversleep(self.t.now + seconds)

    @invariant()
    def what_workers_were_told_is_consistent(self) -> None:
        for session, worker in self.workers.items():
            for told in self.t.read_pushed(session):
                self.take_in(worker, told)

    def take_in(self, worker: Worker, told: Notification) -> None:
        match told:
            case Joined():
                assert worker.joined is None
                worker.joined = told
            case WorldFormed():
                assert worker.joined is not None
                assert worker.formed is None
                worker.formed = told
                worker.epochs.append(told.epoch)
                ranks = [member.rank for member in told.members]
                assert ranks == list(range(told.world_size))
                own = told.members[worker.joined.rank]
                assert own.member_id == worker.joined.member_id
                known = self.worlds.setdefault(worker.joined.incarnation, told)
                assert known == told
            case MemberLost(rank) | MemberLeft(rank):
                assert worker.joined is not None
                assert worker.formed is not None
                assert rank not in worker.gone
                assert rank != worker.joined.rank
                worker.gone.append(rank)
                worker.epochs.append(told.epoch)
                assert worker.epochs == sorted(set(worker.epochs))

    @invariant()
    def the_job_is_consistent(self) -> None:
        for seen in self.t.ask_now(ListJobs()):
            self.check(seen)

    def check(self, seen: JobView) -> None:
        ranks = [member.rank for member in seen.members]
        assert ranks == sorted(set(ranks))
        present = [one for one in seen.members if one.presence is Presence.JOINED]
        match seen.state:
            case "forming":
                assert present
                assert len(present) == len(seen.members)
                assert not seen.world_size or len(present) < seen.world_size
            case "running":
                assert len(present) == len(seen.members) == seen.world_size
            case "degraded":
                assert 0 < len(present) < len(seen.members) == seen.world_size
            case "ended":
                assert not present
                assert len(seen.members) == seen.world_size
            case "empty":
                assert not seen.members
        if seen.world_size:
            assert all(rank < seen.world_size for rank in ranks)

    @invariant()
    def who_is_alive_is_present(self) -> None:
        present = {
            member.member_id
            for seen in self.t.ask_now(ListJobs())
            for member in seen.members
            if member.presence is Presence.JOINED
        }
        assert {f"member{session}" for session in self.alive} <= present

    def teardown(self) -> None:
        for session in self.alive:
            self.broken.add(session)
            self.t.break_session(session)
        self.t.advance_to(self.t.now + 1.0)
        for seen in self.t.ask_now(ListJobs()):
            assert seen.state in ("ended", "empty")
            assert self.t.ask_now(DescribeJob(seen.job)) == seen
        assert self.t.machine.next_due is None


Membership.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMembership = Membership.TestCase
