"""Small messages of composite calls, packed into blocks of one size."""

import random
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

from allhands.collectives.composite_call import Step, StepBuilder
from allhands.collectives.core_call import Exchange, Message, Received, sign_call
from allhands.collectives.packed_exchange import exchange_packed

Found = Received | None
Started = Generator[Step, None, Found]
SIGNED = sign_call("all_gather_object")


def start(rank: int, size: int, exchange: Exchange, *, has_each: bool) -> Started:
    builder = StepBuilder("g", rank, size, False, None)
    return exchange_packed(builder, exchange, has_each=has_each)


def carry_out(steps: Sequence[Step]) -> str:
    """Move the blocks of one step of all ranks; return its kind."""
    requests = [step.request for step in steps]
    assert len({(one.kind, one.count, one.root) for one in requests}) == 1
    kind, root = requests[0].kind, requests[0].root
    for rank, one in enumerate(requests):
        match kind:
            case "broadcast":
                one.targets[0][...] = requests[root].targets[0].copy()
            case "all_gather_into_tensor":
                one.targets[0][...] = np.concatenate([other.sources[0] for other in requests])
            case _:
                for target, other in zip(one.targets, requests, strict=True):
                    target[...] = other.sources[rank]
    return kind


def run(started: Sequence[Started], kinds: list[str] | None = None) -> list[Found]:
    """Run the exchanges of all ranks, and note the kinds of their steps."""
    while True:
        found: list[Found] = []
        steps: list[Step] = []
        for one in started:
            try:
                steps.append(next(one))
            except StopIteration as end:
                found.append(end.value)
        if not steps:
            return found
        assert len(steps) == len(started), "some ranks have a step, and others none"
        kind = carry_out(steps)
        if kinds is not None:
            kinds.append(kind)


def draw_message(source: random.Random, most: int) -> Message:
    nbytes = source.choice([0, 1, most, source.randrange(most + 1)])
    data = source.randbytes(nbytes)
    at = source.randrange(nbytes + 1)
    return (data[:at], np.frombuffer(data[at:], np.uint8)) if nbytes > at else (data,)


def read(message: Message) -> bytes:
    return b"".join(bytes(part) for part in message)


def check(received: Found, rank: int, wanted: Sequence[bytes]) -> None:
    assert isinstance(received, list)
    assert received[rank] is None
    for peer, one in enumerate(received):
        if peer != rank:
            assert one is not None
            assert one.tobytes() == wanted[peer], (rank, peer)
            assert one.flags.writeable


@pytest.mark.parametrize("most", [1000, 10_000])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_one_message_of_each_rank_comes_to_all(size: int, seed: int, most: int) -> None:
    source = random.Random(seed)
    given = [draw_message(source, most) for _ in range(size)]
    started = [
        start(rank, size, Exchange(SIGNED, given[rank], list), has_each=False)
        for rank in range(size)
    ]
    for rank, received in enumerate(run(started)):
        check(received, rank, [read(one) for one in given])


@pytest.mark.parametrize("most", [256, 10_000])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_a_message_for_each_rank_comes_to_that_one(size: int, seed: int, most: int) -> None:
    source = random.Random(seed)
    given = [[draw_message(source, most) for _ in range(size)] for _ in range(size)]
    started = [
        start(rank, size, Exchange(SIGNED, given[rank], list), has_each=True)
        for rank in range(size)
    ]
    for rank, received in enumerate(run(started)):
        check(received, rank, [read(given[peer][rank]) for peer in range(size)])


@pytest.mark.parametrize("most", [256, 10_000])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("has_each", [False, True])
def test_what_a_root_sends_comes_to_all_others(root: int, has_each: bool, most: int) -> None:
    source = random.Random(root)
    each = [draw_message(source, most) for _ in range(3)]
    given: Any = each if has_each else each[0]
    started = [
        start(
            rank, 3, Exchange(SIGNED, given if rank == root else (), list, root), has_each=has_each
        )
        for rank in range(3)
    ]
    for rank, received in enumerate(run(started)):
        wanted = [b""] * 3
        wanted[root] = read(each[rank] if has_each else each[0])
        check(received, rank, wanted)


@pytest.mark.parametrize("times", [1, 5000])
def test_what_is_for_a_root_comes_there(times: int) -> None:
    root = 1
    given = [(b"%d" % rank * times,) for rank in range(3)]
    started = [
        start(
            rank,
            3,
            Exchange(SIGNED, {root: given[rank]}, list, root, to_root=True),
            has_each=False,
        )
        for rank in range(3)
    ]
    found = run(started)
    check(found[root], root, [b"0" * times, b"", b"2" * times])
    for rank in (0, 2):
        check(found[rank], rank, [b""] * 3)


@pytest.mark.parametrize(
    ("sizes", "second"),
    [
        ((5, 2048 - 8, 0, 5), []),
        ((5, 2048 - 7, 0, 5), ["all_to_all"]),
        ((2048 - 7,) * 4, ["all_gather_into_tensor"]),
    ],
)
def test_where_a_message_is_too_large_a_second_step_moves_all(
    sizes: Sequence[int], second: list[str]
) -> None:
    given = [(bytes([number + 1]) * nbytes,) for number, nbytes in enumerate(sizes)]
    started = [
        start(rank, 4, Exchange(SIGNED, given[rank], list), has_each=False) for rank in range(4)
    ]
    kinds: list[str] = []
    for rank, received in enumerate(run(started, kinds)):
        check(received, rank, [one for [one] in given])
    assert kinds == ["all_gather_into_tensor", *second]


def test_messages_of_one_size_come_where_arrays_may_lie() -> None:
    given = [(bytes(5001),)] * 3
    started = [
        start(rank, 3, Exchange(SIGNED, given[rank], list), has_each=False) for rank in range(3)
    ]
    for rank, received in enumerate(run(started)):
        assert isinstance(received, list)
        places = [one.ctypes.data % 16 for one in received if one is not None]
        assert places == [0, 0], rank


@pytest.mark.parametrize(("size", "has_each"), [(129, False), (17, True)])
def test_large_groups_have_no_such_step(size: int, has_each: bool) -> None:
    messages: Any = [(b"",)] * size if has_each else (b"",)
    assert run([start(0, size, Exchange(SIGNED, messages, list), has_each=has_each)]) == [None]


def test_arrays_of_any_dtype_travel() -> None:
    given = [np.array(["2026-11-29"], "datetime64[D]"), np.ones((2, 3), np.complex64)]
    started = [
        start(rank, 2, Exchange(SIGNED, (given[rank],), list), has_each=False) for rank in range(2)
    ]
    for rank, received in enumerate(run(started)):
        check(received, rank, [one.tobytes() for one in given])


@pytest.mark.parametrize(
    "sizes",
    [[0, -1], [600, 0], [300, 300], [2**63 - 1, 2], [-1 - 600, 601], [-1 - 6001, 1], [-1, -1]],
)
def test_sizes_that_cannot_be_are_refused(sizes: list[int]) -> None:
    """Those of messages that are in the block, and of such as do not fit."""
    exchange = Exchange(SIGNED, [(b"",), (b"",)], list, most=6000 - 1)
    started = start(0, 2, exchange, has_each=True)
    request = next(started).request
    whole = request.targets[0]
    whole[...] = 0
    whole[request.count : request.count + 16] = np.array(sizes, np.int64).view(np.uint8)
    with pytest.raises(ValueError, match="a peer announced messages of"):
        next(started)
