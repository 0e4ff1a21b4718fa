"""Groups of real processes: made by members alone, over shared memory and links."""

import threading
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.api.default_world import require_world
from allhands.group.group import Group
from allhands.testing import on_threads
from programs import groups
from support.ranks.processes import BACKENDS, Job

STARTED = threading.local()
"""The rank that a thread had at first."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_made_in_any_order_carry_their_own_calls(job: Job, backend: str) -> None:
    ranks = job(
        4,
        groups.make_and_use,
    )
    told = [rank.expect("done")["shared"] for rank in ranks]
    assert [rank.ended() for rank in ranks] == [0] * 4
    assert told == [backend == "auto"] * 4


@pytest.mark.parametrize("size", [2, 4])
def test_a_group_knows_its_way_before_its_first_call(job: Job, size: int) -> None:
    """But making it waits for nobody who is late, whom its first call finds there."""
    ranks = job(size, groups.settle_before_the_first_call, ALLHANDS_BACKEND="shm")
    for rank in ranks[:1] + ranks[2:]:
        assert not rank.expect("made")["settled"]
    ranks[1].say()
    ranks[1].expect("made")
    assert all(rank.expect("done")["right"] for rank in ranks)
    assert [rank.ended() for rank in ranks] == [0] * size


def _total(group: Any) -> float:
    x = np.ones(2) * 10.0**STARTED.rank
    ah.all_reduce(x, group=group)
    return float(x[0])


def test_groups_of_a_world_that_has_shrunk_are_new_ones() -> None:
    @on_threads(4, on_failure="shrink")
    def body(rank: int) -> None:
        STARTED.rank = rank
        before = ah.new_group([0, 1], "tag") if rank < 2 else ah.new_group([2, 3], "tag")
        ah.barrier()
        if rank == 1:
            ah.destroy_process_group()
            return
        assert _total(None) == 1101  # all but rank 1
        assert ah.get_process_group_ranks(None) == [0, 1, 2]
        assert ah.find_group("tag", [0, 1]) is None
        after = ah.new_group([0, 1], "tag")
        assert after is not before
        if rank != 3:
            assert _total(after) == 101
        assert _total(ah.split_group(0, key=-rank)) == 1101
        mesh = ah.init_device_mesh((3,))
        assert mesh.get_group() is ah.default_group()

    body()


def test_part_of_a_group_that_has_shrunk_has_its_ranks() -> None:
    @on_threads(4)
    def body(rank: int) -> None:
        STARTED.rank = rank
        ah.barrier()
        if rank == 1:
            ah.destroy_process_group()
            return
        with pytest.raises(ah.PeerFailed):
            ah.barrier()
        left = ah.default_group().shrink()
        assert ah.get_process_group_ranks(left) == [0, 1, 2]  # numbered anew
        part = ah.split_group(int(rank == 0), group=left)
        assert _total(part) == (1 if rank == 0 else 1100)
        assert ah.get_process_group_ranks(part) == ([0] if rank == 0 else [1, 2])
        made = ah.new_group([3, 2], use_local_synchronization=True)  # ranks of the old world
        if rank in (2, 3):
            assert _total(made) == 1100

    body()


def test_groups_that_are_dealt_to_shrink_together() -> None:
    @on_threads(3)
    def body(rank: int) -> None:
        STARTED.rank = rank
        dealt = ah.round_robin([ah.new_group() for _ in range(2)])
        ah.set_timeout(20, dealt)
        ah.barrier(dealt)
        if rank == 1:
            ah.destroy_process_group()
            return
        with pytest.raises(ah.PeerFailed):
            ah.barrier(dealt)
        left = dealt.shrink()
        assert left.size == 2
        assert [_total(left) for _ in range(3)] == [101] * 3
        assert [part.sequence for part in left.parts] == [2, 1]
        with pytest.raises(RuntimeError, match="cannot grow as one"):
            left.grow(1)

    body()


def test_a_group_says_why_calls_on_it_fail_and_its_end_may_say_another_thing() -> None:
    def why(what: str) -> ah.AllhandsError:
        return ah.AllhandsError(f"{what} cannot run: another took its place")

    @on_threads(2)
    def body(rank: int) -> None:
        world, group, aborted = require_world(), ah.new_group([0, 1]), ah.new_group([0, 1])
        assert isinstance(group, Group)
        assert isinstance(aborted, Group)
        ah.barrier(group)
        assert world.get_failure(group) is None
        if rank == 0:
            ah.abort("enough", aborted)
        with pytest.raises(ah.GroupAborted):
            ah.barrier(aborted)
        if rank == 1:
            ah.destroy_process_group()
            assert not world.is_open(group)
            return
        with pytest.raises(ah.PeerFailed):
            ah.barrier(group)
        found = world.get_failure(group)
        assert isinstance(found, ah.PeerFailed)
        assert found.failed_ranks == (1,)
        assert "a call of group" in str(found)
        assert isinstance(world.get_failure(aborted), ah.GroupAborted)
        world.close_group(aborted, why)
        with pytest.raises(ah.AllhandsError, match="cannot run: another took its place"):
            ah.barrier(aborted)
        world.close_group(group, why)
        assert not world.is_open(group)
        for call in (ah.barrier, lambda group: ah.send(np.ones(1), 1, group)):
            with pytest.raises(ah.AllhandsError, match="cannot run: another took its place"):
                call(group)
        assert "was destroyed" in str(world.get_failure(group))

    body()
