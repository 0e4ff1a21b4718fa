"""The checker of histories: what it takes for linearizable, and what not."""

import itertools
import random
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import pytest

from support.linearizability.checker import Model, Undecided, find_contradiction
from support.linearizability.history import UNKNOWN, UNKNOWN_END, Operation
from support.linearizability.models import ABSENT, KeysModel, QueueModel

S = TypeVar("S", bound=Hashable)
KEYS, QUEUE = KeysModel(), QueueModel()


def call(begin: int, end: int, verb: str, *arguments: Any, gives: Any = None) -> Operation:
    return Operation(0, begin, end, verb, arguments, gives)


def lose(begin: int, verb: str, *arguments: Any) -> Operation:
    """Make a call of unknown outcome."""
    return Operation(0, begin, UNKNOWN_END, verb, arguments, UNKNOWN)


def agrees(model: Model[Any], *operations: Operation) -> bool:
    return find_contradiction(model, operations) is None


def test_a_read_beside_a_write_finds_either_value() -> None:
    first, second = call(0, 1, "put", "k", b"1", gives=1), call(2, 9, "put", "k", b"2", gives=2)
    for found in (b"1", b"2"):
        assert agrees(KEYS, first, second, call(3, 8, "get", "k", gives=found))
    assert not agrees(KEYS, first, second, call(3, 8, "get", "k", gives=ABSENT))


def test_a_stale_read_is_found() -> None:
    writes = call(0, 1, "put", "k", b"1", gives=1), call(2, 3, "put", "k", b"2", gives=2)
    assert agrees(KEYS, *writes, call(4, 5, "get", "k", gives=b"2"))
    assert not agrees(KEYS, *writes, call(4, 5, "get", "k", gives=b"1"))


def test_reads_do_not_go_back_while_a_write_is_under_way() -> None:
    write = call(0, 9, "put", "k", b"1", gives=1)
    older, newer = {"gives": ABSENT}, {"gives": b"1"}
    assert agrees(KEYS, write, call(1, 2, "get", "k", **older), call(3, 4, "get", "k", **newer))
    assert not agrees(KEYS, write, call(1, 2, "get", "k", **newer), call(3, 4, "get", "k", **older))


def test_a_write_of_unknown_outcome_may_come_late_or_never_but_once() -> None:
    lost = lose(0, "add", "n", 1)
    before = call(1, 2, "get", "n", gives=ABSENT)
    assert agrees(KEYS, lost, before)
    assert agrees(KEYS, lost, before, call(3, 4, "add", "n", 1, gives=1))
    assert agrees(KEYS, lost, before, call(3, 4, "add", "n", 1, gives=2))
    assert not agrees(KEYS, lost, before, call(3, 4, "add", "n", 1, gives=3))
    # It came once, between the two: it cannot come again.
    assert not agrees(
        KEYS,
        lost,
        call(1, 2, "add", "n", 1, gives=2),
        call(3, 4, "add", "n", 1, gives=4),
    )


def test_a_write_of_unknown_outcome_does_not_come_before_its_begin() -> None:
    assert not agrees(KEYS, call(0, 1, "get", "k", gives=b"1"), lose(2, "put", "k", b"1"))


def test_several_keys_change_in_one_step() -> None:
    write = call(0, 9, "multi_put", ("a", b"1"), ("b", b"1"), gives=1)
    half = call(1, 2, "get", "a", gives=b"1"), call(3, 4, "get", "b", gives=ABSENT)
    assert not agrees(KEYS, write, *half)
    both = call(1, 2, "multi_get", "a", "b", gives=(b"1", b"1"))
    assert agrees(KEYS, write, both, call(3, 4, "list", "", gives=("a", "b")))
    assert not agrees(KEYS, write, both, call(3, 4, "list", "", gives=("a",)))


def test_revisions_grow_with_each_change() -> None:
    first = call(0, 1, "put", "a", b"1", gives=5)
    between = call(2, 3, "add", "n", 1, gives=1)
    assert agrees(KEYS, first, between, call(4, 5, "put", "a", b"2", gives=7))
    assert not agrees(KEYS, first, between, call(4, 5, "put", "a", b"2", gives=6))


def test_a_key_is_set_by_the_revision_that_it_has() -> None:
    put = call(0, 1, "put", "a", b"1", gives=3)
    for expected, gives, is_right in (
        (3, 4, True),
        (3, None, False),
        (2, None, True),
        (2, 4, False),
    ):
        tried = call(2, 3, "compare_and_set", "a", expected, b"2", gives=gives)
        assert agrees(KEYS, put, tried) is is_right
    lost = lose(2, "compare_and_set", "a", 3, b"2")
    for found in (b"1", b"2"):
        assert agrees(KEYS, put, lost, call(4, 5, "get", "a", gives=found))
    assert agrees(KEYS, call(0, 1, "compare_and_set", "a", 0, b"1", gives=1))


def test_a_record_has_the_version_and_the_revision_of_its_key() -> None:
    changes = call(0, 1, "put", "a", b"1", gives=3), call(2, 3, "append", "a", b"2", gives=2)
    assert agrees(KEYS, *changes, call(4, 5, "get_record", "a", gives=(b"12", 2, 4)))
    for wrong in ((b"12", 1, 4), (b"1", 2, 4), ABSENT):
        assert not agrees(KEYS, *changes, call(4, 5, "get_record", "a", gives=wrong))
    assert not agrees(KEYS, changes[0], call(4, 5, "get_record", "a", gives=(b"1", 1, 4)))
    # What the record has told holds for the next.
    told = call(4, 5, "get_record", "a", gives=(b"12", 2, 4))
    assert not agrees(KEYS, *changes, told, call(6, 7, "put", "b", b"", gives=4))


def test_a_transaction_happens_as_a_whole() -> None:
    before = call(0, 1, "put", "a", b"1", gives=1), call(2, 3, "add", "n", 1, gives=1)
    done = call(4, 5, "exchange", b"1", b"2", gives=(True, 3, None))
    assert agrees(KEYS, *before, done, call(6, 7, "list", "", gives=("a", "b")))
    assert not agrees(KEYS, *before, done, call(6, 7, "list", "", gives=("a", "b", "n")))
    assert not agrees(KEYS, *before, call(4, 5, "exchange", b"0", b"2", gives=(True, 3, None)))
    assert agrees(KEYS, *before, call(4, 5, "exchange", b"0", b"2", gives=(False, 2, b"1")))
    assert not agrees(KEYS, *before, call(4, 5, "exchange", b"0", b"2", gives=(False, 2, b"0")))
    lost = lose(4, "exchange", b"1", b"2")
    assert agrees(KEYS, *before, lost, call(6, 7, "multi_get", "a", "b", gives=(b"2", b"2")))
    assert not agrees(KEYS, *before, lost, call(6, 7, "multi_get", "a", "b", gives=(b"1", b"2")))


def test_compare_set_and_delete_say_what_was_there() -> None:
    made = call(0, 1, "cas", "a", b"", b"1", gives=(True, b"1"))
    for found, is_right in (((False, b"1"), True), ((False, None), False), ((True, b"3"), False)):
        tried = call(2, 3, "cas", "a", b"2", b"3", gives=found)
        assert agrees(KEYS, made, tried) is is_right
    assert agrees(KEYS, made, call(2, 3, "delete", "a", gives=True))
    assert not agrees(KEYS, made, call(2, 3, "delete", "a", gives=False))
    assert not agrees(KEYS, made, call(2, 3, "append", "a", b"x", gives=1))


def test_each_value_leaves_a_queue_once_and_in_its_turn() -> None:
    pushes = call(0, 1, "push", b"1", gives=1), call(2, 3, "push", b"2", gives=2)
    first, second = call(4, 5, "pop", gives=b"1"), call(6, 7, "pop", gives=b"2")
    assert agrees(QUEUE, *pushes, first, second, call(8, 9, "pop", gives=ABSENT))
    assert not agrees(QUEUE, *pushes, first, call(6, 7, "pop", gives=b"1"))
    assert not agrees(QUEUE, *pushes, second)
    assert agrees(QUEUE, *pushes, lose(3, "pop"), second)
    assert not agrees(QUEUE, *pushes, first, call(6, 7, "length", gives=2))


def test_a_contradiction_names_the_call_that_cannot_be() -> None:
    stale = call(4, 5, "get", "k", gives=b"1")
    found = find_contradiction(
        KEYS,
        [call(0, 1, "put", "k", b"1", gives=1), call(2, 3, "put", "k", b"2", gives=2), stale],
    )
    assert found is not None
    assert found.next == (stale,)
    assert "[4, 5] client 0: get('k') = b'1'" in str(found)


def test_a_search_without_end_is_no_verdict() -> None:
    pushes = [call(0, 100, "push", b"%d" % number, gives=99) for number in range(12)]
    lost = [lose(0, "push", b"lost %d" % number) for number in range(12)]
    with pytest.raises(Undecided):
        find_contradiction(QUEUE, lost + pushes, 10_000)


# ---------------------------------------------------------------- beside brute force


def try_all_orders(model: Model[S], operations: Sequence[Operation]) -> bool:
    """Return whether any order of any choice of calls of unknown outcome explains the history."""
    known = [one for one in operations if one.is_known]
    unknown = [one for one in operations if not one.is_known]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations((*known, *chosen)):
                if _is_in_time(order) and _explains(model, order):
                    return True
    return False


def _is_in_time(order: Sequence[Operation]) -> bool:
    return not any(later.end < earlier.begin for earlier, later in itertools.combinations(order, 2))


def _explains(model: Model[S], order: Sequence[Operation]) -> bool:
    state: S | None = model.make_state()
    for one in order:
        state = model.apply(state, one)
        if state is None:
            return False
    return True


def make_history(chance: random.Random) -> tuple[Model[Any], list[Operation]]:
    """Make a history of few calls with results that are often possible."""
    is_queue = chance.random() < 0.3
    count = chance.randint(2, 6)
    instants = iter(chance.sample(range(100), 2 * count))
    operations = []
    for _ in range(count):
        begin, end = sorted((next(instants), next(instants)))
        verb, arguments, results = (_choose_queue if is_queue else _choose_keys)(chance)
        if chance.random() < 0.2:
            operations.append(lose(begin, verb, *arguments))
        else:
            operations.append(call(begin, end, verb, *arguments, gives=chance.choice(results)))
    return (QUEUE if is_queue else KEYS), operations


def _choose_queue(chance: random.Random) -> tuple[str, tuple[Any, ...], list[Any]]:
    values = [b"1", b"2", b"3"]
    return chance.choice(
        [
            ("push", (chance.choice(values),), [1, 1, 2]),
            ("pop", (), [*values, ABSENT]),
            ("length", (), [0, 1, 1, 2]),
        ]
    )


def _choose_keys(chance: random.Random) -> tuple[str, tuple[Any, ...], list[Any]]:
    key, value = chance.choice("ab"), chance.choice([b"1", b"2"])
    return chance.choice(
        [
            ("put", (key, value), [1, 2, 3]),
            ("get", (key,), [b"1", b"2", ABSENT]),
            ("add", (key, 1), [1, 2, 3]),
            ("cas", (key, b"", value), [(True, value), (False, b"1")]),
            ("delete", (key,), [True, False]),
            ("append", (key, b"0"), [1, 2]),
            ("multi_put", (("a", value), ("b", value)), [1, 2, 3]),
            ("multi_get", ("a", "b"), [(b"1", b"1"), (b"2", b"2"), ABSENT]),
            ("list", ("",), [(), ("a",), ("a", "b")]),
            ("get_record", (key,), [(b"1", 1, 1), (b"2", 2, 2), ABSENT]),
            ("exchange", (b"1", value), [(True, 2, None), (True, 3, None), (False, 1, ABSENT)]),
        ]
    )


def test_the_checker_agrees_with_brute_force() -> None:
    chance = random.Random(7)
    verdicts = []
    for _ in range(1_500):
        model, operations = make_history(chance)
        found = find_contradiction(model, operations)
        assert (found is None) == try_all_orders(model, operations), operations
        verdicts.append(found is None)
    assert 300 < sum(verdicts) < 1_200
