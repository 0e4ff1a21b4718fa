"""Random histories of ranges, puts and deletions, against dictionaries of every revision."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allhands_server.machine.changes import KeyPut
from allhands_server.machine.store.key_range import TO_THE_END, find_end
from allhands_server.machine.store.key_results import DeleteRangeResult, PutResult
from allhands_server.machine.store.keys import Add, Delete, MultiSet, Set
from allhands_server.machine.store.records import DeleteRange, Put, Range
from allhands_server.testing import Transcript

NAMES = ["a", "a/", "a/b", "a/b/c", "a0", "b", "ä", "\U0010ffff", "\U0010ffff\U0010ffff"]
KEYS = st.sampled_from(NAMES)
VALUES = st.sampled_from([b"", b"1", b"22", b"333"])
ENDS = st.sampled_from(["", TO_THE_END, *NAMES])
SPANS = st.one_of(
    st.tuples(KEYS | st.just(""), st.just(""), st.just(True)),
    st.tuples(KEYS, ENDS, st.just(False)).filter(
        lambda one: one[1] in ("", TO_THE_END) or one[1] > one[0]
    ),
)
CHANGES = st.one_of(
    st.builds(Put, st.just("j"), KEYS, VALUES, previous=st.booleans()),
    st.builds(Set, st.just("j"), KEYS, VALUES),
    st.builds(Add, st.just("j"), st.just("n"), st.just(1)),
    st.builds(Delete, st.just("j"), KEYS),
    st.builds(MultiSet, st.just("j"), st.lists(st.tuples(KEYS, VALUES), max_size=3).map(tuple)),
    SPANS.flatmap(
        lambda span: st.builds(
            DeleteRange, st.just("j"), *map(st.just, span), previous=st.booleans()
        )
    ),
)
LOOKS = SPANS.flatmap(
    lambda span: st.builds(
        Range,
        st.just("j"),
        *map(st.just, span),
        limit=st.integers(0, 4),
        revision=st.just(0) | st.integers(0, 10),
        keys_only=st.booleans(),
        count_only=st.booleans(),
        order=st.integers(0, 4),
        descending=st.booleans(),
    )
)


@dataclass
class Model:
    """The records of now, and those of every revision."""

    revision: int = 0
    records: dict[str, KeyPut] = field(default_factory=dict)
    past: list[dict[str, KeyPut]] = field(default_factory=lambda: [{}])

    def put(self, pairs: dict[str, bytes]) -> None:
        if not pairs:
            return
        self.revision += 1
        for key, value in pairs.items():
            held = self.records.get(key)
            created, version = (held.created, held.version) if held else (self.revision, 0)
            self.records[key] = KeyPut("j", key, value, self.revision, created, version + 1)
        self.past.append(dict(self.records))

    def delete(self, keys: list[str]) -> None:
        if keys:
            self.revision += 1
            for key in keys:
                del self.records[key]
            self.past.append(dict(self.records))

    def list(self, records: dict[str, KeyPut], request: Range | DeleteRange) -> "list[KeyPut]":
        key, end = request.key, request.range_end
        if request.prefix:
            found = [one for one in records.values() if one.key.startswith(key)]
        elif end == "":
            found = [one for one in records.values() if one.key == key]
        else:
            most = [one for one in records.values() if one.key >= key]
            found = [one for one in most if end == TO_THE_END or one.key < end]
        return sorted(found, key=lambda one: one.key)


def order(records: list[KeyPut], request: Range) -> list[KeyPut]:
    by = {
        0: lambda one: one.key,
        1: lambda one: (one.version, one.key),
        2: lambda one: (one.created, one.key),
        3: lambda one: (one.revision, one.key),
        4: lambda one: (one.value, one.key),
    }[request.order]
    return sorted(records, key=by, reverse=request.descending)


def check_range(t: Transcript, model: Model, request: Range) -> None:
    if request.revision > model.revision:
        assert "still to come" in t.ask_refused(request).text
        return
    found = t.ask_now(request)
    records = model.past[request.revision] if request.revision else model.records
    listed = order(model.list(records, request), request)
    assert (found.revision, found.count, found.oldest) == (model.revision, len(listed), 0)
    if request.count_only:
        assert (found.records, found.has_more) == ((), False)
    else:
        cut = listed[: request.limit or None]
        assert found.records == tuple(cut)
        assert found.has_more == (len(cut) < len(listed))


def check_change(t: Transcript, model: Model, request: object) -> None:
    found = t.ask_now(request)
    match request:
        case Put(_, key, value):
            before = model.records.get(key)
            model.put({key: value})
            assert found == PutResult(model.revision, before if request.previous else None)
        case Set(_, key, value):
            model.put({key: value})
        case Add():
            held = model.records.get("n")
            model.put({"n": b"%d" % (int(held.value if held else 0) + 1)})
        case MultiSet(_, pairs):
            model.put(dict(pairs))
        case Delete(_, key):
            model.delete([key] if key in model.records else [])
        case DeleteRange():
            gone = model.list(model.records, request)
            model.delete([one.key for one in gone])
            shown = tuple(gone) if request.previous else ()
            assert found == DeleteRangeResult(model.revision, len(gone), shown)


@settings(max_examples=120, deadline=None)
@given(st.lists(CHANGES | LOOKS, min_size=15, max_size=40))
def test_every_range_of_any_history_is_that_of_a_dictionary(steps: list[object]) -> None:
    t, model = Transcript(), Model()
    t.ask_now(Set("j", "keep", b""))  # so that the job does not end with its last key
    model.put({"keep": b""})
    for step in steps:
        if isinstance(step, Range):
            check_range(t, model, step)
        elif not (isinstance(step, DeleteRange) and "keep" in names(model, step)):
            check_change(t, model, step)


def names(model: Model, request: DeleteRange) -> list[str]:
    return [one.key for one in model.list(model.records, request)]


@pytest.mark.parametrize("prefix", ["a", "\ud7ff", "a\U0010ffff"])
def test_the_end_of_a_prefix_is_a_key_that_can_travel(prefix: str) -> None:
    end = find_end(prefix)
    assert end is not None
    assert end.encode() > f"{prefix}\U0010ffff".encode()


def test_a_prefix_of_the_last_characters_has_no_end() -> None:
    assert find_end("\U0010ffff\U0010ffff") is find_end("") is None
