"""Joint decisions of a world's members: agreements, survivors, newcomers."""

from allhands_server.machine.effects import Joined, Newcomers, WorldFormed
from allhands_server.machine.member_messages import Heartbeat, Leave, OpenGroup
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import ChangeGroup, DescribeJob
from allhands_server.machine.values import GroupChange
from allhands_server.testing import Transcript


def reform(t: Transcript, session: int, kind: str, **more: int | str) -> ChangeGroup:
    settings: dict[str, int | str] = {"group": "world", **more}
    return ChangeGroup(job="j", member_id=f"member{session}", kind=kind, **settings)  # type: ignore[arg-type]


def ranks(found: object) -> list[int]:
    assert isinstance(found, GroupChange)
    return [one.rank for one in found.members]


def test_an_agreement_is_made_once_all_have_asked_and_is_the_same_for_all() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    tickets = [t.ask(reform(t, one, "agree", flag=one != sessions[1])) for one in sessions[:2]]
    assert t.outcomes == {}
    tickets.append(t.ask(reform(t, sessions[2], "agree", flag=True)))
    assert [t.outcomes[one] for one in tickets] == [GroupChange(False, 1)] * 3


def test_who_is_lost_before_the_decision_does_not_count_and_does_not_hold_it_up() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    dead = t.ask(reform(t, third, "agree", flag=False))
    tickets = [t.ask(reform(t, one, "agree", flag=True)) for one in (first, second)]
    assert [t.outcomes[one] for one in (dead, *tickets)] == [GroupChange(False, 1)] * 3
    tickets = [t.ask(reform(t, one, "agree", flag=True)) for one in (first, second)]
    t.break_session(third)
    assert tickets[0] not in t.outcomes
    t.advance_to(t.now + 0.5)
    assert all(t.outcomes[one] == GroupChange(True, 2) for one in tickets)


def test_the_flag_of_a_rank_that_died_after_asking_does_not_count() -> None:
    t = Transcript()
    first, second, third = t.form_world(3)
    dead = t.ask(reform(t, third, "agree", flag=False), due=9.0)
    t.break_session(third)
    t.advance_to(t.now + 0.5)
    outcome = t.outcomes[dead]
    assert isinstance(outcome, Refusal)
    assert outcome.status is Status.ABORTED
    tickets = [t.ask(reform(t, one, "agree", flag=True)) for one in (first, second)]
    assert [t.outcomes[one] for one in tickets] == [GroupChange(True, 2)] * 2


def test_a_shrink_keeps_those_who_are_present_in_their_order() -> None:
    t = Transcript()
    sessions = t.form_world(4)
    t.break_session(sessions[1])
    tickets = [t.ask(reform(t, one, "shrink")) for one in (sessions[0], sessions[2], sessions[3])]
    assert t.outcomes == {}
    t.advance_to(0.5)
    decided = [t.outcomes[one] for one in tickets]
    assert decided[0] == decided[1] == decided[2]
    assert ranks(decided[0]) == [0, 2, 3]
    assert isinstance(decided[0], GroupChange)
    assert decided[0].group == "world@3"
    assert decided[0].epoch == 3


def test_a_change_may_be_asked_for_before_its_group_is_known_to_be_open() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    asked = [t.ask(reform(t, one, "shrink", group="pair")) for one in sessions[:2]]
    assert t.outcomes == {}
    t.send(sessions[1], OpenGroup("pair", (1, 0)))
    assert [ranks(t.outcomes[one]) for one in asked] == [[1, 0]] * 2


def test_a_group_of_all_ranks_is_decided_on_once_its_order_is_known() -> None:
    t = Transcript()
    sessions = t.form_world(2)
    asked = [t.ask(reform(t, one, "shrink", group="both")) for one in sessions]
    assert t.outcomes == {}
    t.send(sessions[0], OpenGroup("both", (1, 0)))
    assert [ranks(t.outcomes[one]) for one in asked] == [[1, 0]] * 2


def test_calls_are_done_for_all_if_one_has_returned_or_all_have_the_result() -> None:
    def committed(*states: tuple[int, int]) -> int:
        t = Transcript()
        asked = [
            t.ask(reform(t, one, "shrink", returned=returned, computed=computed))
            for one, (returned, computed) in zip(t.form_world(len(states)), states, strict=True)
        ]
        decided = t.outcomes[asked[0]]
        assert isinstance(decided, GroupChange)
        return decided.committed

    assert committed((5, 5), (4, 5)) == 5
    assert committed((4, 5), (4, 5)) == 5
    assert committed((4, 5), (4, 4)) == 4


def test_a_group_of_some_ranks_is_decided_on_by_these() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    for one in sessions[:2]:
        t.send(one, OpenGroup("pair", (1, 0)))
    tickets = [t.ask(reform(t, one, "shrink", group="pair")) for one in sessions[:2]]
    assert ranks(t.outcomes[tickets[0]]) == [1, 0]
    stranger = t.ask(reform(t, sessions[2], "shrink", group="pair"))
    assert isinstance(t.outcomes[stranger], Refusal)


def test_ranks_that_call_different_things_are_told_of_each_other() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    waiting = t.ask(reform(t, first, "shrink"), due=5.0)
    refusal = t.ask_refused(reform(t, second, "grow", wanted=2))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "grow(2)" in refusal.text
    assert "shrink" in refusal.text
    t.advance_to(5.0)
    outcome = t.outcomes[waiting]
    assert isinstance(outcome, Refusal)
    assert outcome.status is Status.DEADLINE_EXCEEDED
    assert "rank 1" in outcome.text


def test_a_grow_waits_for_newcomers_and_lets_them_in_behind_the_others() -> None:
    t = Transcript()
    first, second = t.form_world(2)
    tickets = [t.ask(reform(t, one, "grow", wanted=1)) for one in (first, second)]
    assert t.outcomes == {}
    newcomer = t.join(0, 2)
    decided = t.outcomes[tickets[0]]
    assert ranks(decided) == [0, 1, 2]
    joined, formed, _ = t.read_pushed(newcomer)
    assert isinstance(joined, Joined)
    assert joined.rank == 2
    assert isinstance(formed, WorldFormed)
    assert isinstance(decided, GroupChange)
    assert (formed.group, formed.members) == (decided.group, decided.members)
    t.send(newcomer, OpenGroup(formed.group, (0, 1, 2)))
    # It is a member as any other from now on.
    t.break_session(newcomer)
    t.advance_to(0.5)
    assert [type(one).__name__ for one in t.read_pushed(first)][-1] == "MemberLost"


def test_a_world_that_nobody_grows_takes_no_newcomers_unless_it_is_elastic() -> None:
    t = Transcript()
    t.form_world(2)
    late = t.join()
    refusal = t.ends[late]
    assert refusal is not None
    assert refusal.status is Status.FAILED_PRECONDITION


def test_newcomers_of_an_elastic_world_wait_and_the_members_hear_of_them() -> None:
    t = Transcript()
    first, second = t.form_world(2, elastic=True)
    newcomer = t.join(elastic=True)
    assert t.read_pushed(first) == [Newcomers(1)]
    assert newcomer not in t.ends
    t.break_session(newcomer)
    assert t.read_pushed(second) == [Newcomers(1), Newcomers(0)]


def test_a_newcomer_that_is_silent_is_dropped() -> None:
    t = Transcript()
    first, _ = t.form_world(2, elastic=True, window=2.0)
    newcomer = t.join()
    for _ in range(5):
        t.advance_to(t.now + 1.0)
        for one in (1, 2):
            t.send(one, Heartbeat())
    assert t.ends[newcomer] is not None
    assert Newcomers(0) in t.read_pushed(first)


def test_replacements_take_the_places_of_who_is_gone() -> None:
    t = Transcript()
    sessions = t.form_world(4, elastic=True)
    for gone in (1, 2):
        t.break_session(sessions[gone])
    t.advance_to(0.5)
    t.join()
    t.join(rank=1)
    tickets = [t.ask(reform(t, one, "replace", wanted=4)) for one in (sessions[0], sessions[3])]
    # The second newcomer has rank 5 and asked for place 1.
    assert ranks(t.outcomes[tickets[0]]) == [0, 5, 4, 3]


def test_a_world_grows_to_its_most_members_only() -> None:
    t = Transcript()
    first, _ = t.form_world(2, max_members=3)
    refusal = t.ask_refused(reform(t, first, "grow", wanted=2))
    assert "max_size is 3" in refusal.text


def test_who_was_expelled_can_decide_nothing() -> None:
    t = Transcript()
    first, second = t.form_world(2, window=1.0)
    for _ in range(4):
        t.advance_to(t.now + 0.5)
        t.send(first, Heartbeat())
    assert t.ask_refused(reform(t, second, "shrink")).status is Status.ABORTED


def test_after_a_shrink_the_job_runs_and_has_the_size_of_the_rest() -> None:
    t = Transcript()
    sessions = t.form_world(3)
    t.send(sessions[2], Leave())
    assert t.ask_now(DescribeJob("j")).state == "degraded"
    for one in sessions[:2]:
        t.ask(reform(t, one, "shrink"))
    view = t.ask_now(DescribeJob("j"))
    assert (view.state, view.world_size) == ("running", 2)


def test_newcomers_are_sent_away_when_the_last_member_is_gone() -> None:
    t = Transcript()
    (only,) = t.form_world(1, elastic=True)
    newcomer = t.join()
    t.send(only, Leave())
    refusal = t.ends[newcomer]
    assert refusal is not None
    assert refusal.status is Status.UNAVAILABLE
