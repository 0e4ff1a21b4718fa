"""Named barriers of many participants: a digest in place of the names in most requests."""

from collections.abc import Sequence

import pytest

from allhands_proto.participants_digest import LISTERS, digest_participants
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import Barrier, CancelBarrier, ListBarriers
from allhands_server.machine.values import BarrierResult, BarrierView
from allhands_server.testing import Transcript

NAMES = tuple(f"r{number:02}" for number in range(80))
LISTER = NAMES[0]


def shorten(participant: str, names: Sequence[str] = NAMES) -> Barrier:
    return Barrier(
        "j", "b", participant, (), 0, True, digest_participants(names), len(names),
        tuple(names[:LISTERS]),
    )  # fmt: skip


def enlist(participant: str, names: Sequence[str] = NAMES) -> Barrier:
    return Barrier("j", "b", participant, tuple(reversed(names)), takes_cancellation=True)


def refuse(t: Transcript, request: Barrier) -> Refusal:
    refused = t.outcomes[t.ask(request)]
    assert isinstance(refused, Refusal)
    return refused


def expire(t: Transcript, ticket: int) -> str:
    t.advance_to(1.0)
    refused = t.outcomes[ticket]
    assert isinstance(refused, Refusal)
    assert refused.status is Status.DEADLINE_EXCEEDED
    return refused.text


@pytest.mark.parametrize("listers", [(0,), (79,), (40,), (0, 1, 2, 3), range(80)])
def test_all_pass_whenever_the_list_comes(listers: Sequence[int]) -> None:
    t = Transcript()
    comers = [
        enlist(name) if number in listers else shorten(name) for number, name in enumerate(NAMES)
    ]
    tickets = [t.ask(one) for one in comers[1:]]
    assert not t.outcomes
    tickets.insert(0, t.ask(comers[0]))
    for number, ticket in enumerate(tickets):
        told = NAMES if number in listers else ()
        assert t.outcomes[ticket] == BarrierResult(1, told)
    assert t.machine.next_due is None


def test_the_absent_are_named_once_a_list_has_come() -> None:
    t = Transcript()
    first = t.ask(shorten(NAMES[5]), due=1.0)
    for name in NAMES[:79]:
        if name not in (NAMES[5], NAMES[7]):
            t.ask(enlist(name) if name == LISTER else shorten(name), due=2.0)
    assert expire(t, first) == "2 of 80 did not arrive at barrier 'b' of job j: 'r07', 'r79'"


def test_without_a_list_those_are_named_who_would_have_brought_it() -> None:
    t = Transcript()
    first = t.ask(shorten(NAMES[5]), due=1.0)
    for name in NAMES[6:78]:
        t.ask(shorten(name), due=2.0)
    assert expire(t, first) == (
        "7 of 80 did not arrive at barrier 'b' of job j: 'r00', 'r01', 'r02', 'r03' and 3 more, "
        "of whose names only these would have told"
    )


def test_other_participants_are_refused_at_once() -> None:
    t = Transcript()
    t.ask(shorten(NAMES[5]))
    others = (*NAMES[:79], "r99")
    for refused in (refuse(t, shorten("r99", others)), refuse(t, enlist("r99", others))):
        assert refused.status is Status.FAILED_PRECONDITION
        assert refused.text.startswith("'r99' comes to barrier 'b' with participants 'r00', 'r01'")
        assert refused.text.endswith(
            "but 'r05', who waits there, with 'r00', 'r01', 'r02', 'r03' and 76 more"
        )


def test_who_is_not_on_the_list_does_not_count() -> None:
    t = Transcript()
    early = t.ask(shorten("stranger"))
    for name in NAMES[1:]:
        t.ask(shorten(name))
    t.ask(enlist(LISTER))
    late = refuse(t, enlist("stranger"))
    assert t.outcomes[early] == late
    assert late.text.startswith("'stranger' is not among the participants of barrier 'b': 'r00'")
    passed = [one for one in t.outcomes.values() if isinstance(one, BarrierResult)]
    assert len(passed) == len(NAMES)


def test_a_stranger_in_the_place_of_a_participant_opens_nothing() -> None:
    t = Transcript()
    stranger = t.ask(shorten("stranger"), due=2.0)
    first = t.ask(enlist(LISTER), due=1.0)
    for name in NAMES[1:79]:
        t.ask(shorten(name), due=3.0)
    assert stranger not in t.outcomes
    assert expire(t, first) == "1 of 80 did not arrive at barrier 'b' of job j: 'r79'"


def test_it_is_listed_and_cancelled_as_others_are() -> None:
    t = Transcript()
    waiting = t.ask(shorten(NAMES[5]))
    assert t.ask_now(ListBarriers("j")) == (BarrierView("b", 80, (), (NAMES[5],)),)
    t.ask(enlist(LISTER))
    assert t.ask_now(ListBarriers("j")) == (BarrierView("b", 80, NAMES, (LISTER, NAMES[5])),)
    assert t.ask_now(CancelBarrier("j", "b", "me", "enough")) == 2
    assert t.outcomes[waiting] == BarrierResult(0, (LISTER, NAMES[5]), "me", "enough")


@pytest.mark.parametrize(
    "bad",
    [
        Barrier("j", "b", "r05", (), 0, True, b"short", 80, NAMES[:LISTERS]),
        Barrier("j", "b", "r05", (), 0, True, bytes(32), 64, NAMES[:LISTERS]),
        Barrier("j", "b", "r05", (), 0, True, bytes(32), 80, NAMES[:1]),
        Barrier("j", "b", "r05", NAMES, 0, True, bytes(32), 80, NAMES[:LISTERS]),
        Barrier("j", "b", "r05", (), 80, True, bytes(32), 80, NAMES[:LISTERS]),
        Barrier("j", "b", "r\n", (), 0, True, bytes(32), 80, NAMES[:LISTERS]),
    ],
)
def test_a_digest_that_cannot_be_is_refused(bad: Barrier) -> None:
    assert refuse(Transcript(), bad).status is Status.INVALID_ARGUMENT
