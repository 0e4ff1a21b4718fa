"""Which calls over links are so small that they work on a copy, or go in short pieces."""

import numpy as np
import pytest

from allhands.collectives import plan
from allhands.collectives.request import CollectiveRequest
from allhands.engine.links.output_guard import (
    PACED_BYTES,
    StagingBuffer,
    goes_unasked,
    guard_outputs,
    is_paced,
    is_staged,
)

MIB = 1 << 20


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
