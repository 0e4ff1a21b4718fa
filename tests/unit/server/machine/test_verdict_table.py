"""Absent ranks of a call, with states and texts: a table of cases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest

from allhands_proto.verdicts import Verdict
from allhands_server.machine.effects import Probe
from allhands_server.machine.member_messages import Heartbeat, Leave, OpenGroup
from allhands_server.machine.requests import AwaitVerdict
from allhands_server.machine.values import Progress
from allhands_server.testing import Transcript

ASKED = 0.5
PROBED = 1.7
DUE = 2.0
LATEST = 2.5
"""Where members might still answer."""
NAMES = [f"rank {rank} (host host{rank + 1}, pid {1001 + rank})" for rank in range(3)]
UNHEARD = "pings are unanswered, though the coordinator hears both"
UNSEEN = "it does not answer, and nobody on its host could look at its process"

Act: TypeAlias = Callable[[Transcript, int], object]
"""Done by or to the session of a member."""


def inside(sequence: int = 7, operation: str = "all_reduce", group: str = "world") -> Progress:
    return Progress(group, sequence, sequence - 1, operation)


def outside(completed: int, elapsed: float = 0.0) -> Progress:
    return Progress("world", completed, completed, "", elapsed)


def beat(*progress: Progress) -> Act:
    return lambda t, session: t.send(session, Heartbeat(0, progress))


def leave(*progress: Progress, error: str = "") -> Act:
    return lambda t, session: t.send(session, Leave(progress, error))


def break_session(t: Transcript, session: int) -> None:
    t.break_session(session)


def open_pair(t: Transcript, session: int) -> None:
    t.send(session, OpenGroup("world", (0, 1)))


@dataclass(frozen=True)
class Case:
    """A world in which rank `asker` waits in all_reduce #7; each rank answers a probe, or not."""

    name: str
    answers: dict[int, Sequence[Progress]]
    """By rank; who is not in it does not answer."""
    absent: Sequence[tuple[int, str, str]]
    """Rank, state, and the text after the rank's name."""
    size: int = 2
    asker: int = 0
    waiting_on: tuple[int, ...] = ()
    before: dict[int, Act] = field(default_factory=dict)
    """By rank, before the call is asked for."""
    after: dict[int, Act] = field(default_factory=dict)
    """By rank, after the answers."""


CASES = [
    Case(
        "alive_but_in_no_call_is_busy",
        {0: [inside()], 1: [outside(6, elapsed=1.5)]},
        [(1, "busy", "is busy: alive, but in no call for 1.8 s, since #6")],
    ),
    Case(
        "nothing_begun_at_all_is_busy",
        {0: [inside()], 1: []},
        [(1, "busy", "is busy: alive, but it has made no call yet")],
    ),
    Case(
        "in_another_call_is_elsewhere",
        {0: [inside()], 1: [inside(6, "broadcast")]},
        [(1, "elsewhere", "is elsewhere: in broadcast #6 for 0.3 s")],
    ),
    Case(
        "in_a_call_of_another_group_is_elsewhere",
        {0: [inside()], 1: [outside(6), inside(3, "gather", group="pair")]},
        [(1, "elsewhere", "is elsewhere: in gather #3 of group 'pair' for 0.3 s")],
    ),
    Case(
        "silent_is_paused_with_its_last_words",
        {0: [inside()]},
        [
            (
                1,
                "paused",
                f"is paused: {UNSEEN}, its last heartbeat is 2.0 s ago; "
                "it last said that it was in broadcast #6 of group 'world' for 2.0 s",
            )
        ],
        before={1: beat(inside(6, "broadcast"))},
    ),
    Case(
        "a_beat_after_the_probe_is_a_sign_of_life",
        {0: [inside()]},
        [(1, "busy", "is busy: alive, but in no call for 0.2 s, since #6")],
        after={1: beat(outside(6))},
    ),
    Case(
        "lost_in_the_call_is_dead",
        {0: [inside()]},
        [(1, "dead", "is dead: its session broke; exit status unknown")],
        before={1: lambda t, session: (beat(inside())(t, session), break_session(t, session))},
    ),
    Case(
        "left_in_the_call_has_left",
        {0: [inside()]},
        [(1, "left", "has left the job because of 'KeyError: x'")],
        before={1: leave(inside(), error="KeyError: x")},
    ),
    Case(
        "left_after_the_call_is_not_absent",
        {0: [inside()]},
        [(2, "paused", f"is paused: {UNSEEN}, its last heartbeat is 2.5 s ago")],
        size=3,
        before={1: leave(outside(7))},
    ),
    Case(
        "lost_after_its_answer_is_dead",
        {0: [inside()], 1: [outside(6)]},
        [(1, "dead", "is dead: its session broke; exit status unknown")],
        after={1: break_session},
    ),
    Case(
        "no_rank_of_the_group_is_not_judged",
        {0: [inside()], 1: [outside(6)]},
        [(1, "busy", "is busy: alive, but in no call for 0.3 s, since #6")],
        size=3,
        before={0: open_pair},
    ),
    Case(
        "begun_but_silent_is_named_where_all_have_begun",
        {0: [inside()], 2: [inside()]},
        [
            (
                1,
                "paused",
                f"is paused: {UNSEEN}, its last heartbeat is 2.0 s ago; "
                "it last said that it was in all_reduce #7 of group 'world' for 2.0 s",
            )
        ],
        size=3,
        waiting_on=(2,),
        before={1: beat(inside())},
    ),
    Case(
        "arrived_and_waited_for_is_slow",
        {0: [inside()], 1: [inside()]},
        [
            (
                1,
                "slow",
                "is slow: it is in all_reduce #7 and answers, but what rank 0 needs of it "
                "has not arrived",
            )
        ],
        waiting_on=(1,),
    ),
    Case("arrived_and_not_waited_for_is_not_absent", {0: [inside()]}, [], size=1),
    Case(
        "silent_to_pings_is_unreachable",
        {
            0: [replace(inside(), unanswered_pings=(1,))],
            1: [replace(inside(), unanswered_pings=(0,))],
            2: [inside()],
        },
        [(1, "unreachable", f"is unreachable for {NAMES[0]}: {UNHEARD}")],
        size=3,
        waiting_on=(1,),
    ),
    *(
        Case(
            f"rank_{1 - ahead}_has_not_come_and_is_named_not_rank_{ahead}_that_is_ahead",
            {
                ahead: [replace(inside(), unanswered_pings=(1 - ahead,))],
                1 - ahead: [replace(inside(6, "broadcast"), unanswered_pings=(ahead,))],
                2: [inside()],
            },
            [(1 - ahead, "unreachable", f"is unreachable for {NAMES[ahead]}: {UNHEARD}")],
            size=3,
            asker=ahead,
            waiting_on=(1 - ahead,),
        )
        for ahead in (0, 1)
    ),
    *(
        Case(
            f"rank_{ahead}_has_ended_the_call_and_is_named_to_the_other",
            {1 - ahead: [replace(inside(), unanswered_pings=(ahead,))]},
            [(ahead, "unreachable", f"is unreachable for {NAMES[1 - ahead]}: {UNHEARD}")],
            asker=1 - ahead,
            waiting_on=(ahead,),
            before={ahead: beat(replace(inside(8), unanswered_pings=(1 - ahead,)))},
        )
        for ahead in (0, 1)
    ),
    *(
        Case(
            f"rank_{silent}_is_paused_and_not_unreachable_for_pings",
            {1 - silent: [replace(inside(), unanswered_pings=(silent,))]},
            [(silent, "paused", f"is paused: {UNSEEN}, its last heartbeat is 2.5 s ago")],
            asker=1 - silent,
            waiting_on=(silent,),
        )
        for silent in (0, 1)
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_verdict_names_the_absent_with_state_and_reason(case: Case) -> None:
    t = Transcript()
    sessions = t.form_world(case.size)
    t.advance_to(ASKED)
    for rank, act in case.before.items():
        act(t, sessions[rank])
    asker = sessions[case.asker]
    request = AwaitVerdict("j", f"member{asker}", "world", 7, "all_reduce", case.waiting_on)
    ticket = t.ask(request, DUE)
    t.advance_to(PROBED)
    for rank, progress in case.answers.items():
        probes = [one for one in t.read_pushed(sessions[rank]) if isinstance(one, Probe)]
        assert probes, "it was not probed"
        for probe in probes:
            t.send(sessions[rank], Heartbeat(probe.probe, tuple(progress)))
    t.advance_to(PROBED + 0.1)
    for rank, act in case.after.items():
        act(t, sessions[rank])
    t.advance_to(LATEST)
    found = t.outcomes[ticket]
    assert isinstance(found, Verdict), found
    assert [(one.rank, one.state, one.text) for one in found.absent] == [
        (rank, state, f"{NAMES[rank]} {text}") for rank, state, text in case.absent
    ]
