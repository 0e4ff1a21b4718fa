"""The segments of ranks that are gone are unmapped once no group has them, and not before."""

import os

import pytest

from allhands.config import Limits
from allhands.runtime import native_core
from allhands.shm.arena import Arena

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")


@pytest.fixture
def arena() -> Arena:
    """That of rank 0 of three, all in this process."""
    core, _ = native_core.find()
    assert core is not None
    made = [Arena(core, Limits()) for _ in range(3)]
    told = {rank: (os.getpid(), str(one.segment_address)) for rank, one in enumerate(made)}
    made[0].map(0, told)
    assert all(made[0].is_mapped(rank) for rank in range(3))
    return made[0]


@pytest.mark.parametrize("told_first", [True, False])
def test_a_segment_is_unmapped_with_the_last_group_or_with_the_news(
    arena: Arena, told_first: bool
) -> None:
    arena.begin_use((0, 1, 2))
    arena.begin_use((0, 2))
    arena.end_use((0, 1, 2))
    if told_first:
        arena.mark_gone(2)
        assert arena.is_mapped(2)
    arena.end_use((0, 2))
    assert arena.is_mapped(2) is not told_first
    arena.mark_gone(2)
    arena.mark_gone(2)
    assert [arena.is_mapped(rank) for rank in range(3)] == [True, True, False]
    assert arena.open(7, (0, 1)) is not None
    assert arena.open(8, (0, 2)) is None


def test_a_segment_that_no_group_has_had_yet_stays(arena: Arena) -> None:
    arena.mark_gone(1)
    assert arena.is_mapped(1)
    areas = arena.open(7, (0, 1, 2))
    assert areas is not None
    arena.begin_use((0, 1, 2))
    arena.end_use((0, 1, 2))
    assert [arena.is_mapped(rank) for rank in range(3)] == [True, False, True]
