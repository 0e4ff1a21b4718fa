"""Which calls over links are so small that they work on a copy, or go in short pieces."""

import numpy as np
import pytest

from allhands.collectives import plan
from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.request import CollectiveRequest
from allhands.engine.links.output_guard import (
    LONG_PACED_BYTES,
    PACED_BYTES,
    StagingBuffer,
    goes_unasked,
    guard_outputs,
    is_paced,
    is_staged,
)

MIB = 1 << 20
FAST = LinkCost(0.0001, 1e9)


@pytest.mark.parametrize(
    ("kind", "size", "nbytes", "wanted"),
    [
        ("all_reduce", 4, MIB, True),
        ("all_reduce", 4, MIB + 8, False),
        ("all_gather", 4, MIB // 2, True),
        ("all_gather", 4, MIB // 2 + 8, False),
        ("gather", 4, MIB, True),
        ("gather", 4, MIB + 8, False),
        ("scatter", 2, MIB, True),
        ("scatter", 2, MIB + 8, False),
        ("gather", 8, MIB // 2, True),
        ("gather", 8, MIB // 2 + 8, False),
    ],
)
def test_up_to_a_size_calls_work_on_a_copy(kind: str, size: int, nbytes: int, wanted: bool) -> None:
    request = CollectiveRequest(kind, np.dtype(np.float64), nbytes // 8)
    assert is_staged(request, size) is wanted


@pytest.mark.parametrize(
    ("kind", "size", "nbytes", "wanted"),
    [
        ("all_reduce", 4, MIB, False),
        ("all_reduce", 4, MIB + 8, True),
        ("all_reduce", 2, PACED_BYTES, True),
        ("all_reduce", 2, PACED_BYTES + 8, False),
        ("all_gather", 4, MIB // 2, False),
        ("all_gather", 4, PACED_BYTES // 4, True),
        ("all_gather", 4, PACED_BYTES // 4 + 8, False),
        ("all_to_all", 2, 2 * MIB, False),
        ("barrier", 2, 0, False),
    ],
)
def test_larger_calls_go_in_pieces_up_to_a_size(
    kind: str, size: int, nbytes: int, wanted: bool
) -> None:
    request = CollectiveRequest(kind, np.dtype(np.float64), nbytes // 8)
    assert is_paced(request, size) is wanted
    assert goes_unasked(request, size) is (wanted or is_staged(request, size))


@pytest.mark.parametrize(
    ("size", "nbytes", "link_cost", "wanted"),
    [
        (2, LONG_PACED_BYTES, FAST, True),
        (2, LONG_PACED_BYTES + 8, FAST, False),
        (3, LONG_PACED_BYTES, FAST, False),
        (3, PACED_BYTES, FAST, True),
        (2, LONG_PACED_BYTES, None, False),
        (2, LONG_PACED_BYTES, LinkCost(0.01, 1e9), False),
        (2, LONG_PACED_BYTES, LinkCost(0.0001, 1e8), False),
    ],
)
def test_between_two_ranks_a_fast_link_takes_much_longer_calls_in_pieces(
    size: int, nbytes: int, link_cost: LinkCost | None, wanted: bool
) -> None:
    request = CollectiveRequest("all_reduce", np.dtype(np.float64), nbytes // 8)
    assert is_paced(request, size, link_cost) is wanted
    assert goes_unasked(request, size, link_cost) is wanted


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "broadcast"])
def test_pieces_are_as_long_as_may_go_unasked(kind: str, rank: int) -> None:
    x, y = np.zeros(16 * MIB // 8), np.zeros(8 * MIB // 8)
    build = {
        "all_reduce": lambda: plan.all_reduce(rank, 2, x, link_cost=FAST),
        "reduce_scatter": lambda: plan.reduce_scatter(rank, 2, [x], y),
        "broadcast": lambda: plan.broadcast(rank, 2, x, 0, FAST),
    }
    count = len(y) if kind == "reduce_scatter" else len(x)
    request = CollectiveRequest(kind, x.dtype, count, targets=[x], root=0)
    guard = guard_outputs(request, rank, 2, build[kind](), StagingBuffer(), FAST)
    [part] = guard.parts
    lengths = [len(one.span) * 8 for step in part.schedule.rounds for one in step.messages]
    assert max(lengths) == MIB
    assert min(one for one in lengths if one) >= MIB // 2


@pytest.mark.parametrize("size", [2, 3])
def test_in_pieces_nothing_is_staged_and_all_meet_first_where_no_message_says_so(size: int) -> None:
    x = np.zeros(2 * MIB // 8)
    request = CollectiveRequest("broadcast", x.dtype, len(x), targets=[x], root=0)
    parts = plan.broadcast(1, size, x, 0)
    guard = guard_outputs(request, 1, size, parts, staging := StagingBuffer())
    [part] = guard.parts
    assert part.output.arrays == [x]
    assert (guard.arrival_check, guard.commit, staging.memory.nbytes) == (None, None, 0)
    first = part.schedule.rounds[0]
    assert {len(one.span) for one in first.messages} == ({0} if size == 3 else {MIB // 8})
