"""The flags of native/comm in every interleaving: wait.h, heap_access.h, law 2 of layout.h.

Each rank is a little program over shared words, which says what the C says, operation by operation.
A processor's stores wait in its store buffer: a plain store reaches memory at any later time and in
any order, a release store after all before it, and a seq_cst store before the processor goes on.
(Weaker than x86; as weak as ARM in what matters here, since all loads are acquire loads at least.)
Every broken variant of a program has to be caught.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

AWAKE = 0
NUMBERS = {"word": 1, "one": 1, "other": 2}
"""What the doorbell of a rank says that sleeps until the word's owner publishes it."""

Word = str
Operation = tuple[object, ...]
Program = tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Store:
    word: Word
    value: int
    release: bool


@dataclass(frozen=True, slots=True)
class Processor:
    at: int = 0
    loaded: int = 0
    pending: tuple[Store, ...] = ()
    sleeps_on: Word | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    processors: tuple[Processor, ...]
    memory: frozenset[tuple[Word, int]] = frozenset()

    def value(self, word: Word) -> int:
        return dict(self.memory).get(word, 0)

    def written(self, word: Word, value: int) -> "World":
        return replace(self, memory=frozenset((dict(self.memory) | {word: value}).items()))

    def changed(self, index: int, **changes: object) -> "World":
        processors = list(self.processors)
        processors[index] = replace(processors[index], **changes)  # type: ignore[arg-type]
        return replace(self, processors=tuple(processors))


def drained(world: World, index: int) -> Iterator[World]:
    """Yield each world after a further pending store of the processor has reached memory."""
    pending = world.processors[index].pending
    for place, store in enumerate(pending):
        earlier = pending[:place]
        if not (store.release and earlier) and all(store.word != other.word for other in earlier):
            rest = (*earlier, *pending[place + 1 :])
            yield world.written(store.word, store.value).changed(index, pending=rest)


def moved(world: World, index: int, program: Program) -> World | None:
    """The world after the processor's next operation; None: pending stores must drain first."""
    me = world.processors[index]

    def onward(world: World, label: object = None, **changes: object) -> World:
        at = me.at + 1 if label is None else program.index(("label", label))
        return world.changed(index, at=at, **changes)

    match program[me.at]:
        case "label", _:
            return onward(world)
        case "goto", label:
            return onward(world, label)
        case "if", value, label:
            return onward(world, label if me.loaded == value else None)
        case "load", str(word):
            own = [store.value for store in me.pending if store.word == word]
            return onward(world, loaded=own[-1] if own else world.value(word))
        case "store", str(word), int(value), ("plain" | "release") as order:
            store = Store(word, value, order == "release")
            return onward(world, pending=(*me.pending, store))
        case "end", str(result):
            return world.changed(index, result=result)
        case _ if me.pending:
            return None
        case "store", str(word), int(value), "seq_cst":
            return onward(world.written(word, value))
        case "exchange", str(word), int(value):
            return onward(world.written(word, value), loaded=world.value(word))
        case "futex_wait", str(word), value:  # the kernel compares and lets sleep in one
            return onward(world, sleeps_on=word if world.value(word) == value else None)
        case "futex_wake", str(word):
            for other, processor in enumerate(world.processors):
                if processor.sleeps_on == word:
                    world = world.changed(other, sleeps_on=None)
            return onward(world)
    raise AssertionError(program[me.at])


def last_worlds(*programs: Program) -> set[World]:
    """All worlds in which nothing can happen any more."""
    found: set[World] = set()
    start = World(tuple(Processor() for _ in programs))
    known, todo = {start}, [start]
    while todo:
        world = todo.pop()
        following: set[World] = set()
        for index, program in enumerate(programs):
            me = world.processors[index]
            following.update(drained(world, index))
            if me.result is None and me.sleeps_on is None:
                after = moved(world, index, program)
                following.update([] if after is None else [after])
        if not following:
            found.add(world)
        todo += following - known
        known |= following
    return found


def endings(*programs: Program) -> set[tuple[str | None, ...]]:
    """Return all joint outcomes of the programs; None for an endless sleep."""
    return {tuple(me.result for me in world.processors) for world in last_worlds(*programs)}


# ---------------------------------------------------------------- wait.h: sleeping and ringing


def waiter(
    *words: Word, asleep: str = "seq_cst", look_again: bool = True, last_look: bool = True
) -> Program:
    """`ah_await`, asleep at once: until all words are published, or else."""
    steps: list[Operation] = []
    subsets = [
        [word for k, word in enumerate(words) if mask >> k & 1]
        for mask in reversed(range(2 ** len(words)))
    ]
    for left in subsets:
        here = "+".join(left)
        others = {word: "+".join(w for w in left if w != word) for word in left}
        steps += [("label", here)]
        if not left:
            steps += [("end", "ok")]
            continue
        steps += [("load", "abandoned"), ("if", 1, f"given up {here}")]
        for word in left:
            steps += [("load", word), ("if", 1, others[word])]
        steps += [("load", "interrupted"), ("if", 1, "interrupted")]
        awaited = left[-1]
        steps += [("store", "bell", NUMBERS[awaited], asleep)]
        for word in [awaited, "abandoned", "interrupted"] if look_again else []:
            steps += [("load", word), ("if", 1, f"awake {here}")]
        steps += [("futex_wait", "bell", NUMBERS[awaited]), ("label", f"awake {here}")]
        steps += [("store", "bell", AWAKE, "seq_cst"), ("goto", here)]
        steps += [("label", f"given up {here}")]
        for word in left if last_look else []:  # what was published before it was given up
            steps += [("load", word), ("if", 1, others[word])]
        steps += [("end", "abandoned")]
    steps += [("label", "interrupted"), ("end", "interrupted")]
    return tuple(steps)


def publisher(
    *words: Word, publish: str = "seq_cst", ring: str = "exchange", wakes: str = "all"
) -> Program:
    """Stores each word and rings after each: ah_post, ah_publish_*, ah_comm_interrupt, ...

    A word with a number is for those that sleep until it comes; others wake whoever sleeps, unless
    `wakes` says that they do nothing.
    """
    steps: list[Operation] = []
    for word in words:
        done = f"{word} told"
        steps += [("store", word, 1, publish), ("load", "bell"), ("if", AWAKE, done)]
        others = {1, 2} - {NUMBERS[word]} if word in NUMBERS else set()
        steps += [("if", number, done) for number in sorted(others)]
        if word not in NUMBERS and wakes == "none":
            steps += [("goto", done)]
        if ring == "exchange":
            steps += [("exchange", "bell", AWAKE), ("if", AWAKE, done)]
        if ring != "only store":
            steps += [("futex_wake", "bell")]
        else:
            steps += [("store", "bell", AWAKE, "seq_cst")]
        steps += [("label", done)]
    return (*steps, ("end", "told"))


def test_who_sleeps_is_woken_by_what_it_waits_for() -> None:
    assert endings(waiter("word"), publisher("word")) == {("ok", "told")}


def test_who_waits_for_two_ranks_is_woken_by_both() -> None:
    ways = endings(waiter("one", "other"), publisher("one"), publisher("other"))

    assert ways == {("ok", "told", "told")}


def test_who_sleeps_until_one_of_two_ranks_comes_is_not_left_there_by_the_other() -> None:
    assert endings(waiter("one", "other"), publisher("one", "other")) == {("ok", "told")}
    assert endings(waiter("one", "other"), publisher("other", "one")) == {("ok", "told")}


def test_who_sleeps_until_one_of_two_ranks_comes_is_woken_by_whoever_gives_up() -> None:
    ways = endings(waiter("one", "other"), publisher("one", "abandoned"))

    assert ways == {("abandoned", "told")}


def test_an_interrupt_ends_a_sleep() -> None:
    ways = endings(waiter("word"), publisher("interrupted"))

    assert ways == {("interrupted", "told")}


def test_an_interrupt_and_a_publication_at_once_wake_too() -> None:
    ways = endings(waiter("word"), publisher("word"), publisher("interrupted"))

    assert ways == {("ok", "told", "told"), ("interrupted", "told", "told")}


def test_who_is_given_up_is_woken() -> None:
    assert endings(waiter("word"), publisher("abandoned")) == {("abandoned", "told")}


def test_what_was_published_before_giving_up_counts() -> None:
    assert endings(waiter("word"), publisher("word", "abandoned")) == {("ok", "told")}


@pytest.mark.parametrize(
    ("sleeper", "poster"),
    [
        pytest.param(waiter("word", look_again=False), publisher("word"), id="no second look"),
        pytest.param(waiter("word", asleep="release"), publisher("word"), id="no fence asleep"),
        pytest.param(waiter("word"), publisher("word", publish="release"), id="no fence posting"),
        pytest.param(waiter("word"), publisher("word", ring="only store"), id="no wake-up call"),
        pytest.param(
            waiter("one", "other"),
            publisher("one", "abandoned", wakes="none"),
            id="no wake-up of all",
        ),
    ],
)
def test_a_broken_doorbell_sleeps_for_ever(sleeper: Program, poster: Program) -> None:
    assert (None, "told") in endings(sleeper, poster)


def test_giving_up_without_a_last_look_loses_what_was_published() -> None:
    ways = endings(waiter("word", last_look=False), publisher("word", "abandoned"))

    assert ("abandoned", "told") in ways


# ---------------------------------------------------------------- layout.h: number after data


def post(order: str) -> Program:
    return (("store", "data", 1, "plain"), ("store", "sequence", 1, order), ("end", "posted"))


READ: Program = (
    ("label", "again"),
    ("load", "sequence"),
    ("if", 1, "there"),
    ("end", "not yet"),
    ("label", "there"),
    ("load", "data"),
    ("if", 1, "good"),
    ("end", "torn"),
    ("label", "good"),
    ("end", "good"),
)


@pytest.mark.parametrize("order", ["release", "seq_cst"])
def test_who_sees_the_number_sees_the_data(order: str) -> None:
    assert endings(post(order), READ) == {("posted", "good"), ("posted", "not yet")}


def test_a_number_that_overtakes_its_data_is_caught() -> None:
    assert ("posted", "torn") in endings(post("plain"), READ)


# ---------------------------------------------------------------- heap_access.h: accesses


def toucher(*, enter: str = "seq_cst", look: bool = True, leave: str = "seq_cst") -> Program:
    """A program with writes to a peer's array, to end before the peer has the array back."""
    return (
        ("store", "inside", 1, enter),
        *((("load", "abandoned"), ("if", 1, "out")) if look else ()),
        ("store", "array", 1, "plain"),
        ("label", "out"),
        ("store", "inside", 0, leave),
        ("end", "out"),
    )


def owner(*, say: str = "seq_cst", wait: bool = True) -> Program:
    """Gives the call up, waits until no rank is inside, and writes: 2 must stay."""
    return (
        ("store", "abandoned", 1, say),
        ("label", "inside"),
        *((("load", "inside"), ("if", 1, "inside")) if wait else ()),
        ("store", "array", 2, "seq_cst"),
        ("end", "has it back"),
    )


def is_spoiled(toucher: Program, owner: Program) -> bool:
    return any(world.value("array") != 2 for world in last_worlds(toucher, owner))


def test_nobody_writes_to_an_array_that_its_owner_has_back() -> None:
    assert not is_spoiled(toucher(), owner())
    assert not is_spoiled(toucher(leave="release"), owner())


@pytest.mark.parametrize(
    ("toucher", "owner"),
    [
        pytest.param(toucher(enter="release"), owner(), id="no fence entering"),
        pytest.param(toucher(look=False), owner(), id="no look at who gave up"),
        pytest.param(toucher(leave="plain"), owner(), id="leaving overtakes the writing"),
        pytest.param(toucher(), owner(say="release"), id="no fence giving up"),
        pytest.param(toucher(), owner(wait=False), id="no wait for who is inside"),
    ],
)
def test_a_broken_window_spoils_the_array(toucher: Program, owner: Program) -> None:
    assert is_spoiled(toucher, owner)
