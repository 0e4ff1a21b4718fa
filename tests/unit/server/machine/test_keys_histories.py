"""Random histories of the key-value part, against a dictionary."""

from hypothesis import given, settings
from hypothesis import strategies as st

from allhands_proto.kv_results import CompareSetResult
from allhands_server.machine.changes import KeyPut
from allhands_server.machine.refusals import Refusal, Status
from allhands_server.machine.store.keys import (
    Add,
    Append,
    CompareSet,
    Count,
    Delete,
    Get,
    KeyRequest,
    List,
    MultiGet,
    MultiSet,
    Set,
    Wait,
)
from allhands_server.testing import Transcript

KEYS = st.sampled_from(["a", "ab", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"-3", b"x"])
SEVERAL = st.lists(KEYS, min_size=1, max_size=3).map(tuple)

CHANGES = st.one_of(
    st.builds(Set, st.just("j"), KEYS, VALUES),
    st.builds(Add, st.just("j"), KEYS, st.integers(-5, 5)),
    st.builds(CompareSet, st.just("j"), KEYS, VALUES, VALUES),
    st.builds(Append, st.just("j"), KEYS, VALUES),
    st.builds(
        MultiSet,
        st.just("j"),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(Delete, st.just("j"), KEYS),
)
LOOKS = st.one_of(
    st.builds(Get, st.just("j"), KEYS, st.booleans()),
    st.builds(MultiGet, st.just("j"), SEVERAL, st.booleans()),
    st.builds(Wait, st.just("j"), SEVERAL),
    st.builds(List, st.just("j"), st.sampled_from(["", "a", "z"])),
    st.just(Count("j")),
)
STEPS = st.lists(
    st.one_of(
        CHANGES,
        st.tuples(LOOKS, st.none() | st.floats(0.5, 5.0)),
        st.floats(0.1, 3.0),
        st.just("withdraw"),
    ),
    max_size=60,
)


class Model:
    """The store as a dictionary, without waits."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def change(self, request: KeyRequest) -> object:
        """Return the expected reply: None for any revision, a Status for a refusal."""
        match request:
            case Set(_, key, value):
                self.held[key] = value
            case MultiSet(_, pairs):
                self.held |= dict(pairs)
            case Add(_, key, amount):
                try:
                    total = int(self.held.get(key, b"0")) + amount
                except ValueError:
                    return Status.FAILED_PRECONDITION
                self.held[key] = str(total).encode()
                return total
            case Append(_, key, value):
                self.held[key] = self.held.get(key, b"") + value
                return len(self.held[key])
            case CompareSet(_, key, expected, desired):
                swapped = self.held.get(key, b"") == expected
                if swapped:
                    self.held[key] = desired
                return CompareSetResult(swapped, self.held.get(key))
            case Delete(_, key):
                return self.held.pop(key, None) is not None
        return None

    def look(self, request: KeyRequest) -> object:
        """Return the present values; KeyError for a missing key."""
        match request:
            case Get(_, key):
                return self.held[key]
            case MultiGet(_, keys):
                return tuple(self.held[key] for key in keys)
            case Wait(_, keys):
                _ = [self.held[key] for key in keys]
                return None
            case List(_, prefix):
                return tuple(sorted(key for key in self.held if key.startswith(prefix)))
        return len(self.held)


def may_wait(request: KeyRequest) -> bool:
    return isinstance(request, Wait) or getattr(request, "wait", False)


def seen(outcome: object) -> object:
    return outcome.value if isinstance(outcome, KeyPut) else outcome


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_every_history_is_that_of_a_dictionary(steps: list[object]) -> None:
    t, model = Transcript(), Model()
    waiting: dict[int, tuple[KeyRequest, float | None]] = {}

    for step in steps:
        if isinstance(step, float):
            t.advance_to(t.now + step)
        elif step == "withdraw":
            if waiting:
                t.cancel(ticket := next(iter(waiting)))
                del waiting[ticket]
        elif isinstance(step, tuple):
            request, patience = step
            due = None if patience is None else t.now + patience
            ticket = t.ask(request, due)
            try:
                expected = model.look(request)
            except KeyError:
                if may_wait(request):
                    waiting[ticket] = (request, due)
                else:
                    assert t.outcomes[ticket].status is Status.NOT_FOUND
            else:
                assert seen(t.outcomes[ticket]) == expected
        else:
            outcome = t.outcomes[t.ask(step)]
            expected = model.change(step)
            if isinstance(expected, Status):
                assert outcome.status is expected
            elif expected is not None:
                assert outcome == expected

        for ticket, (request, due) in list(waiting.items()):
            try:
                expected = model.look(request)
            except KeyError:
                if due is not None and due <= t.now:
                    assert t.outcomes[ticket].status is Status.DEADLINE_EXCEEDED
                    del waiting[ticket]
                else:
                    assert ticket not in t.outcomes
            else:
                outcome = t.outcomes[ticket]
                assert not isinstance(outcome, Refusal)
                assert seen(outcome) == expected
                del waiting[ticket]

    assert t.ask_now(List("j")) == tuple(sorted(model.held))


@settings(max_examples=50, deadline=None)
@given(st.lists(CHANGES, max_size=20))
def test_a_change_has_a_revision_that_no_earlier_one_had(changes: list[KeyRequest]) -> None:
    t, highest = Transcript(), 0
    for change in changes:
        t.ask(change)
        revision = t.ask_now(Set("j", "mark", b""))
        assert revision > highest
        highest = revision
        assert all(t.ask_now(Get("j", key)).revision <= highest for key in t.ask_now(List("j")))
