"""Named barriers: arrivals, refusals, and replies to late participants."""

from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import Barrier, CancelBarrier, ListBarriers
from allhands_server.machine.store.keys import Set
from allhands_server.machine.values import BarrierResult, BarrierView
from allhands_server.testing import Transcript


def arrive(participant: str, participants: str = "abc", name: str = "start") -> Barrier:
    return Barrier("j", name, participant, tuple(participants))


def test_a_barrier_opens_when_the_last_participant_arrives() -> None:
    t = Transcript()
    early = [t.ask(arrive("a"), due=9.0), t.ask(arrive("b", "cba"))]
    assert not t.outcomes
    last = t.ask(arrive("c"))
    assert t.outcomes == dict.fromkeys((*early, last), 1)
    assert t.machine.next_due is None


def test_a_barrier_of_one_opens_at_once() -> None:
    assert Transcript().ask_now(arrive("a", "a")) == 1


def test_a_name_can_be_used_again_and_counts_its_openings() -> None:
    t = Transcript()
    for generation in (1, 2, 3):
        t.ask(arrive("a", "ab"))
        assert t.ask_now(arrive("b", "ab")) == generation


def test_barriers_of_other_names_and_jobs_are_others() -> None:
    t = Transcript()
    t.ask(arrive("a", "ab"))
    assert t.ask(arrive("b", "ab", name="end")) not in t.outcomes
    assert t.ask(Barrier("other", "start", "b", ("a", "b"))) not in t.outcomes


def test_an_arrival_that_was_withdrawn_does_not_count() -> None:
    t = Transcript()
    t.cancel(t.ask(arrive("a", "ab")))
    b = t.ask(arrive("b", "ab"))
    assert b not in t.outcomes
    assert t.ask_now(arrive("a", "ab")) == 1


def test_an_arrival_whose_time_is_over_does_not_count_and_is_told_who_is_absent() -> None:
    t = Transcript()
    late = t.ask(arrive("a"), due=1.0)
    t.ask(arrive("b"), due=2.0)
    t.advance_to(1.0)
    assert t.outcomes[late] == Refusal(
        Status.DEADLINE_EXCEEDED, "1 of 3 did not arrive at barrier 'start' of job j: 'c'"
    )
    c = t.ask(arrive("c"))
    assert c not in t.outcomes
    t.ask(arrive("a"))
    assert t.outcomes[c] == 1


def expire(t: Transcript, ticket: int) -> str:
    """Go on to the time of the ticket; return the text of its refusal."""
    assert t.machine.next_due is not None
    t.advance_to(t.machine.next_due)
    refused = t.outcomes[ticket]
    assert isinstance(refused, Refusal)
    return refused.text


def test_who_came_and_gave_up_is_not_called_absent() -> None:
    t = Transcript()
    first, second = t.ask(arrive("a"), due=1.0), t.ask(arrive("b"), due=2.0)
    assert expire(t, first) == "1 of 3 did not arrive at barrier 'start' of job j: 'c'"
    assert expire(t, second) == (
        "1 of 3 did not arrive at barrier 'start' of job j: 'c'; 'a' came and gave up before"
    )
    again = t.ask(arrive("b"), due=3.0)  # nobody was left: a new barrier
    assert expire(t, again) == "2 of 3 did not arrive at barrier 'start' of job j: 'a', 'c'"


def test_who_came_again_has_not_given_up() -> None:
    t = Transcript()
    t.ask(arrive("a"), due=1.0)
    second = t.ask(arrive("b"), due=2.0)
    t.advance_to(1.0)
    t.ask(arrive("a"), due=9.0)
    assert expire(t, second) == "1 of 3 did not arrive at barrier 'start' of job j: 'c'"


def test_a_barrier_to_which_all_came_but_never_at_once() -> None:
    t = Transcript()
    first, second = t.ask(arrive("a"), due=3.0), t.ask(arrive("b"), due=4.0)
    t.advance_to(3.0)
    third = t.ask(arrive("c"), due=5.0)
    assert expire(t, second) == "barrier 'start' of job j did not open: 'a' came and gave up before"
    assert expire(t, third) == (
        "barrier 'start' of job j did not open: 'a', 'b' came and gave up before"
    )
    assert first in t.outcomes


def test_of_a_barrier_known_by_its_size_those_who_gave_up_are_named() -> None:
    t = Transcript()

    def come(participant: str, due: float) -> int:
        return t.ask(Barrier("j", "start", participant, (), 3), due=due)

    come("a", 1.0)
    last = come("b", 3.0)
    t.advance_to(1.0)
    come("c", 2.0)
    t.advance_to(2.0)
    come("d", 9.0)  # in the place of one who has left
    assert expire(t, last) == "barrier 'start' of job j did not open: 'c' came and gave up before"
    after = come("e", 4.0)
    assert expire(t, after) == (
        "barrier 'start' of job j did not open: 'b' came and gave up before"
    )


def test_other_participants_are_refused_naming_both_parties_and_those_who_wait_go_on() -> None:
    t = Transcript()
    a = t.ask(arrive("a", "ab"))
    refusal = t.ask_refused(arrive("c", "abc"))
    assert refusal.status is Status.FAILED_PRECONDITION
    assert "'c' comes to barrier 'start' with participants 'a', 'b', 'c'" in refusal.text
    assert "'a', who waits there, with 'a', 'b'" in refusal.text
    t.ask_now(arrive("b", "ab"))
    assert t.outcomes[a] == 1


def test_when_all_who_waited_gave_up_other_participants_may_come() -> None:
    t = Transcript()
    t.ask_now(Set("j", "k", b"keeps the job"))
    t.cancel(t.ask(arrive("a", "ab")))
    t.ask(arrive("a", "abc"))
    t.ask(arrive("b", "abc"))
    assert t.ask_now(arrive("c", "abc")) == 1


def test_who_is_not_on_its_own_list_is_refused() -> None:
    refusal = Transcript().ask_refused(arrive("z"))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert "'z' is not among the participants" in refusal.text


def test_who_is_listed_twice_is_refused() -> None:
    refusal = Transcript().ask_refused(arrive("a", "aab"))
    assert refusal.status is Status.INVALID_ARGUMENT
    assert refusal.text.endswith("'a'")


def test_the_same_participant_cannot_arrive_twice_at_once() -> None:
    t = Transcript()
    t.ask(arrive("a", "ab"))
    assert t.ask_refused(arrive("a", "ab")).status is Status.ALREADY_EXISTS
    assert t.ask_now(arrive("b", "ab")) == 1


def test_names_are_checked() -> None:
    t = Transcript()
    assert t.ask_refused(arrive("a", name="")).status is Status.INVALID_ARGUMENT
    assert t.ask_refused(arrive("a", name="a\x1b[2J")).status is Status.INVALID_ARGUMENT
    assert t.ask_refused(Barrier("j", "n", "", ("",))).status is Status.INVALID_ARGUMENT
    assert t.ask_refused(Barrier("j", "n", "a", ())).status is Status.INVALID_ARGUMENT


def count_in(participant: str, size: int = 2) -> Barrier:
    return Barrier("j", "start", participant, (), size, takes_cancellation=True)


def test_a_barrier_of_a_size_opens_for_as_many_and_names_them() -> None:
    t = Transcript()
    first = t.ask(count_in("x"))
    assert t.ask_now(ListBarriers("j")) == (BarrierView("start", 2, (), ("x",)),)
    last = t.ask(count_in("b"))
    assert t.outcomes[first] == t.outcomes[last] == BarrierResult(1, ("b", "x"))
    assert t.ask_now(ListBarriers("j")) == ()


def test_another_size_is_refused_and_so_are_participants_by_name() -> None:
    t = Transcript()
    waiting = t.ask(count_in("x", 3), due=9.0)
    for other in (count_in("y"), arrive("y", "xyz")):
        refused = t.ask_refused(other)
        assert refused.status is Status.FAILED_PRECONDITION
        assert refused.text.endswith("but 'x', who waits there, as one of 3")
    for wrong in (
        Barrier("j", "n", "a", ("a",), 1),
        count_in("a", 1_000_001),
        count_in(""),
    ):
        assert t.ask_refused(wrong).status is Status.INVALID_ARGUMENT
    t.advance_to(9.0)
    assert t.outcomes[waiting] == Refusal(
        Status.DEADLINE_EXCEEDED,
        "2 of 3 did not arrive at barrier 'start' of job j: there were only 'x'",
    )


def test_a_cancelled_barrier_releases_all_who_wait_and_begins_anew() -> None:
    t = Transcript()
    old = t.ask(arrive("a"), due=9.0)
    new = t.ask(Barrier("j", "start", "b", ("a", "b", "c"), takes_cancellation=True), due=9.0)
    beside = t.ask(arrive("a", name="other"))
    assert t.ask_now(CancelBarrier("j", "start", "me", "enough")) == 2
    assert t.outcomes[new] == BarrierResult(0, ("a", "b"), "me", "enough")
    text = "barrier 'start' of job j was cancelled by 'me': 'enough'"
    assert t.outcomes[old] == Refusal(Status.ABORTED, text)
    assert beside not in t.outcomes
    assert t.machine.next_due is None
    refused = t.ask_refused(CancelBarrier("j", "start", "me", "enough"))
    assert refused.status is Status.NOT_FOUND
    assert "somebody waits: other" in refused.text.replace("'", "")
    for name in "abc":
        last = t.ask(arrive(name))
    assert t.outcomes[last] == 1
