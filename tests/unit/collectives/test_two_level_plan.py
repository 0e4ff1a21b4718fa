"""Two-level plans of small calls: when they are made, and what each rank does in them."""

import ml_dtypes
import numpy as np
import pytest

from allhands.collectives.hierarchical_plan import HostLayout, group_by_host
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.two_level_plan import (
    HEAD_BYTES,
    MESSAGE_BYTES,
    TWO_LEVEL_BYTES,
    TwoLevelPlan,
    is_two_level,
    plan_two_level,
)
from allhands.engine.links.output_guard import StagingBuffer


def lay_out(hosts: str, rank: int = 0) -> HostLayout:
    return HostLayout(group_by_host(list(hosts)), rank)


def all_reduce(
    nbytes: int, dtype: object = np.uint8, op: ReduceOp = ReduceOp.SUM
) -> CollectiveRequest:
    x = np.zeros(nbytes, np.uint8).view(np.dtype(dtype))  # type: ignore[call-overload]
    return CollectiveRequest("all_reduce", x.dtype, len(x), targets=[x], op=op)


def all_gather(nbytes: int, size: int) -> CollectiveRequest:
    x, y = np.zeros(nbytes, np.uint8), np.zeros(nbytes * size, np.uint8)
    return CollectiveRequest("all_gather_into_tensor", x.dtype, nbytes, [x], [y])


def plan(hosts: str, rank: int, request: CollectiveRequest) -> TwoLevelPlan:
    return plan_two_level(lay_out(hosts, rank), request, StagingBuffer().allocate_views)


@pytest.mark.parametrize(
    ("hosts", "request_", "wanted"),
    [
        ("aabb", all_reduce(HEAD_BYTES // 2), True),
        ("aaaabb", all_reduce(HEAD_BYTES // 4), True),
        ("a" * 16 + "b", all_reduce(TWO_LEVEL_BYTES), True),
        ("abab", all_reduce(8), True),
        ("aabb", CollectiveRequest("barrier"), True),
        ("aabb", all_gather(HEAD_BYTES // 8, 4), True),
        ("aab", all_gather(8, 3), True),
        ("aabb", all_reduce(8, ml_dtypes.bfloat16), True),
        ("ab", all_reduce(8), False),
        ("aaaa", CollectiveRequest("barrier"), False),
        ("aabb", all_reduce(0), False),
        ("aabb", all_reduce(HEAD_BYTES // 2 + 1), False),
        ("aaaabb", all_reduce(HEAD_BYTES // 4 + 1), False),
        ("a" * 16 + "b", all_reduce(TWO_LEVEL_BYTES + 1), False),
        ("aabb", all_gather(HEAD_BYTES // 8 + 1, 4), False),
        ("abab", all_gather(8, 4), False),
        ("aabb", all_reduce(8, np.int64, ReduceOp.user(lambda a, b: b, "last")), False),
        ("aabb", all_reduce(8, ml_dtypes.bfloat16, ReduceOp.AVG), False),
        ("aabb", CollectiveRequest("all_to_all_single", np.dtype("u1"), 8), False),
    ],
)
def test_small_calls_that_can_be_are_made_in_two_levels(
    hosts: str, request_: CollectiveRequest, wanted: bool
) -> None:
    assert {is_two_level(lay_out(hosts, rank), request_) for rank in range(len(hosts))} == {wanted}


def test_the_first_rank_of_each_host_is_its_head_or_the_root() -> None:
    x = np.zeros(3)
    rooted = CollectiveRequest("broadcast", x.dtype, 3, targets=[x], root=3)
    for request, heads in ((all_reduce(8), (0, 2)), (rooted, (0, 3))):
        for rank in range(4):
            made = plan("aabb", rank, request)
            assert made.heads == heads
            assert made.head == heads[rank // 2]
            assert made.is_head == (rank in heads)
            assert made.members == ((0, 1), (2, 3))[rank // 2]


def test_blocks_of_one_array_are_brought_as_one() -> None:
    x, y = np.arange(12), np.zeros(3, np.int64)
    blocks = [x[at : at + 3] for at in range(0, 12, 3)]
    apart = [block.copy() for block in blocks]
    for sources, count in ((blocks, 1), (apart, 4), (blocks[::-1], 4)):
        request = CollectiveRequest("reduce_scatter", x.dtype, 3, sources, [y], ReduceOp.SUM)
        made = plan("aabb", 1, request)
        assert len(made.own) == count
        np.testing.assert_array_equal(np.concatenate(made.own), np.concatenate(sources))


@pytest.mark.parametrize(
    ("hosts", "request_", "rounds"),
    [
        ("aabb", all_reduce(HEAD_BYTES // 2, np.float32), 4),
        ("aabb", all_gather(HEAD_BYTES // 8, 4), 2),
        ("aabbccdd", all_gather(HEAD_BYTES // 16, 8), 3),
        ("aabbcc", all_reduce(HEAD_BYTES // 2, np.float32), 8),
        ("aabb", all_reduce(1), 1),
    ],
)
def test_messages_between_heads_are_short_enough_to_go_unasked(
    hosts: str, request_: CollectiveRequest, rounds: int
) -> None:
    for rank in range(0, len(hosts), 2):
        (part,) = plan(hosts, rank, request_).parts
        sent = [one.span for step in part.schedule.rounds for one in step.sends]
        assert max(map(len, sent)) * part.output.dtype.itemsize <= MESSAGE_BYTES
        assert sum(bool(step.sends) for step in part.schedule.rounds) == rounds
