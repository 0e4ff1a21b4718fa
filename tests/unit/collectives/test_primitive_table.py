"""The rows of the table of primitives against real calls: requests, schedules, results."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from allhands.collectives import hierarchical_plan, plan
from allhands.collectives.arguments import get_span
from allhands.collectives.composite_call import Step, StepBuilder
from allhands.collectives.primitive import Collectives
from allhands.collectives.primitive_table import PRIMITIVES, Operand, Primitive
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.schedule import Area, Schedule
from allhands.group.coalescing import coalesce
from allhands.membership.fake import engine as fake_engine
from allhands.testing.inproc_world import inproc_world, wait_results
from support.arrays import collective_cases
from support.arrays.collective_cases import Array, case

LENGTH = 5
SIZE = 3
ROOT = 1
MERGED = {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"}

each_row = pytest.mark.parametrize("row", PRIMITIVES.values(), ids=PRIMITIVES)


def start(name: str, rank: int, size: int, length: int = LENGTH, root: int = ROOT) -> Step:
    """Make one rank's call, but do not run the call."""
    builder = StepBuilder("group", rank, size, deterministic=False, link_cost=None)
    step: Step = case(name, rank, size, length, root=root).run(builder)
    return step


def requests(name: str) -> list[CollectiveRequest]:
    return [start(name, rank, SIZE).request for rank in range(SIZE)]


def largest(sides: list[list[Array]]) -> Operand:
    """Classify one side of a call by the rank with the most data."""
    count = max(sum(array.size for array in arrays) for arrays in sides)
    return {0: Operand.NONE, LENGTH: Operand.ARRAY}.get(count, Operand.BLOCKS)


def test_there_is_a_row_for_every_primitive() -> None:
    primitives = {name for name in vars(Collectives) if not name.startswith("_")}
    assert set(PRIMITIVES) == primitives - {"name", "rank", "size"}
    assert set(PRIMITIVES) == set(collective_cases.EVERY)


@each_row
def test_arguments_are_what_the_row_says(row: Primitive) -> None:
    made = requests(row.name)
    assert {one.kind for one in made} == {row.name}
    assert {one.op is not None for one in made} == {row.reduces}
    assert {one.root for one in made} == {ROOT if row.is_rooted else -1}
    assert {one.send is not None for one in made} == {row.has_splits}
    assert largest([list(one.sources) for one in made]) is row.inputs
    assert largest([list(one.targets) for one in made]) is row.outputs


@each_row
def test_a_call_that_scales_with_the_group_has_a_count_of_elements_for_each_rank(
    row: Primitive,
) -> None:
    counted = {one.count for one in requests(row.name)}
    if row.scales_with_size:
        assert row.has_blocks
        assert counted == {LENGTH}
    elif row.has_blocks:
        assert counted == {0}


@each_row
def test_arguments_of_a_repeatable_call_do_not_depend_on_the_group(row: Primitive) -> None:
    few, many = start(row.name, 0, 2).request, start(row.name, 0, 3).request

    def sizes(request: CollectiveRequest) -> list[int]:
        return [array.size for array in (*request.sources, *request.targets)]

    assert row.is_repeatable == (few.root < 0 and sizes(few) == sizes(many))


@each_row
def test_links_carry_out_the_algorithm_of_the_row(
    row: Primitive, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    for name in {other.algorithm for other in PRIMITIVES.values()}:
        monkeypatch.setattr(plan, name, lambda *_, name=name, **__: called.append(name))
    start(row.name, 0, SIZE).build(0, SIZE)
    assert called == [row.algorithm]


@each_row
def test_a_request_alone_gives_the_parts_of_its_call(row: Primitive) -> None:
    for rank in range(SIZE):
        step = start(row.name, rank, SIZE)
        parts = plan.build_parts(step.request, rank, SIZE)
        assert [(one.name, one.schedule) for one in parts] == [
            (one.name, one.schedule) for one in step.build(rank, SIZE)
        ]
        for one, other in zip(parts, step.build(rank, SIZE), strict=True):
            for buffer, twin in ((one.input, other.input), (one.output, other.output)):
                assert list(map(get_span, buffer.arrays)) == list(map(get_span, twin.arrays))


def test_phases_are_planned_for_algorithms_of_the_table() -> None:
    assert set(hierarchical_plan._PLANNERS) <= {row.algorithm for row in PRIMITIVES.values()}


def writes_before_receiving(schedule: Schedule) -> bool:
    """Say whether a rank writes an output when no message has come yet."""
    for one in schedule.rounds:
        targets = [copy.target for copy in one.copies] + [fold.target for fold in one.folds]
        if any(target.area is Area.OUTPUT and len(target) for target in targets):
            return True
        if one.recvs:
            return False
    return False


@each_row
def test_two_ranks_receive_before_they_write_where_the_row_says_so(row: Primitive) -> None:
    schedules = [
        part.schedule
        for length in (LENGTH, 1 << 18)
        for rank in (0, 1)
        for root in (0, 1)
        for part in start(row.name, rank, 2, length, root).build(rank, 2)
    ]
    receives_first = not any(map(writes_before_receiving, schedules))
    assert row.pair_receives_first == (row.has_data and receives_first)


@each_row
async def test_results_are_the_same_on_all_ranks_where_the_row_says_so(row: Primitive) -> None:
    async with inproc_world(SIZE) as world:
        cases = [case(row.name, rank, SIZE, LENGTH, root=ROOT) for rank in range(SIZE)]
        await wait_results([one.run(group) for one, group in zip(cases, world.groups, strict=True)])
    assert [one.wrong() for one in cases] == [""] * SIZE
    results = {b"".join(array.tobytes() for array in one.written) for one in cases}
    assert row.has_same_result == (len(results) == 1 and results != {b""})


@each_row
async def test_two_calls_of_a_block_become_one_where_they_can(row: Primitive) -> None:
    cases, works = [], []
    async with inproc_world(SIZE) as world:
        for rank, group in enumerate(world.groups):
            collected = coalesce(group, threading.get_ident())
            for seed in (0, 1):
                one = case(row.name, rank, SIZE, LENGTH, root=ROOT, seed=seed)
                one.run(collected.redirect())
                cases.append(one)
            collected.end()
            works += collected.submit_all()
        await wait_results(works)
        numbers = {group.sequence for group in world.groups}
    assert [one.wrong() for one in cases] == [""] * 2 * SIZE
    assert row.is_mergeable == (row.name in MERGED)
    assert numbers == {1 if row.name in MERGED else 2}


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let all ranks bring the same."""
    values = collective_cases.values
    monkeypatch.setattr(
        collective_cases,
        "values",
        lambda rank, length, dtype, seed=0: values(0, length, dtype, seed),
    )


@pytest.mark.parametrize(
    "name", sorted(set(PRIMITIVES) - {"all_to_all"})
)  # of odd lengths: made up
@pytest.mark.usefixtures("alike")
def test_a_fake_group_gives_what_equal_ranks_would(name: str) -> None:
    row = PRIMITIVES[name]
    for rank in range(SIZE):
        one = case(row.name, rank, SIZE, LENGTH, np.int64, root=ROOT)
        before = [array.copy() for array in one.written]
        step: Step = one.run(StepBuilder("group", rank, SIZE, False, None))
        fake_engine._write_targets(step.request, rank, SIZE)
        if row.is_rooted and row.inputs is Operand.BLOCKS and rank != ROOT:
            assert [array.tobytes() for array in one.written] == [x.tobytes() for x in before]
        else:
            assert one.wrong() == ""
