"""Requests that are asked again have their effect once."""

from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from allhands_proto.kv_results import CompareSetResult
from allhands_server.log import answer_codec
from allhands_server.log.answer_codec import decode_answer, encode_answer
from allhands_server.log.change_codec import decode_changes, encode_changes
from allhands_server.machine import Machine, completions
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.effects import Effect
from allhands_server.machine.events import CommitsRefused, Origin, RequestReceived
from allhands_server.machine.machine import _HANDLERS
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.requests import (
    Barrier,
    CollectReports,
    DescribeJob,
    ListJobs,
    Request,
)
from allhands_server.machine.store.key_results import DeleteRangeResult, PutResult
from allhands_server.machine.store.keys import Add, CompareSet, Get, Set
from allhands_server.machine.store.queues import QueuePop, QueuePush
from allhands_server.machine.tokens import ListTokens
from allhands_server.testing import Transcript

CLIENT = b"client"


@pytest.fixture
def t() -> Transcript:
    return Transcript(machine=Machine(has_log=True))


def ask(
    t: Transcript,
    request: Request[Any],
    number: int,
    *,
    oldest: int = 0,
    repeated: bool = False,
    client: bytes = CLIENT,
) -> int:
    ticket = next(t.ticket_numbers)
    origin = Origin(client, number, oldest or number, repeated)
    t.handle(RequestReceived(ticket, request, None, origin))
    return ticket


def restart(t: Transcript) -> None:
    """Restart from commits that have been on a disk."""
    t.commits = [
        tuple(decode_changes(encode_changes(commit), slot)) for slot, commit in enumerate(t.commits)
    ]
    t.restart()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_repeated_request_has_its_first_answer_and_no_second_effect(
    t: Transcript, is_restarted: bool
) -> None:
    first = [ask(t, Add("j", "n", 5), 1), ask(t, QueuePush("j", "q", b"x"), 2, oldest=1)]
    if is_restarted:
        restart(t)
    again = [
        ask(t, Add("j", "n", 5), 1, repeated=True),
        ask(t, QueuePush("j", "q", b"x"), 2, oldest=1, repeated=True),
    ]
    assert [t.outcomes[one] for one in again] == [t.outcomes[one] for one in first] == [5, 1]
    assert t.ask_now(Get("j", "n")).value == b"5"
    assert t.ask_now(QueuePop("j", "q")) == b"x"


def test_a_request_that_never_arrived_has_its_effect_when_it_is_repeated(t: Transcript) -> None:
    ask(t, Add("j", "n", 1), 1)
    restart(t)
    ticket = ask(t, Add("j", "n", 1), 2, repeated=True)
    assert t.outcomes[ticket] == 2


def test_two_clients_do_not_share_numbers(t: Transcript) -> None:
    tickets = [ask(t, Add("j", "n", 1), 1, client=one) for one in (b"a", b"b")]
    assert [t.outcomes[one] for one in tickets] == [1, 2]


def test_answers_are_dropped_when_their_client_has_them(t: Transcript) -> None:
    for number in range(1, 50):
        ask(t, Add("j", "n", 1), number)
    kept = [one for one in t.machine.list_changes() if isinstance(one, completions.Completed)]
    assert [one.number for one in kept] == [49]


def test_an_old_attempt_that_arrives_late_has_no_effect(t: Transcript) -> None:
    ask(t, Add("j", "n", 1), 1)
    ask(t, Add("j", "n", 1), 2, oldest=2)
    refused = t.outcomes[ask(t, Add("j", "n", 1), 1)]
    assert isinstance(refused, Refusal)
    assert refused.status is Status.ABORTED
    restart(t)
    assert isinstance(t.outcomes[ask(t, Add("j", "n", 1), 1)], Refusal)
    assert t.ask_now(Get("j", "n")).value == b"2"


def test_a_wait_moves_to_the_connection_on_which_it_is_repeated(t: Transcript) -> None:
    first = ask(t, QueuePop("j", "q", wait=True), 1)
    second = ask(t, QueuePop("j", "q", wait=True), 1, repeated=True)
    assert isinstance(t.outcomes[first], Refusal)
    ask(t, QueuePush("j", "q", b"x"), 1, client=b"other")
    assert t.outcomes[second] == b"x"
    third = ask(t, QueuePop("j", "q", wait=True), 1, repeated=True)
    assert t.outcomes[third] == b"x"


def test_a_barrier_opens_for_who_asks_again(t: Transcript) -> None:
    tickets = [
        ask(t, Barrier("j", "b", who, ("x", "y")), 1, client=who.encode()) for who in ("x", "y")
    ]
    assert [t.outcomes[one] for one in tickets] == [1, 1]
    restart(t)
    again = ask(t, Barrier("j", "b", "y", ("x", "y")), 1, client=b"y", repeated=True)
    assert t.outcomes[again] == 1


def test_a_refused_request_is_tried_anew(t: Transcript) -> None:
    t.ask_now(Set("j", "n", b"text"))
    assert isinstance(t.outcomes[ask(t, Add("j", "n", 1), 1)], Refusal)
    t.ask_now(Set("j", "n", b"3"))
    assert t.outcomes[ask(t, Add("j", "n", 1), 1, repeated=True)] == 4


def test_what_the_log_refuses_was_never_answered() -> None:
    machine = Machine(has_log=True)
    origin = Origin(CLIENT, 1, 1)
    machine.handle(RequestReceived(1, Add("j", "n", 1), None, origin), 0.0)
    machine.handle(CommitsRefused(), 0.0)
    effects: list[Effect] = machine.handle(
        RequestReceived(2, Add("j", "n", 1), None, replace(origin, is_repeated=True)), 0.0
    )
    assert [one.reply for one in effects if hasattr(one, "reply")] == [1]


def test_a_client_that_was_forgotten_is_refused_and_not_served_twice(
    t: Transcript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completions, "MOST_CLIENTS", 2)
    for client in (b"a", b"b", b"c"):
        ask(t, Add("j", "n", 1), 1, client=client)
    for _ in range(2):
        refused = t.outcomes[ask(t, Add("j", "n", 1), 1, client=b"a", repeated=True)]
        assert isinstance(refused, Refusal)
        assert "forgotten" in refused.text
        assert t.outcomes[ask(t, Add("j", "n", 1), 1, client=b"c", repeated=True)] == 3
        t.commits = [tuple(t.machine.list_changes())]
        restart(t)
    assert t.ask_now(Get("j", "n")).value == b"3"


def test_large_answers_are_bounded(t: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "LARGEST_TOTAL", 10_000)
    for number in range(20):
        client = b"%d" % number
        ask(t, QueuePush("j", "q", bytes(3_000)), 1, client=client)
        ask(t, QueuePop("j", "q"), 2, client=client)
    kept = [one for one in t.machine.list_changes() if isinstance(one, completions.Completed)]
    assert sum(len(one.answer) for one in kept) <= 10_000
    assert kept


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        -1,
        True,
        b"bytes",
        1.5,
        CompareSetResult(True, None),
        CompareSetResult(False, b"x"),
        PutResult(3, KeyPut("j", "k", b"v", 2, 1, 1)),
        DeleteRangeResult(4, 1, (KeyPut("j", "k", b"v", 2, 1, 1),)),
    ],
)
def test_answers_come_back_as_they_were(answer: object) -> None:
    assert decode_answer(encode_answer(answer), 1) == answer


@pytest.mark.parametrize("request_kind", [one for one in _HANDLERS if one.keeps_answer])
def test_every_kind_of_answer_can_be_logged(request_kind: type) -> None:
    for kind in list_kinds(find_reply_type(request_kind)):
        assert kind in (int, bool, bytes, str, float, type(None)) or (
            answer_codec._KINDS.get(kind.__name__) is kind
        ), kind


@pytest.mark.parametrize(
    "request_kind", [ListJobs(), DescribeJob("j"), CollectReports("j", 1), ListTokens()]
)
def test_reads_are_not_kept_whatever_a_caller_says(
    t: Transcript, request_kind: Request[Any]
) -> None:
    """Their answers are of kinds that the log does not know."""
    ask(t, Set("j", "k", b"v"), 1)
    before = len(t.commits)
    for _ in range(2):
        ask(t, request_kind, 2)
    assert not [
        change
        for commit in t.commits[before:]
        for change in commit.changes
        if type(change).__name__ == "Completed"
    ]


def find_reply_type(request: type) -> Any:
    """Return R of a request that descends from Request[R]."""
    bases = getattr(request, "__orig_bases__", ())
    (base,) = (one for one in bases if get_origin(one) is Request)
    return get_args(base)[0]


def list_kinds(hint: Any) -> set[type]:
    """Return all classes that a value of a type may be made of."""
    if arguments := get_args(hint):
        return {kind for one in arguments if one is not ... for kind in list_kinds(one)}
    kinds = {hint}
    if is_dataclass(hint):
        for one in get_type_hints(hint).values():
            kinds |= list_kinds(one)
    return kinds


def test_compare_and_set_is_made_once(t: Transcript) -> None:
    request = CompareSet("j", "lock", b"", b"mine")
    first = t.outcomes[ask(t, request, 1)]
    restart(t)
    assert t.outcomes[ask(t, request, 1, repeated=True)] == first == CompareSetResult(True, b"mine")
