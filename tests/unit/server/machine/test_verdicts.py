"""Verdicts: absent ranks of a call with their states, equal for all callers."""

from dataclasses import replace

import pytest

from allhands_proto.verdicts import AbsentRank, Verdict
from allhands_server.machine import Machine
from allhands_server.machine.effects import Probe
from allhands_server.machine.events import ProcessInspected
from allhands_server.machine.member_messages import CloseGroup, Heartbeat, OpenGroup
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import AwaitVerdict, DescribeJob
from allhands_server.machine.values import Progress
from allhands_server.testing import Transcript

DUE = 2.0
LATEST = 2.5
"""Where members might still answer."""


def ask(t: Transcript, session: int, due: float = DUE, waiting_on: tuple[int, ...] = ()) -> int:
    request = AwaitVerdict("j", f"member{session}", "world", 7, "all_reduce", waiting_on)
    return t.ask(request, due)


def verdict(t: Transcript, ticket: int) -> Verdict:
    found = t.outcomes[ticket]
    assert isinstance(found, Verdict), found
    return found


def absent(t: Transcript, ticket: int) -> list[tuple[int, str]]:
    return [(one.rank, one.state) for one in verdict(t, ticket).absent]


def only(t: Transcript, ticket: int) -> AbsentRank:
    [one] = verdict(t, ticket).absent
    return one


def inside(sequence: int = 7, operation: str = "all_reduce", group: str = "world") -> Progress:
    return Progress(group, sequence, sequence - 1, operation)


def outside(completed: int, elapsed: float = 0.0) -> Progress:
    return Progress("world", completed, completed, "", elapsed)


def answer_probes(t: Transcript, session: int, *progress: Progress) -> None:
    probes = [one for one in t.read_pushed(session) if isinstance(one, Probe)]
    assert probes, "it was not probed"
    for probe in probes:
        t.send(session, Heartbeat(probe.probe, progress))


def test_members_are_probed_shortly_before_the_deadline() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ask(t, first)
    t.advance_to(1.69)
    assert t.read_pushed(second) == []
    t.advance_to(1.7)
    assert [type(one) for one in t.read_pushed(second)] == [Probe]


def test_where_there_is_little_time_a_third_of_it_is_for_the_probe() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ask(t, first, due=0.3)
    t.advance_to(0.19)
    assert t.read_pushed(second) == []
    t.advance_to(0.201)
    assert [type(one) for one in t.read_pushed(second)] == [Probe]


def test_who_has_ended_the_call_is_not_probed() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.send(second, Heartbeat(0, (outside(7),)))
    ask(t, first)
    t.advance_to(1.9)
    assert t.read_pushed(second) == []


def test_who_is_alive_but_in_no_call_is_busy() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    answer_probes(t, second, outside(6, elapsed=1.5))
    t.advance_to(DUE)
    one = only(t, ticket)
    assert (one.rank, one.host, one.pid, one.state) == (1, "host2", 1002, "busy")
    assert (one.sequence, one.operation) == (6, "")
    assert one.text == (
        "rank 1 (host host2, pid 1002) is busy: alive, but in no call for 1.8 s, since #6"
    )


def test_who_is_busy_is_told_with_the_section_of_its_program() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    [probe] = [one for one in t.read_pushed(second) if isinstance(one, Probe)]
    beat = Heartbeat(
        probe.probe, (outside(6, elapsed=1.5),), section="epoch/load", section_elapsed=1.4
    )
    t.send(second, beat)
    t.advance_to(DUE)
    one = only(t, ticket)
    assert (one.state, one.section) == ("busy", "epoch/load")
    assert one.text == (
        "rank 1 (host host2, pid 1002) is busy in section 'epoch/load' for 1.7 s: "
        "alive, but in no call for 1.8 s, since #6"
    )


def test_a_section_is_that_of_the_last_heartbeat() -> None:
    t = Transcript()
    first, _ = t.form_world(2)
    t.send(first, Heartbeat(section="load", section_elapsed=2.0))
    t.advance_to(1.0)
    member = t.ask_now(DescribeJob("j")).members[0]
    assert (member.section, member.section_elapsed) == ("load", 3.0)
    t.send(first, Heartbeat(section="load", section_elapsed=-1e300))
    assert t.ask_now(DescribeJob("j")).members[0].section_elapsed == 0.0
    t.send(first, Heartbeat())
    member = t.ask_now(DescribeJob("j")).members[0]
    assert (member.section, member.section_elapsed) == ("", 0.0)


@pytest.mark.parametrize("name", ["a" * 129, "two\nlines", "\x1b[31m"])
def test_a_member_whose_section_is_no_name_is_shown_out(name: str) -> None:
    t = Transcript()
    _, second = t.form_world(2)
    t.send(second, Heartbeat(section=name))
    refusal = t.ends[second]
    assert refusal is not None
    assert refusal.status is Status.INVALID_ARGUMENT


def test_in_a_world_that_has_not_formed_the_others_never_joined() -> None:
    t = Transcript()
    ticket = ask(t, t.join(0, 2))
    t.advance_to(LATEST)
    assert (1, "never joined") in absent(t, ticket)


def test_where_all_have_arrived_and_nobody_says_for_whom_it_waits_nobody_is_absent() -> None:
    t = Transcript()
    (only_one,) = t.form_world(1)
    ticket = ask(t, only_one)
    t.advance_to(1.7)
    answer_probes(t, only_one, inside())
    t.advance_to(DUE)
    assert verdict(t, ticket) == Verdict(
        "world",
        7,
        "all_reduce",
        (),
        "nobody is known to be missing in all_reduce #7 of group 'world'",
    )


def test_all_callers_hear_the_same_verdict_also_those_whose_deadline_is_later() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    early, late = ask(t, first), ask(t, second, due=DUE + 1.0)
    t.advance_to(1.7)
    for session in (first, second):
        answer_probes(t, session, inside())
    answer_probes(t, third, outside(6))
    t.advance_to(DUE)
    t.send(third, Heartbeat(0, (inside(),)))
    assert late not in t.outcomes
    t.advance_to(DUE + 1.0)
    assert verdict(t, late) == verdict(t, early)
    assert t.read_pushed(third) == []


def test_a_verdict_does_not_stand_for_ever() -> None:
    t = Transcript()
    first, second = t.form_world(2, window=60.0)
    early = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    answer_probes(t, second, outside(6))
    t.advance_to(DUE)
    assert absent(t, early) == [(1, "busy")]
    late = ask(t, first, due=20.0)
    t.advance_to(19.7)
    answer_probes(t, first, inside())
    t.advance_to(20.5)
    assert absent(t, late) == [(1, "paused")]


def test_a_verdict_that_is_withdrawn_leaves_nothing_behind() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    t.cancel(ask(t, first))
    t.advance_to(1.9)
    assert t.read_pushed(second) == []


def test_nobody_waits_for_a_verdict_without_end() -> None:
    t = Transcript()
    t.form_world(1)
    request = AwaitVerdict("j", "member1", "world", 7, "all_reduce")
    assert t.ask_refused(request).status is Status.INVALID_ARGUMENT


def test_only_members_may_ask() -> None:
    t = Transcript()
    first, _ = t.form_world(2)
    stranger = t.ask(AwaitVerdict("j", "nobody", "world", 7, "all_reduce"), due=DUE)
    assert t.outcomes[stranger].status is Status.NOT_FOUND
    nowhere = t.ask(AwaitVerdict("k", "member1", "world", 7, "all_reduce"), due=DUE)
    assert t.outcomes[nowhere].status is Status.NOT_FOUND
    t.break_session(first)
    t.advance_to(0.5)
    assert t.outcomes[ask(t, first)].status is Status.ABORTED


def test_a_probe_that_another_call_has_just_caused_makes_nobody_silent() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first)
    t.ask(AwaitVerdict("j", f"member{first}", "world", 8, "barrier"), DUE + 0.29)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    answer_probes(t, second, outside(6))
    t.advance_to(1.995)
    assert [type(one) for one in t.read_pushed(second)] == [Probe]
    t.advance_to(DUE)
    assert absent(t, ticket) == [(1, "busy")]


def test_the_verdict_comes_when_the_last_has_answered_though_the_deadline_has_passed() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first)
    t.advance_to(2.2)
    assert ticket not in t.outcomes
    answer_probes(t, first, inside())
    assert ticket not in t.outcomes
    answer_probes(t, second, outside(6, elapsed=1.5))
    assert only(t, ticket).state == "busy"


def test_a_process_that_does_not_answer_and_is_stopped_is_not_waited_for() -> None:
    t = Transcript(machine=Machine("here"))
    first, second = t.form_world(2, pid_namespace="here")
    ticket = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    assert t.inspections == []
    t.advance_to(1.85)
    assert [one.member_id for one in t.inspections] == [f"member{second}"]
    t.handle(ProcessInspected("j", f"member{second}", "stopped"))
    t.advance_to(DUE)
    one = only(t, ticket)
    assert one.state == "paused"
    assert "its process is stopped" in one.text


@pytest.mark.parametrize("rank", [-1, 200_000])
def test_a_rank_that_no_world_has_is_not_waited_for(rank: int) -> None:
    t = Transcript()
    t.form_world(2)
    request = AwaitVerdict("j", "member1", "world", 7, "all_reduce", (1, rank))
    refusal = t.outcomes[t.ask(request, DUE)]
    assert isinstance(refusal, Refusal)
    assert refusal.text == f"rank {rank} is waited for: a world has 200,000 ranks at most"


def test_who_does_not_answer_pings_is_unreachable_though_it_answers_the_coordinator() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    tickets = [ask(t, session, waiting_on=(1,)) for session in (first, third)]
    t.advance_to(1.7)
    answer_probes(t, first, replace(inside(), unanswered_pings=(1,)))
    answer_probes(t, second, replace(inside(), unanswered_pings=(0,)))
    answer_probes(t, third, inside())
    t.advance_to(DUE)
    assert absent(t, tickets[0]) == [(1, "unreachable")]
    assert verdict(t, tickets[0]) == verdict(t, tickets[1])
    assert "unreachable for rank 0 (host host1, pid 1001): pings are unanswered" in (
        only(t, tickets[0]).text
    )


def test_who_comes_after_the_others_have_given_a_call_up_is_told_that_it_came_too_late() -> None:
    t = Transcript()
    first, late = t.form_world(2, window=60.0)
    ticket = ask(t, first, waiting_on=(1,))
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    answer_probes(t, late, outside(6))
    t.advance_to(DUE)
    given = verdict(t, ticket)
    assert absent(t, ticket) == [(1, "busy")]
    t.send(first, Heartbeat(0, (replace(inside(), operation=""),)))
    t.advance_to(20.0)
    t.send(late, Heartbeat(0, (inside(),)))
    again = ask(t, late, due=50.0, waiting_on=(0,))
    t.advance_to(49.7)
    answer_probes(t, first, replace(inside(), operation=""))
    answer_probes(t, late, inside())
    t.advance_to(50.0)
    assert verdict(t, again).absent == given.absent
    assert verdict(t, again).text == (
        f"{given.text}; who came later came too late: the others had waited until their "
        "deadline, and given it up 48.0 s ago"
    )


def test_what_is_kept_of_past_verdicts_is_bounded_and_ends_with_its_group() -> None:
    t = Transcript()
    first, second = t.form_world(2, window=60.0)
    for session in (first, second):
        t.send(session, OpenGroup("pair", (0, 1)))

    def waiting(sequence: int) -> Progress:
        return Progress("pair", sequence, 0, "all_reduce")

    def told(sequence: int, session: int) -> list[tuple[int, str]]:
        """Return the verdict on a call with a single waiting member."""
        t.send(session, Heartbeat(0, (waiting(sequence),)))
        request = AwaitVerdict("j", f"member{session}", "pair", sequence, "all_reduce", (0,))
        ticket = t.ask(request, t.now + 10.0)
        t.advance_to(t.now + 9.7)
        for one in (first, second):
            answer_probes(t, one)
        t.advance_to(t.now + 0.3)
        return absent(t, ticket)

    for sequence in range(1, 70):
        assert told(sequence, first) == [(1, "busy")]
    t.send(second, Heartbeat(0, (waiting(69),)))
    assert told(69, second) == [(1, "busy")]
    t.send(second, Heartbeat(0, (waiting(69),)))
    t.advance_to(t.now + 10.0)
    assert told(1, second) == [(0, "slow")]  # so long ago that nobody knows
    for session in (first, second):
        t.send(session, CloseGroup("pair"))
    for session in (first, second):
        t.send(session, OpenGroup("pair", (0, 1)))
        t.send(session, Heartbeat(0, (waiting(69),)))
    t.advance_to(t.now + 10.0)
    assert told(69, second) == [(0, "slow")]


def test_what_was_seen_of_a_process_is_forgotten_when_it_is_heard_again() -> None:
    t = Transcript(machine=Machine("here"))
    first, second = t.form_world(2, pid_namespace="here", window=60.0)
    ask(t, first)
    t.advance_to(1.9)
    answer_probes(t, first, inside())
    t.handle(ProcessInspected("j", f"member{second}", "stopped"))
    t.advance_to(10.0)
    t.send(second, Heartbeat())
    again = ask(t, first, due=12.0)
    t.advance_to(11.9)
    answer_probes(t, first, inside())
    t.advance_to(12.5)
    assert "nobody on its host could look at its process" in only(t, again).text


def test_stacks_are_asked_for_by_the_probe_of_a_verdict_and_carried_by_it() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    [probe] = t.read_pushed(second)
    assert isinstance(probe, Probe)
    assert probe.stack
    t.send(second, Heartbeat(probe.probe, (outside(6),), "deep" * 5000))
    t.advance_to(DUE)
    assert only(t, ticket).stack == "deep" * 1024


def test_a_verdict_at_once_is_given_when_those_who_matter_have_answered() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    ticket = ask(t, first, due=0.0)
    assert ticket not in t.outcomes
    answer_probes(t, first, inside())
    answer_probes(t, second, outside(6))
    assert absent(t, ticket) == [(1, "busy")]


def test_the_paragraph_names_call_group_and_every_absent_rank() -> None:
    t = Transcript()
    first, second, _ = t.form_world(3)
    ticket = ask(t, first)
    t.advance_to(1.7)
    answer_probes(t, first, inside())
    answer_probes(t, second, inside(6, "broadcast"))
    t.advance_to(LATEST)
    assert verdict(t, ticket).text == (
        "ranks 1-2 did not arrive in all_reduce #7 of group 'world': "
        "rank 1 (host host2, pid 1002) is elsewhere: in broadcast #6 for 0.8 s; "
        "rank 2 (host host3, pid 1003) is paused: it does not answer, and nobody on its host "
        "could look at its process, its last heartbeat is 2.5 s ago"
    )
