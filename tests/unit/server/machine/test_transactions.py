"""Transactions: conditions, operations at one revision, all or none."""

import pytest

from allhands_server.machine.changes import KeyPut
from allhands_server.machine.refusals import Status
from allhands_server.machine.requests import Request
from allhands_server.machine.store.key_results import DeleteRangeResult, PutResult, RangeResult
from allhands_server.machine.store.keys import Get, List, MultiSet, Set
from allhands_server.machine.store.leases import LeaseGrant
from allhands_server.machine.store.records import Compact, DeleteRange, Operation, Put, Range
from allhands_server.machine.store.transactions import (
    EQUAL,
    GREATER,
    LESS,
    NOT_EQUAL,
    OF_CREATE,
    OF_LEASE,
    OF_MOD,
    OF_VALUE,
    OF_VERSION,
    Compare,
    Txn,
)
from allhands_server.testing import Transcript


def put(key: str, value: bytes = b"", **more: object) -> Put:
    return Put("j", key, value, **more)  # type: ignore[arg-type]


def txn(
    compares: list[Compare], success: list[Operation], failure: list[Operation] | None = None
) -> Txn:
    return Txn("j", tuple(compares), tuple(success), tuple(failure or ()))


def start() -> Transcript:
    """Return a machine with k: created at 1, last change 3, version 2, value b, lease 4."""
    t = Transcript()
    t.ask_now(Set("j", "k", b"a"))
    t.ask_now(Set("j", "other", b""))
    t.ask_now(Put("j", "k", b"b"))
    t.ask_now(LeaseGrant("j", 10.0, 4))
    return t


@pytest.mark.parametrize(
    ("target", "held"), [(OF_VERSION, 2), (OF_CREATE, 1), (OF_MOD, 3), (OF_LEASE, 0)]
)
def test_a_number_of_a_key_is_compared(target: int, held: int) -> None:
    t = start()
    expected = {EQUAL: (0, 1, 0), NOT_EQUAL: (1, 0, 1), GREATER: (1, 0, 0), LESS: (0, 0, 1)}
    for relation, outcomes in expected.items():
        for number, holds in zip((held - 1, held, held + 1), outcomes, strict=True):
            if number >= 0:
                found = t.ask_now(txn([Compare("k", target, relation, number=number)], []))
                assert found.succeeded == holds, (relation, number)


@pytest.mark.parametrize(
    ("relation", "outcomes"),
    [(EQUAL, (0, 1, 0)), (NOT_EQUAL, (1, 0, 1)), (GREATER, (1, 0, 0)), (LESS, (0, 0, 1))],
)
def test_the_value_of_a_key_is_compared(relation: int, outcomes: tuple[int, ...]) -> None:
    t = start()
    found = [
        t.ask_now(txn([Compare("k", OF_VALUE, relation, value)], [])).succeeded
        for value in (b"a", b"b", b"ba")
    ]
    assert found == [bool(one) for one in outcomes]


def test_an_absent_key_has_numbers_of_zero_and_no_value() -> None:
    t = start()
    for target in (OF_VERSION, OF_CREATE, OF_MOD, OF_LEASE):
        assert t.ask_now(txn([Compare("none", target, EQUAL, number=0)], [])).succeeded
    held = [t.ask_now(txn([Compare("none", OF_VALUE, one)], [])).succeeded for one in range(4)]
    assert held == [False, True, False, False]


def test_one_branch_is_carried_out_at_one_revision() -> None:
    t = start()
    absent = Compare("new", OF_VERSION, EQUAL, number=0)
    request = txn([absent], [put("new", b"1"), put("k", b"c")], [Range("j", "new")])
    first = t.ask_now(request)
    assert (first.succeeded, first.results) == (True, (PutResult(5), PutResult(5)))
    second = t.ask_now(request)
    record = KeyPut("j", "new", b"1", 5, 5, 1)
    assert (second.succeeded, second.revision) == (False, 5)
    assert second.results == (RangeResult(5, (record,), 1),)
    assert t.ask_now(Get("j", "k")).revision == 5


def test_operations_see_those_before_them() -> None:
    t = start()
    found = t.ask_now(
        txn(
            [],
            [
                put("m", b"1"),
                DeleteRange("j", "other", previous=True),
                Range("j", "", prefix=True),
                Range("j", "", prefix=True, count_only=True),
                DeleteRange("j", "k", "l"),
                Range("j", "k"),
            ],
        )
    )
    _, deleted, listed, counted, gone, absent = found.results
    assert isinstance(deleted, DeleteRangeResult)
    assert [one.key for one in deleted.previous] == ["other"]
    assert isinstance(listed, RangeResult)
    assert [one.key for one in listed.records] == ["k", "m"]
    assert isinstance(counted, RangeResult)
    assert counted.count == 2
    assert gone == DeleteRangeResult(5, 1)
    assert isinstance(absent, RangeResult)
    assert absent.records == ()
    assert t.ask_now(List("j")) == ("m",)


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (txn([], [put("a"), put("a")]), Status.INVALID_ARGUMENT, "two puts of key 'a'"),
        (txn([], [put("a"), DeleteRange("j", "a")]), Status.INVALID_ARGUMENT, "put and deleted"),
        (txn([], [DeleteRange("j", "a", "\0"), put("b")]), Status.INVALID_ARGUMENT, "put and"),
        (txn([], [put("a")] * 129), Status.INVALID_ARGUMENT, "128 is the most"),
        (txn([Compare("", 0, 0)], []), Status.INVALID_ARGUMENT, "the key is empty"),
        (txn([Compare("a", 9, 0)], []), Status.INVALID_ARGUMENT, "target 9"),
        (txn([Compare("a", 0, 9)], []), Status.INVALID_ARGUMENT, "relation 9"),
        (txn([], [put("a"), put("b", bytes(5 << 20))]), Status.INVALID_ARGUMENT, "is the most"),
        (txn([], [put("a"), put("b", lease=9)]), Status.NOT_FOUND, "no lease 9"),
        (txn([], [put("a"), put("b", member="m")]), Status.NOT_FOUND, "nobody has joined"),
        (txn([], [put("a"), put("b", keeps_value=True)]), Status.NOT_FOUND, "no key 'b'"),
        (Compact("j", 99), Status.INVALID_ARGUMENT, "99 is still to come"),
    ],
)
def test_what_is_refused_changes_nothing(
    request_: Request[object], status: Status, text: str
) -> None:
    t = start()
    refusal = t.ask_refused(request_)
    assert refusal.status is status
    assert text in refusal.text
    assert t.ask_now(List("j")) == ("k", "other")
    assert t.ask_now(Range("j", "k")).revision == 4


def test_a_transaction_whose_answer_is_too_large_changes_nothing() -> None:
    t = start()
    for key in ("x", "y"):
        t.ask_now(Set("j", key, bytes(4 << 20)))
    refusal = t.ask_refused(txn([], [put("a"), DeleteRange("j", "x", "z", previous=True)]))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    refusal = t.ask_refused(txn([], [put("a"), Range("j", "x", "z")]))
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert t.ask_now(List("j")) == ("k", "other", "x", "y")


def test_what_is_put_by_a_transaction_answers_who_waits() -> None:
    t = start()
    waiting = t.ask(Get("j", "new", wait=True))
    t.ask_now(txn([], [put("new", b"1")]))
    assert waiting in t.outcomes


def test_the_history_can_be_compacted() -> None:
    t = start()
    t.ask_now(MultiSet("j", (("k", b""), ("other", b""))))
    assert t.ask_now(Range("j", "k", revision=2)).oldest == 0
    assert t.ask_now(Compact("j", 3)) == 5
    assert t.ask_now(Range("j", "k", revision=2)).oldest == 3
    assert t.ask_now(Range("j", "k", revision=3)).records[0].value == b"b"
    assert t.ask_now(Compact("j", 2)) == 5  # it is already
