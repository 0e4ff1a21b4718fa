"""Slices of a call as one part: the same result, in short messages, after all have met."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives import plan
from allhands.collectives.algorithms import bruck, ring
from allhands.collectives.buffer import Buffer
from allhands.collectives.paced_part import pace_parts
from allhands.collectives.part import Part
from allhands.collectives.schedule import Area, Schedule
from allhands.testing import simulate

LENGTH, PIECES = 3_000_000, 5

Array = NDArray[Any]


def gather_buffers(parts: list[Part]) -> tuple[list[Array], list[Array]]:
    """Return what each rank's part reads, and writes, end to end."""
    inputs = [np.concatenate([np.empty(0), *part.input.arrays]) for part in parts]
    return inputs, [np.concatenate([np.empty(0), *part.output.arrays]) for part in parts]


def pace(slices: list[list[Part]], *, meets_first: bool) -> list[Part]:
    size = len(slices)
    return [
        pace_parts(parts, PIECES, rank, size, meets_first=meets_first)
        for rank, parts in enumerate(slices)
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("meets_first", [True, False])
def test_slices_that_are_reduced_give_the_sum(size: int, meets_first: bool) -> None:
    values = [np.arange(LENGTH) * (rank + 1.0) for rank in range(size)]
    slices = [plan.all_reduce(rank, size, one.copy()) for rank, one in enumerate(values)]
    assert len(slices[0]) > 1
    paced = pace(slices, meets_first=meets_first)
    _, outputs = gather_buffers(paced)
    simulate([part.schedule for part in paced], outputs=outputs)
    for found in outputs:
        np.testing.assert_array_equal(found, np.arange(LENGTH) * (size * (size + 1) / 2))


@pytest.mark.parametrize("size", [2, 3])
def test_slices_of_blocks_are_read_and_written_where_they_lie(size: int) -> None:
    sources = [
        [np.arange(LENGTH // 8) + rank + place for place in range(size)] for rank in range(size)
    ]
    slices = [
        plan.reduce_scatter(rank, size, [one * 1.0 for one in blocks], np.zeros(LENGTH // 8))
        for rank, blocks in enumerate(sources)
    ]  # fmt: skip
    assert len(slices[0]) > 1
    paced = pace(slices, meets_first=True)
    inputs, outputs = gather_buffers(paced)
    simulate([part.schedule for part in paced], inputs=inputs, outputs=outputs)
    for rank, found in enumerate(outputs):
        np.testing.assert_array_equal(found, sum(blocks[rank] for blocks in sources))


def test_scratch_memory_is_that_of_the_largest_slice() -> None:
    slices = plan.reduce(2, 4, np.ones(LENGTH), None, 0)
    assert pace_parts(slices, PIECES, 2, 4, meets_first=False).schedule.scratch == max(
        part.schedule.scratch for part in slices
    )


def test_all_meet_before_an_output_is_written_and_no_message_is_long() -> None:
    slices = [plan.all_gather(rank, 4, np.ones(1000), [np.empty(4000)]) for rank in range(4)]
    for part in pace(slices, meets_first=True):
        before, after = part.schedule.rounds[:2], part.schedule.rounds[2:]
        assert all(len(one.span) == 0 for step in before for one in step.messages)
        assert not any(step.copies for step in before)
        assert any(one.target.area is Area.OUTPUT for step in after for one in step.copies)
        # In the second round of the algorithm there are two blocks in a message.
        assert {len(one.span) for step in after for one in step.messages} == {200, 400}


def test_parts_that_are_alike_have_one_schedule() -> None:
    """By which the native core knows what it has compiled."""
    first, second = (
        pace_parts(plan.broadcast(0, 2, np.ones(50), 0), PIECES, 0, 2, meets_first=False)
        for _ in range(2)
    )
    assert first.schedule is second.schedule


@pytest.mark.parametrize(
    ("build", "is_whole"), [(ring.all_gather, True), (bruck.all_gather, False)]
)
def test_a_span_of_several_arrays_is_found(build: Callable[..., Schedule], is_whole: bool) -> None:
    outputs = [np.empty(10) for _ in range(4)]
    schedule = build(1, 4, (10,) * 4)
    part = Part(
        schedule, Buffer([np.ones(10)], outputs[0].dtype), Buffer(outputs, outputs[0].dtype)
    )
    assert part.has_whole_spans is is_whole
    joined = Buffer([np.empty(40)], outputs[0].dtype)
    assert Part(schedule, part.input, joined).has_whole_spans
