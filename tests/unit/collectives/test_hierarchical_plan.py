"""Calls cut into phases, played in any allowed order, against NumPy."""

import random
from collections import deque
from collections.abc import Sequence
from functools import reduce as fold
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.hierarchical_plan import (
    PIPELINE_DEPTH,
    HostLayout,
    Phase,
    SliceScratch,
    describe_phases,
    group_by_host,
    overlaps_phases,
    plan_phases,
)
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest

Array = NDArray[np.int64]

pytestmark = pytest.mark.usefixtures("miniature")

LENGTHS = (0, 1, 5, 8, 60, 151)
"""In a miniature world 151 elements are more slices than may be under way."""
SHAPES = [
    *(tuple([ranks] * hosts) for hosts, ranks in product((1, 2, 3, 4), (1, 2, 3, 4))),
    *((1, 2), (2, 1), (3, 1, 2), (1, 4), (2, 1, 1, 3)),
]
EVEN = [shape for shape in SHAPES if len(set(shape)) == 1]


def laid_out(shape: Sequence[int], order: str = "by host") -> list[HostLayout]:
    """Give the layout of every rank on hosts of so many ranks."""
    hosts = [f"host {host}" for host, ranks in enumerate(shape) for _ in range(ranks)]
    if order == "mixed":
        random.Random(7).shuffle(hosts)
    return [HostLayout(group_by_host(hosts), rank) for rank in range(len(hosts))]


class Player:
    """The remaining phases of one rank."""

    def __init__(self, made: Sequence[Phase], overlaps: bool = True) -> None:
        self.overlaps = overlaps
        self.phases = {phase.number: phase for phase in made}
        self.within = deque(phase.number for phase in made if phase.is_local)
        assert len(self.phases) == len(made)

    def ready(self) -> list[Phase]:
        """Return the phases ready to begin; phases on a rank's host run in sequence, or all do."""
        if not self.overlaps:
            return list(self.phases.values())[:1]
        first = [self.phases[number] for number in list(self.within)[:1]]
        across = [phase for phase in self.phases.values() if not phase.is_local]
        return [
            phase
            for phase in (*first, *across)
            if all(number not in self.phases for number in phase.depends_on)
        ]

    def end(self, number: int) -> None:
        if self.phases.pop(number).is_local:
            assert self.within.popleft() == number


def play(
    layouts: Sequence[HostLayout],
    natives: Sequence[CollectiveRequest],
    seed: int = 0,
    overlaps: bool = True,
) -> int:
    """Run a call's phases in arbitrary order; return the number of phases."""
    players = [
        Player(plan_phases(layout, native, SliceScratch(), overlaps=overlaps), overlaps)
        for layout, native in zip(layouts, natives, strict=True)
    ]
    chance = random.Random(seed)
    count = 0
    while any(player.phases for player in players):
        ready = [group for group in meetings(players) if len(group) == len(group[0].ranks)]
        assert ready, "no phase can begin: the ranks wait for each other"
        for group in chance.sample(ready, chance.randint(1, len(ready))):
            perform([phase.request for phase in group])
            finish(players, group)
            count += 1
    return count


def meetings(players: Sequence[Player]) -> list[list[Phase]]:
    """Return the ready phases of ranks, by phase and by place."""
    met: dict[tuple[int, tuple[int, ...]], dict[int, Phase]] = {}
    for rank, player in enumerate(players):
        for phase in player.ready():
            met.setdefault((phase.number, phase.ranks), {})[phase.ranks.index(rank)] = phase
    return [[found[place] for place in sorted(found)] for found in met.values()]


def finish(players: Sequence[Player], group: Sequence[Phase]) -> None:
    for rank in group[0].ranks:
        players[rank].end(group[0].number)


def perform(calls: Sequence[CollectiveRequest]) -> None:
    """Compute a collective from the requests of all ranks."""
    first = calls[0]
    for call in calls:
        assert (call.kind, call.dtype, call.count, call.op, call.root) == (
            first.kind,
            first.dtype,
            first.count,
            first.op,
            first.root,
        )
        for array in (*call.sources, *call.targets):
            assert len(array) == first.count
    match first.kind:
        case "all_reduce":
            whole = fold(np.add, [call.targets[0] for call in calls])
            for call in calls:
                call.targets[0][:] = whole
        case "reduce":
            calls[first.root].targets[0][:] = fold(np.add, [call.sources[0] for call in calls])
            assert [len(call.targets) for call in calls] == [
                int(rank == first.root) for rank in range(len(calls))
            ]
        case "broadcast":
            for call in calls:
                call.targets[0][:] = calls[first.root].targets[0]
        case "all_gather":
            for call in calls:
                for target, other in zip(call.targets, calls, strict=True):
                    target[:] = other.sources[0]
        case "reduce_scatter":
            for rank, call in enumerate(calls):
                call.targets[0][:] = fold(np.add, [other.sources[rank] for other in calls])
        case _:
            assert first.kind == "barrier"


def drawn(size: int, length: int) -> list[Array]:
    return list(np.random.default_rng(length).integers(0, 100, (size, length)))


INT = np.dtype(np.int64)
of_all_shapes = pytest.mark.parametrize("shape", SHAPES)
of_even_shapes = pytest.mark.parametrize("shape", EVEN)
in_any_order = pytest.mark.parametrize("order", ["by host", "mixed"])
side_by_side_or_not = pytest.mark.parametrize("overlaps", [True, False])


def is_layered(shape: Sequence[int]) -> bool:
    return len(shape) > 1 and max(shape) > 1


@side_by_side_or_not
@in_any_order
@of_all_shapes
def test_all_reduce_leaves_the_sum_everywhere(
    shape: Sequence[int], order: str, overlaps: bool
) -> None:
    layouts = laid_out(shape, order)
    for length in LENGTHS:
        xs = drawn(len(layouts), length)
        wanted = fold(np.add, xs)
        calls = [
            CollectiveRequest("all_reduce", INT, length, targets=[x], op=ReduceOp.SUM) for x in xs
        ]
        took = play(layouts, calls, length, overlaps)
        assert bool(took) == is_layered(shape)
        if took:
            np.testing.assert_array_equal(xs, [wanted] * len(xs))


@side_by_side_or_not
@in_any_order
@of_all_shapes
def test_broadcast_gives_the_array_of_any_root(
    shape: Sequence[int], order: str, overlaps: bool
) -> None:
    layouts = laid_out(shape, order)
    for length, root in product((0, 5, 151), range(len(layouts))):
        xs = drawn(len(layouts), length)
        wanted = xs[root].copy()
        calls = [CollectiveRequest("broadcast", INT, length, targets=[x], root=root) for x in xs]
        if play(layouts, calls, length + root, overlaps):
            np.testing.assert_array_equal(xs, [wanted] * len(xs))


@side_by_side_or_not
@in_any_order
@of_all_shapes
def test_reduce_writes_any_root_alone(shape: Sequence[int], order: str, overlaps: bool) -> None:
    layouts = laid_out(shape, order)
    for length, root in product((0, 5, 151), range(len(layouts))):
        xs = drawn(len(layouts), length)
        wanted = [x.copy() for x in xs]
        wanted[root] = fold(np.add, xs)
        calls = [
            CollectiveRequest(
                "reduce", INT, length, [x], [x] if rank == root else [], ReduceOp.SUM, root
            )
            for rank, x in enumerate(xs)
        ]
        if play(layouts, calls, length + root, overlaps):
            np.testing.assert_array_equal(xs, wanted)


@pytest.mark.parametrize("as_list", [False, True])
@side_by_side_or_not
@in_any_order
@of_even_shapes
def test_all_gather_fills_every_place(
    shape: Sequence[int], order: str, overlaps: bool, as_list: bool
) -> None:
    layouts = laid_out(shape, order)
    size = len(layouts)
    for length in LENGTHS:
        xs = drawn(size, length)
        outs = [np.zeros(size * length, INT) for _ in xs]
        kind = "all_gather" if as_list else "all_gather_into_tensor"
        calls = [
            CollectiveRequest(kind, INT, length, [x], np.split(out, size) if as_list else [out])
            for x, out in zip(xs, outs, strict=True)
        ]
        if play(layouts, calls, length, overlaps):
            np.testing.assert_array_equal(outs, [np.concatenate(xs)] * size)


@side_by_side_or_not
@in_any_order
@of_even_shapes
def test_reduce_scatter_gives_each_rank_its_share(
    shape: Sequence[int], order: str, overlaps: bool
) -> None:
    layouts = laid_out(shape, order)
    size = len(layouts)
    for length in LENGTHS:
        xs = drawn(size, size * length)
        before = [x.copy() for x in xs]
        outs = [np.zeros(length, INT) for _ in xs]
        calls = [
            CollectiveRequest("reduce_scatter", INT, length, np.split(x, size), [out], ReduceOp.SUM)
            for x, out in zip(xs, outs, strict=True)
        ]
        if play(layouts, calls, length, overlaps):
            np.testing.assert_array_equal(np.concatenate(outs), fold(np.add, before))
            np.testing.assert_array_equal(xs, before)


@of_all_shapes
def test_a_barrier_lets_nobody_go_before_all_have_come(shape: Sequence[int]) -> None:
    layouts = laid_out(shape)
    for late in range(len(layouts)):
        players = [
            Player(plan_phases(layout, CollectiveRequest("barrier"), SliceScratch()))
            for layout in layouts
        ]
        is_held = [bool(player.phases) for player in players]
        # Everybody goes as far as it can without one rank.
        while ready := [
            group
            for group in meetings(players)
            if len(group) == len(group[0].ranks) and late not in group[0].ranks
        ]:
            finish(players, ready[0])
        assert [bool(player.phases) for player in players] == is_held
        assert all(is_held) == is_layered(shape)


@of_all_shapes
def test_what_layers_do_not_help_goes_over_links(shape: Sequence[int]) -> None:
    x = np.zeros(12, INT)
    for layout in laid_out(shape):
        for kind in ("gather", "scatter", "all_to_all", "all_to_all_single"):
            assert (
                plan_phases(layout, CollectiveRequest(kind, INT, 12, [x], [x]), SliceScratch())
                == []
            )
        if not layout.is_even:
            blocks = np.split(np.zeros(12 * sum(shape), INT), sum(shape))
            assert (
                plan_phases(
                    layout, CollectiveRequest("all_gather", INT, 12, [x], blocks), SliceScratch()
                )
                == []
            )
            assert (
                plan_phases(
                    layout,
                    CollectiveRequest("reduce_scatter", INT, 12, blocks, [x]),
                    SliceScratch(),
                )
                == []
            )


def test_what_is_small_goes_over_links_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allhands.collectives.hierarchical_plan.FLAT_BYTES", 8 * 24)
    layout = laid_out((2, 2))[0]

    def is_flat(kind: str, count: int, blocks: int = 1) -> bool:
        arrays = [np.zeros(count, INT) for _ in range(blocks)]
        inputs, outputs = ([arrays[0]], arrays) if kind == "all_gather" else (arrays, [arrays[0]])
        return not plan_phases(
            layout,
            CollectiveRequest(kind, INT, count, inputs, outputs, ReduceOp.SUM, 0),
            SliceScratch(),
        )

    for kind in ("all_reduce", "reduce", "broadcast"):
        assert (is_flat(kind, 24), is_flat(kind, 25)) == (True, False)
    for kind in ("all_gather", "reduce_scatter"):
        assert (is_flat(kind, 6, 4), is_flat(kind, 7, 4)) == (True, False)
    assert not plan_phases(layout, CollectiveRequest("barrier"), SliceScratch())


def test_an_average_is_a_sum_until_the_end() -> None:
    x = np.zeros(60)
    calls = [
        phase.request.op
        for layout in laid_out((2, 2))
        for phase in plan_phases(
            layout,
            CollectiveRequest("all_reduce", x.dtype, 60, (), [x], ReduceOp.AVG),
            SliceScratch(),
        )
    ]
    assert set(calls) == {ReduceOp.SUM, None}


def test_ranks_that_name_no_host_are_alone() -> None:
    assert group_by_host(["b", "a", "", "b", ""]) == ((0, 3), (1,), (2,), (4,))


def test_scratch_memory_neither_grows_with_the_array_nor_from_call_to_call() -> None:
    layout = laid_out((2, 2))[0]
    given: list[int] = []

    def allocate(nbytes: int) -> bytearray:
        given.append(nbytes)
        return bytearray(nbytes)

    scratch = SliceScratch(allocate)
    for length in (6000, 1200, 6000):
        x = np.zeros(length, INT)
        plan_phases(
            layout, CollectiveRequest("all_reduce", INT, length, (), [x], ReduceOp.SUM), scratch
        )
    assert given == [240 // 2] * PIPELINE_DEPTH


def test_phases_overlap_only_where_a_rank_has_two_processors() -> None:
    assert overlaps_phases(None)
    assert overlaps_phases(LinkCost(1e-4, 1e9, 2.0))
    assert not overlaps_phases(LinkCost(1e-4, 1e9, 1.5))
    x = np.zeros(151, INT)
    call = CollectiveRequest("all_reduce", INT, 151, (), [x], ReduceOp.SUM)
    layout = laid_out((2, 2))[0]
    whole = plan_phases(layout, call, SliceScratch(), overlaps=False)
    assert len(whole) < len(plan_phases(layout, call, SliceScratch(), overlaps=True))


def test_the_explanation_names_hosts_and_phases() -> None:
    x = np.zeros(60, INT)
    call = CollectiveRequest("all_reduce", INT, 60, (), [x], ReduceOp.SUM)
    even, uneven = laid_out((2, 2))[0], laid_out((3, 1))[0]
    assert describe_phases(even, plan_phases(even, call, SliceScratch()), in_memory=True) == (
        "2 hosts of 2 ranks: reduce_scatter in shared memory, all_reduce across hosts, "
        "all_gather in shared memory"
    )
    assert describe_phases(
        uneven, plan_phases(uneven, call, SliceScratch()), in_memory=False
    ).startswith("2 hosts of 3/1 ranks: reduce over links of the host, all_reduce across hosts")
