"""Worlds in the log: any history gives the world again, and members come back to it."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allhands_server.log.change_codec import decode_changes, encode_changes
from allhands_server.machine import Machine
from allhands_server.machine.changes import Change
from allhands_server.machine.effects import (
    Aborted,
    BrokenLinks,
    Conditions,
    Joined,
    MemberLeft,
    MemberLost,
    Newcomers,
    Notification,
    Probe,
    Received,
    Resumed,
    SilentLinks,
    WorldFormed,
)
from allhands_server.machine.member_messages import (
    Abort,
    CloseGroup,
    Heartbeat,
    Leave,
    LinkBroken,
    OpenGroup,
)
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import (
    AbortJob,
    AwaitVerdict,
    ChangeGroup,
    DescribeJob,
    ListJobs,
    MonitoredBarrier,
)
from allhands_server.machine.store.keys import Set
from allhands_server.machine.values import GroupChange, JobView, Presence, Progress
from allhands_server.testing import Transcript


def make_logged() -> Transcript:
    return Transcript(machine=Machine(has_log=True))


def read_joined(t: Transcript, session: int) -> Joined:
    [joined] = [one for one in t.read_pushed(session) if isinstance(one, Joined)]
    return joined


def form(t: Transcript, size: int, *, elastic: bool = False) -> list[Joined]:
    sessions = [t.join(rank, size, elastic=elastic) for rank in range(size)]
    return [read_joined(t, one) for one in sessions]


def find_joined(t: Transcript, job: str = "j") -> JobView:
    return t.ask_now(DescribeJob(job))


def list_told(t: Transcript, session: int) -> list[Notification]:
    """Return the notifications but for requests for signs of life."""
    return [one for one in t.read_pushed(session) if not isinstance(one, Probe)]


def make_timeless(view: JobView) -> object:
    """Return what a restart has to keep of a job."""
    members = [
        (
            one.member_id,
            one.rank,
            one.host,
            one.presence,
            one.reason,
            [(p.group, p.sequence, p.completed, p.operation) for p in one.progress]
            if one.presence is not Presence.JOINED
            else (),
        )
        for one in view.members
    ]
    failures = [(one.rank, one.state, one.text, one.traceback) for one in view.failures]
    kept = (view.state, view.epoch, view.world_size, view.incarnation, view.heartbeat_window)
    return (*kept, members, view.groups, failures)


def list_inside(t: Transcript) -> object:
    """Return what decides on later events: openers, decisions, and news of each member."""
    world = t.machine._jobs.get("j").world
    assert world is not None
    news = [
        [(type(told), getattr(told, "rank", -1)) for told in world.list_news(one)]
        for _, one in sorted(world.members.items())
    ]
    decisions = world._agreements, world._regroupings
    return sorted(world.groups.list_openings()), decisions, news


def restore(commits: list[tuple[Change, ...]], now: float) -> Transcript:
    """Return a machine with the state of a log, that has been on a disk."""
    t = Transcript(now=now, machine=Machine(has_log=True))
    for slot, commit in enumerate(commits):
        t.machine.restore(decode_changes(encode_changes(commit), slot), now)
    t.machine.finish_restore(now)
    return t


class LoggedWorlds(RuleBasedStateMachine):
    """A history of one job, of which the log has to give the same again at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.t = make_logged()
        self.sessions: list[int] = []
        self.broken: set[int] = set()
        self.sequence = 0

    @rule(size=st.integers(1, 3))
    def form_world(self, size: int) -> None:
        self.sessions += [self.t.join(rank, size, elastic=True) for rank in range(size)]
        # So that a new world does not fall back into one that is forming.
        self.t.ask(Set("j", "k", b"v"))

    @property
    def alive(self) -> list[int]:
        return [one for one in self.sessions if one not in self.t.ends and one not in self.broken]

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), error=st.sampled_from(["", "ValueError"]), aborts=st.booleans())
    def leave(self, data: st.DataObject, error: str, aborts: bool) -> None:
        progress = (Progress("world", 3, 2, "all_reduce", 0.5),)
        session = data.draw(st.sampled_from(self.alive))
        self.t.send(session, Leave(progress, error, "Traceback", aborts))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def break_session(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self.alive))
        self.broken.add(session)
        self.t.break_session(session)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), group=st.sampled_from(["g", "h"]))
    def open_group(self, data: st.DataObject, group: str) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), OpenGroup(group, (0, 1)))

    @precondition(lambda self: self.alive and find_joined(self.t).groups)
    @rule(data=st.data())
    def close_group(self, data: st.DataObject) -> None:
        groups = [one.group for one in find_joined(self.t).groups]
        group = data.draw(st.sampled_from(groups))
        self.t.send(data.draw(st.sampled_from(self.alive)), CloseGroup(group))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), begun=st.integers(0, 9))
    def beat(self, data: st.DataObject, begun: int) -> None:
        progress = (Progress("g", begun, max(begun - 1, 0), "barrier"),)
        self.t.send(data.draw(st.sampled_from(self.alive)), Heartbeat(progress=progress))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), rank=st.integers(0, 3))
    def break_link(self, data: st.DataObject, rank: int) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), LinkBroken(rank, "reset"))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), group=st.sampled_from(["", "g"]))
    def abort(self, data: st.DataObject, group: str) -> None:
        self.t.send(data.draw(st.sampled_from(self.alive)), Abort(group, "why"))

    @rule()
    def abort_from_outside(self) -> None:
        self.t.ask(AbortJob("j", "somebody", "because"))

    @precondition(lambda self: self.alive)
    @rule(kind=st.sampled_from(["agree", "shrink", "admit"]), group=st.sampled_from(["world", "g"]))
    def change_group(self, kind: str, group: str) -> None:
        for session in self.alive:
            self.t.ask(ChangeGroup("j", f"member{session}", group, kind, True), self.t.now + 1)

    @precondition(lambda self: self.alive)
    @rule(meets=st.booleans())
    def wait(self, meets: bool) -> None:
        self.sequence += 1
        for session in self.alive[: None if meets else 1]:
            request = MonitoredBarrier("j", f"member{session}", "g", self.sequence)
            self.t.ask(request, self.t.now + 0.1)

    @rule(seconds=st.floats(0.05, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.t.advance_to(self.t.now + seconds)

    @invariant()
    def the_log_gives_the_same_world(self) -> None:
        [live] = self.t.ask_now(ListJobs()) or [None]
        again = restore(self.t.commits, self.t.now)
        snapshot = restore([tuple(self.t.machine.list_changes())], self.t.now)
        [read], [short] = [one.ask_now(ListJobs()) or [None] for one in (again, snapshot)]
        if live is None or live.state == "forming" or not live.members:
            for one in (read, short):
                assert one is None or one.state in ("empty", "ended")
            return
        assert read is not None
        assert short is not None
        expected = (make_timeless(live), list_inside(self.t))
        assert (make_timeless(read), list_inside(again)) == expected
        assert (make_timeless(short), list_inside(snapshot)) == expected


LoggedWorlds.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLoggedWorlds = LoggedWorlds.TestCase


def test_members_come_back_after_a_restart_and_hear_what_they_missed() -> None:
    t = make_logged()
    joined = form(t, 4)
    t.send(1, Heartbeat(progress=(Progress("world", 5, 4, "all_reduce"),)))
    t.send(2, Leave(error="ValueError: x", progress=(Progress("world", 4, 4),)))
    t.send(1, Abort("", "why"))
    before = [one for one in t.read_pushed(4) if not isinstance(one, WorldFormed)]
    assert [type(one) for one in before] == [MemberLeft, Aborted]
    t.restart()
    view = find_joined(t)
    assert (view.state, view.epoch, view.incarnation) == ("degraded", 2, joined[0].incarnation)
    session = t.resume(joined[3])
    assert t.read_pushed(session) == [Resumed(2, 0), *before]
    t.send(session, Leave())
    assert [one.presence for one in find_joined(t).members] == [
        Presence.JOINED,
        Presence.LEFT,
        Presence.JOINED,
        Presence.LEFT,
    ]


def test_who_does_not_come_back_within_the_window_is_lost() -> None:
    t = make_logged()
    joined = form(t, 2)
    t.restart()
    session = t.resume(joined[0])
    for _ in range(30):
        t.advance_to(t.now + 0.2)
        t.send(session, Heartbeat())
    told = [one for one in t.read_pushed(session) if isinstance(one, MemberLost)]
    assert [one.rank for one in told] == [1]
    assert t.now < 7
    other = t.resume(joined[1])
    ended = t.ends[other]
    assert ended is not None
    assert ended.status is Status.ABORTED
    assert "rank 1 (host host2, pid 1002) is no member" in ended.text


def test_a_newcomer_does_not_end_a_world_that_is_still_coming_back() -> None:
    t = make_logged()
    joined = form(t, 2)
    t.restart()
    newcomer = t.join(0, 2)
    ended = t.ends[newcomer]
    assert ended is not None
    assert ended.status is Status.UNAVAILABLE
    assert t.resume(joined[0]) not in t.ends
    assert find_joined(t).state == "running"


@pytest.mark.parametrize("wrong", ["secret", "member_id", "incarnation"])
def test_nobody_resumes_the_session_of_another(wrong: str) -> None:
    t = make_logged()
    joined = form(t, 2)[0]
    match wrong:
        case "secret":
            session = t.resume(joined, secret=b"guessed")
        case "member_id":
            session = t.resume(replace(joined, member_id="member9"))
        case _:
            session = t.resume(replace(joined, incarnation="another"))
    refused = t.ends[session]
    assert refused is not None
    expected = Status.UNAUTHENTICATED if wrong == "secret" else Status.NOT_FOUND
    assert refused.status is expected
    assert 1 not in t.ends


def test_a_session_moves_to_a_new_stream_though_the_old_one_seems_open() -> None:
    t = make_logged()
    joined = form(t, 2)
    session = t.resume(joined[0])
    replaced = t.ends[1]
    assert replaced is not None
    assert "resumed its session" in replaced.text
    t.break_session(session)
    again = t.resume(joined[0])
    t.advance_to(t.now + 1.0)
    assert find_joined(t).state == "running"
    assert again not in t.ends


def test_a_repeated_message_is_acknowledged_and_has_no_second_effect() -> None:
    t = make_logged()
    joined = form(t, 2)
    t.send(1, Abort("", "why"), 7)
    assert Received(7) in t.read_pushed(1)
    session = t.resume(joined[0])
    assert t.read_pushed(session)[0] == Resumed(1, 7)
    t.send(session, Abort("", "why"), 7)
    assert list_told(t, session) == [Received(7)]
    assert len(find_joined(t).failures) == 1


def test_a_decision_is_the_same_for_who_asks_again_after_a_restart() -> None:
    t = make_logged()
    joined = form(t, 3)
    t.break_session(2)
    t.advance_to(t.now + 0.6)
    requests = [
        ChangeGroup("j", one.member_id, "world", "shrink", number=1)
        for one in (joined[0], joined[2])
    ]
    tickets = [t.ask(one) for one in requests]
    made = t.outcomes[tickets[0]]
    assert isinstance(made, GroupChange)
    t.restart()
    t.resume(joined[2])
    again = t.ask_now(requests[1])
    assert (again.group, again.epoch, again.committed) == (made.group, made.epoch, made.committed)
    assert [one.rank for one in again.members] == [0, 2]
    # The next request is another one.
    assert t.ask(replace(requests[1], number=2)) not in t.outcomes


def test_a_request_that_waits_moves_to_the_connection_on_which_it_is_repeated() -> None:
    t = make_logged()
    joined = form(t, 2)
    request = ChangeGroup("j", joined[0].member_id, "world", "agree", True, number=1)
    first, second = t.ask(request), t.ask(request)
    refused = t.outcomes[first]
    assert isinstance(refused, Refusal)
    assert second not in t.outcomes
    t.ask(ChangeGroup("j", joined[1].member_id, "world", "agree", True, number=1))
    assert isinstance(t.outcomes[second], GroupChange)


def test_verdicts_and_passed_barriers_are_the_same_after_a_restart() -> None:
    t = make_logged()
    joined = form(t, 2)
    for session in (1, 2):
        t.send(session, OpenGroup("g", (0, 1)))
    late = t.ask(AwaitVerdict("j", joined[0].member_id, "g", 3, "all_reduce", ()), t.now + 0.1)
    for one in joined:
        t.ask(MonitoredBarrier("j", one.member_id, "g", 4), t.now + 9)
    t.advance_to(t.now + 1.0)
    given = t.outcomes[late]
    assert given
    t.restart()
    t.resume(joined[0])
    ticket = t.ask(MonitoredBarrier("j", joined[0].member_id, "g", 4), t.now + 9)
    assert t.outcomes[ticket] is None
    ticket = t.ask(AwaitVerdict("j", joined[0].member_id, "g", 3, "all_reduce", ()), t.now)
    t.advance_to(t.now)
    assert t.outcomes[ticket] == given


def test_broken_links_stay_known() -> None:
    t = make_logged()
    joined = form(t, 3)
    t.advance_to(1.0)
    t.send(1, LinkBroken(1, "reset"))
    t.advance_to(1.1)
    for session in (1, 2, 3):
        t.send(session, Heartbeat())
    t.advance_to(1.5)
    t.restart()
    session = t.resume(joined[2])
    [told] = [one for one in t.read_pushed(session) if isinstance(one, BrokenLinks)]
    assert told.pairs == ((0, 1),)
    sessions = [t.resume(one) for one in joined[:2]]
    t.send(sessions[0], LinkBroken(1, "reset"))
    t.advance_to(t.now + 0.5)
    for one in (session, *sessions):
        rest = [x for x in t.read_pushed(one) if isinstance(x, BrokenLinks)]
        assert len(rest) == (0 if one == session else 1)  # the one that comes with the resumption


def test_newcomers_hear_only_of_what_came_after_them() -> None:
    t = make_logged()
    joined = form(t, 2, elastic=True)
    t.send(2, Leave())
    newcomer = t.join(elastic=True)
    taken_in = read_joined(t, newcomer)
    for one in (joined[0],):
        t.ask(ChangeGroup("j", one.member_id, "world", "admit", number=1))
    assert any(isinstance(one, WorldFormed) for one in t.read_pushed(newcomer))
    t.restart()
    session = t.resume(taken_in)
    told = [one for one in t.read_pushed(session) if not isinstance(one, Conditions | SilentLinks)]
    assert told == [Resumed(3, 0)]
    old = t.resume(joined[0])
    assert [type(one) for one in t.read_pushed(old)] == [Resumed, MemberLeft]
    assert Newcomers not in {type(one) for one in told}
