"""Every algorithm, played through for every group size before any socket exists."""

import math
from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import accumulate, cycle, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from allhands.collectives.algorithms import (
    bruck,
    dissemination,
    doubling,
    flat,
    halving,
    ordered,
    pairwise,
    ring,
    select,
    tree,
    van_de_geijn,
)
from allhands.collectives.algorithms.blocks import split_evenly
from allhands.collectives.message_pieces import cut_messages
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Send, Span
from allhands.collectives.split_rounds import split_rounds
from allhands.testing import Traffic, interleave, simulate

SIZES = range(1, 18)
LENGTHS = (0, 1, 2, 7, 13, 64, 257)
POISON = -(2**62)

DATA = np.random.default_rng(20).integers(-(2**40), 2**40, (17, 4400))
"""One row a rank: what it contributes."""
DATA.flags.writeable = False

Array = NDArray[Any]


def cut(algorithm: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return an algorithm of which each message goes in three parts, each in a round of its own."""
    return lambda *arguments: split_rounds(algorithm(*arguments), 3)


def piece(algorithm: Callable[..., Schedule]) -> Callable[..., Schedule]:
    """Return an algorithm of which each message goes in pieces of five elements."""
    return lambda *arguments: cut_messages(algorithm(*arguments), 5, 4096)


def list_algorithms(name: str, **algorithms: Callable[..., Schedule]) -> pytest.MarkDecorator:
    """Return the parametrization by algorithms, each as it is, `cut` and in pieces."""
    as_they_are = [pytest.param(one, id=key) for key, one in algorithms.items()]
    in_parts = [pytest.param(cut(one), id=f"{key}_cut") for key, one in algorithms.items()]
    in_pieces = [pytest.param(piece(one), id=f"{key}_pieces") for key, one in algorithms.items()]
    return pytest.mark.parametrize(name, as_they_are + in_parts + in_pieces)


each_size = pytest.mark.parametrize("size", SIZES)
each_all_reduce = list_algorithms(
    "all_reduce",
    ring=ring.all_reduce,
    doubling=doubling.all_reduce,
    halving=halving.all_reduce,
    ordered=ordered.all_reduce,
    gathered=ordered.all_reduce_gathered,
)
each_broadcast = list_algorithms(
    "broadcast", tree=tree.broadcast, van_de_geijn=van_de_geijn.broadcast
)
each_reduce = list_algorithms("reduce", tree=tree.reduce, ordered=ordered.reduce)
each_all_gather = list_algorithms("all_gather", ring=ring.all_gather, bruck=bruck.all_gather)
each_reduce_scatter = list_algorithms(
    "reduce_scatter",
    ring=ring.reduce_scatter,
    pairwise=pairwise.reduce_scatter,
    ordered=ordered.reduce_scatter,
)


def of_all(algorithm: Callable[..., Schedule], size: int, *args: Any) -> list[Schedule]:
    return [algorithm(rank, size, *args) for rank in range(size)]


def undefined(lengths: Sequence[int]) -> list[Array]:
    return [np.full(length, POISON) for length in lengths]


def log2(size: int) -> int:
    return math.ceil(math.log2(size))


def roots_and_lengths(size: int) -> list[tuple[int, int]]:
    """Every pair in small groups; in larger ones every root and every length, to save time."""
    if size <= 9:
        return list(product(range(size), LENGTHS))
    return list(zip(range(size), cycle(LENGTHS), strict=False))


def sharings(size: int) -> list[list[int]]:
    """Block sizes by rank: none, even, uneven with none for some, all to one rank."""
    even = [[count] * size for count in (0, 1, 13)]
    ragged = [(7 * rank * rank) % 11 if rank % 3 else 0 for rank in range(size)]
    hoard = [0] * size
    hoard[size // 2] = 257
    return [*even, ragged, hoard]


# -------------------------------------------------------------------- all_reduce


@each_size
@each_all_reduce
def test_all_reduce_leaves_the_sum_everywhere(
    all_reduce: Callable[..., Schedule], size: int
) -> None:
    for length in LENGTHS:
        outputs = list(DATA[:size, :length].copy())
        simulate(of_all(all_reduce, size, length), outputs=outputs)
        np.testing.assert_array_equal(outputs, [DATA[:size, :length].sum(axis=0)] * size)


@each_size
@each_all_reduce
def test_all_reduce_leaves_the_same_bits_everywhere(
    all_reduce: Callable[..., Schedule], size: int
) -> None:
    def order_matters(lower: Array, higher: Array) -> Array:
        return lower * np.float32(1.1) + higher

    for length in (1, 7, 64):
        outputs = list((DATA[:size, :length] / 3.0).astype(np.float32))
        simulate(of_all(all_reduce, size, length), outputs=outputs, reduce=order_matters)
        assert len({output.tobytes() for output in outputs}) == 1


@each_size
def test_ring_all_reduce_sends_the_least_possible(size: int) -> None:
    length = 5 * size
    traffic = cost_of_all_reduce(ring.all_reduce, size, length)
    assert traffic.elements == (2 * length * (size - 1) // size,) * size
    assert traffic.rounds == 2 * (size - 1)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_halving_all_reduce_sends_the_least_possible(size: int) -> None:
    length = 5 * size
    traffic = cost_of_all_reduce(halving.all_reduce, size, length)
    assert traffic.elements == (2 * length * (size - 1) // size,) * size
    assert traffic.rounds == 2 * log2(size)


@each_size
def test_doubling_all_reduce_takes_logarithmically_many_rounds(size: int) -> None:
    is_power = size & (size - 1) == 0
    traffic = cost_of_all_reduce(doubling.all_reduce, size, 3)
    assert traffic.rounds == int(math.log2(size)) + (0 if is_power else 2)


def cost_of_all_reduce(algorithm: Callable[..., Schedule], size: int, length: int) -> Traffic:
    return simulate(of_all(algorithm, size, length), outputs=list(DATA[:size, :length].copy()))


# -------------------------------------------------------------------- broadcast, reduce


@each_size
@each_broadcast
def test_broadcast_leaves_what_the_root_had_everywhere(
    broadcast: Callable[..., Schedule], size: int
) -> None:
    for root, length in roots_and_lengths(size):
        outputs = list(DATA[:size, :length].copy())
        simulate(of_all(broadcast, size, length, root), outputs=outputs)
        np.testing.assert_array_equal(outputs, [DATA[root, :length]] * size)


@each_size
def test_tree_broadcast_takes_logarithmically_many_rounds(size: int) -> None:
    traffic = simulate(of_all(tree.broadcast, size, 3, 0), outputs=list(DATA[:size, :3].copy()))
    assert traffic.rounds == log2(size)
    assert sum(traffic.messages) == size - 1


@each_size
def test_van_de_geijn_broadcast_sends_nowhere_more_than_twice_the_array(size: int) -> None:
    length = 4 * size
    outputs = list(DATA[:size, :length].copy())
    traffic = simulate(of_all(van_de_geijn.broadcast, size, length, 0), outputs=outputs)
    assert max(traffic.elements) <= 2 * length


@each_size
@each_reduce
def test_reduce_leaves_the_sum_at_the_root_and_other_outputs_alone(
    reduce: Callable[..., Schedule], size: int
) -> None:
    for root, length in roots_and_lengths(size):
        outputs = undefined([length] * size)
        inputs = list(DATA[:size, :length])
        simulate(of_all(reduce, size, length, root), inputs=inputs, outputs=outputs)
        expected = np.full((size, length), POISON)
        expected[root] = DATA[:size, :length].sum(axis=0)
        np.testing.assert_array_equal(outputs, expected)


@each_size
def test_ordered_reductions_fold_from_the_left_in_the_order_of_ranks(size: int) -> None:
    def halves_the_left(left: Array, right: Array) -> Array:
        return left / 2 + right  # neither associative nor commutative

    data = DATA[:size, :13].astype(float)
    expected = fold(halves_the_left, data)
    for all_reduce in (ordered.all_reduce, ordered.all_reduce_gathered):
        whole = list(data.copy())
        simulate(of_all(all_reduce, size, 13), outputs=whole, reduce=halves_the_left)
        np.testing.assert_array_equal(whole, [expected] * size)
    outputs = [np.zeros(13 if rank == size - 1 else 0) for rank in range(size)]
    schedules = of_all(ordered.reduce, size, 13, size - 1)
    simulate(schedules, inputs=list(data), outputs=outputs, reduce=halves_the_left)
    np.testing.assert_array_equal(outputs[-1], expected)
    counts = split_evenly(13, size)
    blocks = [np.zeros(count) for count in counts]
    schedules = of_all(ordered.reduce_scatter, size, counts)
    simulate(schedules, inputs=list(data), outputs=blocks, reduce=halves_the_left)
    np.testing.assert_array_equal(np.concatenate(blocks), expected)


def test_a_leaf_of_reduce_needs_no_scratch() -> None:
    scratch = [schedule.scratch for schedule in of_all(tree.reduce, 7, 10, 0)]
    assert scratch == [0, 0, 10, 0, 10, 0, 0]


# -------------------------------------------------------------------- blocks


@each_size
@each_all_gather
def test_all_gather_leaves_all_blocks_everywhere(
    all_gather: Callable[..., Schedule], size: int
) -> None:
    for counts in sharings(size):
        check_all_gather(all_gather, counts)


def check_all_gather(all_gather: Callable[..., Schedule], counts: list[int]) -> Traffic:
    size = len(counts)
    inputs = [DATA[rank, :count] for rank, count in enumerate(counts)]
    outputs = undefined([sum(counts)] * size)
    traffic = simulate(of_all(all_gather, size, counts), inputs=inputs, outputs=outputs)
    np.testing.assert_array_equal(outputs, [np.concatenate(inputs)] * size)
    return traffic


@each_size
def test_bruck_all_gather_takes_logarithmically_many_rounds(size: int) -> None:
    assert check_all_gather(bruck.all_gather, [1] * size).rounds == log2(size)


@each_size
@each_all_gather
def test_all_gather_sends_every_block_but_one(
    all_gather: Callable[..., Schedule], size: int
) -> None:
    assert check_all_gather(all_gather, [3] * size).elements == (3 * (size - 1),) * size


@each_size
@each_reduce_scatter
def test_reduce_scatter_leaves_each_its_block_of_the_sum(
    reduce_scatter: Callable[..., Schedule], size: int
) -> None:
    for counts in sharings(size):
        check_reduce_scatter(reduce_scatter, counts)


def check_reduce_scatter(reduce_scatter: Callable[..., Schedule], counts: list[int]) -> None:
    size = len(counts)
    total = sum(counts)
    outputs = undefined(counts)
    simulate(
        of_all(reduce_scatter, size, counts), inputs=list(DATA[:size, :total]), outputs=outputs
    )
    np.testing.assert_array_equal(np.concatenate(outputs), DATA[:size, :total].sum(axis=0))


def test_ring_reduce_scatter_needs_two_blocks_of_scratch_at_most() -> None:
    needed = [ring.reduce_scatter(0, size, [4, 9, 2, 9][:size]).scratch for size in (1, 2, 3, 4)]
    assert needed == [0, 0, 9, 18]


@each_size
def test_gather_leaves_all_blocks_at_the_root(size: int) -> None:
    for root in range(size):
        for counts in sharings(size):
            inputs = [DATA[rank, :count] for rank, count in enumerate(counts)]
            outputs = undefined([sum(counts) if rank == root else 0 for rank in range(size)])
            simulate(of_all(flat.gather, size, counts, root), inputs=inputs, outputs=outputs)
            np.testing.assert_array_equal(outputs[root], np.concatenate(inputs))


@each_size
def test_scatter_leaves_each_its_block_of_the_roots(size: int) -> None:
    for root in range(size):
        for counts in sharings(size):
            total = sum(counts)
            inputs = [DATA[rank, : total if rank == root else 0] for rank in range(size)]
            outputs = undefined(counts)
            simulate(of_all(flat.scatter, size, counts, root), inputs=inputs, outputs=outputs)
            np.testing.assert_array_equal(np.concatenate(outputs), DATA[root, :total])


@each_size
@pytest.mark.parametrize("together", [True, False])
def test_all_to_all_exchanges_every_block(together: bool, size: int) -> None:
    for first in range(5):
        counts = np.array([sharings(size)[(first + rank) % 5] for rank in range(size)])
        rounds = check_all_to_all(counts, together=together).rounds
        assert rounds == (min(1, size - 1) if together else size - 1)


def check_all_to_all(counts: Array, *, together: bool) -> Traffic:
    """Check an all_to_all; row r of `counts`: elements from rank r to each rank."""
    size = len(counts)
    schedules = [
        pairwise.all_to_all(
            rank, size, counts[rank].tolist(), counts[:, rank].tolist(), in_one_round=together
        )
        for rank in range(size)
    ]
    inputs = [DATA[rank, : counts[rank].sum()] for rank in range(size)]
    outputs = undefined(counts.sum(axis=0).tolist())
    traffic = simulate(schedules, inputs=inputs, outputs=outputs)
    blocks = [np.split(row, list(accumulate(counts[r]))[:-1]) for r, row in enumerate(inputs)]
    for rank, output in enumerate(outputs):
        np.testing.assert_array_equal(output, np.concatenate([row[rank] for row in blocks]))
    return traffic


# -------------------------------------------------------------------- barrier


@each_size
def test_after_a_barrier_each_rank_has_heard_of_all(size: int) -> None:
    schedules = of_all(dissemination.barrier, size)
    traffic = simulate(schedules, outputs=undefined([0] * size))
    assert traffic.rounds == log2(size)
    heard = [{rank} for rank in range(size)]
    for index in range(traffic.rounds):
        before = [set(ranks) for ranks in heard]
        for rank, schedule in enumerate(schedules):
            for recv in schedule.rounds[index].recvs:
                heard[rank] |= before[recv.peer]
    assert heard == [set(range(size))] * size


# -------------------------------------------------------------------- any counts, any pace

block_counts = st.lists(st.integers(0, 40), min_size=1, max_size=17)
quick = settings(max_examples=25, deadline=None)


@quick
@given(counts=block_counts)
def test_block_algorithms_take_any_counts(counts: list[int]) -> None:
    check_all_gather(ring.all_gather, counts)
    check_all_gather(bruck.all_gather, counts)
    check_reduce_scatter(ring.reduce_scatter, counts)
    check_reduce_scatter(pairwise.reduce_scatter, counts)


@quick
@given(data=st.data(), size=st.integers(1, 9), together=st.booleans())
def test_all_to_all_takes_any_counts(data: st.DataObject, size: int, together: bool) -> None:
    amount = st.integers(0, 20)
    rows = st.lists(amount, min_size=size, max_size=size)
    counts = data.draw(st.lists(rows, min_size=size, max_size=size))
    check_all_to_all(np.array(counts), together=together)


@quick
@given(seed=st.integers(0, 2**32), size=st.integers(1, 7), rendezvous=st.booleans(), data=st.data())
def test_no_pace_of_the_ranks_changes_a_result_or_blocks_it(
    seed: int, size: int, rendezvous: bool, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    counts = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    length = sum(counts)
    all_lengths, own = [length] * size, counts
    everything = list(DATA[:size, :length])
    blocks = [DATA[rank, :count] for rank, count in enumerate(counts)]
    in_place = [
        of_all(algorithm, size, length)
        for algorithm in (ring.all_reduce, doubling.all_reduce, halving.all_reduce)
    ] + [
        of_all(algorithm, size, length, root)
        for algorithm in (tree.broadcast, van_de_geijn.broadcast)
    ]
    for schedules in in_place:
        paced, lockstep = ([row.copy() for row in everything] for _ in range(2))
        interleave(schedules, outputs=paced, seed=seed, rendezvous=rendezvous)
        simulate(schedules, outputs=lockstep)
        np.testing.assert_array_equal(paced, lockstep)
    for schedules, inputs, lengths in (
        (of_all(tree.reduce, size, length, root), everything, all_lengths),
        (of_all(flat.gather, size, counts, root), blocks, all_lengths),
        (of_all(flat.scatter, size, counts, root), everything, own),
        (of_all(ring.all_gather, size, counts), blocks, all_lengths),
        (of_all(bruck.all_gather, size, counts), blocks, all_lengths),
        (of_all(ring.reduce_scatter, size, counts), everything, own),
        (of_all(pairwise.reduce_scatter, size, counts), everything, own),
    ):
        paced, lockstep = undefined(lengths), undefined(lengths)
        interleave(schedules, inputs=inputs, outputs=paced, seed=seed, rendezvous=rendezvous)
        simulate(schedules, inputs=inputs, outputs=lockstep)
        np.testing.assert_array_equal(np.concatenate(paced), np.concatenate(lockstep))


# -------------------------------------------------------------------- choice


def test_small_calls_take_few_rounds_and_large_ones_little_data() -> None:
    for size, doubled in (
        (2, select.PAIR_BYTES),
        (4, select.DOUBLING_BYTES // 2),
        (9, select.DOUBLING_BYTES // 4),
    ):
        assert select.select_all_reduce(size, doubled).name == "doubling"
        assert select.select_all_reduce(size, doubled + 1).name != "doubling"
    assert select.select_all_reduce(8, select.MEDIUM_BYTES).name == "halving_doubling"
    assert select.select_all_reduce(8, select.MEDIUM_BYTES + 1).name == "ring"
    assert select.select_all_reduce(9, select.MEDIUM_BYTES).name == "ring"  # no power of two
    assert select.select_broadcast(4, select.SMALL_BYTES + 1).name == "van_de_geijn"
    assert select.select_broadcast(2, select.SMALL_BYTES + 1).name == "tree"
    assert select.select_all_gather(4, select.SMALL_BYTES).name == "bruck"
    assert select.select_all_gather(4, select.SMALL_BYTES + 1).name == "ring"
    assert select.select_reduce_scatter(4, select.SMALL_BYTES).name == "pairwise"
    assert select.select_reduce_scatter(4, select.SMALL_BYTES + 1).name == "ring"


def test_all_to_all_goes_together_only_where_all_know_that_it_is_small() -> None:
    assert len(all_to_all_rounds(nbytes=select.SMALL_BYTES)) == 1
    assert len(all_to_all_rounds(nbytes=select.SMALL_BYTES + 1)) == 3
    assert len(all_to_all_rounds(nbytes=None)) == 3


def all_to_all_rounds(nbytes: int | None) -> Sequence[object]:
    rounds = select.select_all_to_all(4, nbytes).build(0, 4, [1] * 4, [1] * 4).rounds
    return [step for step in rounds if step.sends]


@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_every_choice_builds_what_its_operation_asks_for(nbytes: int) -> None:
    counts = [2, 0, 5]
    for rank in range(3):
        select.select_all_reduce(3, nbytes).build(rank, 3, 7)
        select.select_broadcast(3, nbytes).build(rank, 3, 7, 1)
        select.select_reduce(3, nbytes).build(rank, 3, 7, 1)
        select.select_all_gather(3, nbytes).build(rank, 3, counts)
        select.select_reduce_scatter(3, nbytes).build(rank, 3, counts)
        select.select_gather(3, nbytes).build(rank, 3, counts, 1)
        select.select_scatter(3, nbytes).build(rank, 3, counts, 1)
        select.select_all_to_all(3, nbytes).build(rank, 3, counts, [counts[rank]] * 3)
        select.select_barrier(3).build(rank, 3)


# ---------------------------------------------------------------- messages in pieces


def test_messages_are_cut_that_are_neither_short_nor_very_long() -> None:
    spans = [
        Span(Area.OUTPUT, start, start + length) for start, length in ((0, 5), (5, 12), (17, 41))
    ]
    whole = Schedule(
        (Round(sends=tuple(Send(1, one) for one in spans)),
         Round(recvs=tuple(Recv(2, one, reduces=True) for one in spans))),
        scratch=3,
    )  # fmt: skip
    first, second = (made := cut_messages(whole, 5, 40)).rounds
    pieces = [(0, 5), (5, 10), (10, 15), (15, 17), (17, 58)]
    assert first.sends == tuple(Send(1, Span(Area.OUTPUT, *one)) for one in pieces)
    assert second.recvs == tuple(Recv(2, Span(Area.OUTPUT, *one), True) for one in pieces)
    assert made.scratch == 3


def test_a_schedule_without_messages_to_cut_is_the_same_object() -> None:
    made = tree.broadcast(0, 2, 41, 0)
    assert cut_messages(made, 41, 100) is made
    assert cut_messages(made, 5, 40) is made
