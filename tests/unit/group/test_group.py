"""Calls of a group: aliased arrays, calls under way, subgroups, and refused arguments."""

import numpy as np
import pytest

from allhands.collectives.reduction import ReduceOp
from allhands.group.group import Group
from allhands.testing.inproc_world import inproc_world, wait_results
from support.arrays.whole_numbers import assert_equal, kept, numbers, total

pytestmark = pytest.mark.usefixtures("miniature")


# ---------------------------------------------------------------- memory


async def test_an_input_may_lie_in_the_output() -> None:
    async with inproc_world(3) as world:
        for length in (1, 7, 150):
            outs = [np.zeros((3, length), np.int64) for _ in range(3)]
            for rank, out in enumerate(outs):
                out[rank] = numbers(rank, length)
            wanted = total(outs)
            await world.call_on_all(
                lambda group, outs=outs: group.all_gather_into_tensor(
                    outs[group.rank], outs[group.rank][group.rank]
                )
            )
            assert_equal(outs, [wanted] * 3)


async def test_an_output_may_lie_in_the_input() -> None:
    async with inproc_world(3) as world:
        for length in (1, 7, 150):
            xs = [numbers(rank, 3 * length).reshape(3, length) for rank in range(3)]
            before = kept(xs)
            await world.call_on_all(
                lambda group, xs=xs: group.reduce_scatter_tensor(
                    xs[group.rank][group.rank], xs[group.rank]
                )
            )
            wanted = kept(before)
            for rank in range(3):
                wanted[rank][rank] = total([x[rank] for x in before])
            assert_equal(xs, wanted)


async def test_all_to_all_may_be_in_place() -> None:
    async with inproc_world(4) as world:
        xs = [np.arange(4 * 30).reshape(4, 30) + 1000 * rank for rank in range(4)]
        before = kept(xs)
        await world.call_on_all(
            lambda group: group.all_to_all_single(xs[group.rank], xs[group.rank])
        )
        assert_equal(xs, [np.array([x[rank] for x in before]) for rank in range(4)])
        await world.call_on_all(
            lambda group: group.all_to_all(list(xs[group.rank]), list(xs[group.rank]))
        )
        assert_equal(xs, before)


async def test_inputs_that_are_not_contiguous_are_read_as_they_look() -> None:
    async with inproc_world(2) as world:
        xs = [np.arange(100).reshape(10, 10)[::2, ::-3] * (rank + 1) for rank in range(2)]
        outs = [np.zeros((2, *xs[0].shape), np.int64) for _ in range(2)]
        await world.call_on_all(
            lambda group: group.all_gather_into_tensor(outs[group.rank], xs[group.rank])
        )
        assert_equal(outs, [np.array(xs)] * 2)


async def test_outputs_of_which_elements_overlap_are_refused_before_anything_is_sent() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        x = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 4), (0, 0))
        for call in (
            lambda: group.all_reduce(x),
            lambda: group.broadcast(x, 1),
            lambda: group.all_gather_into_tensor(x, np.zeros(4)),
            lambda: group.recv(x, 1),
        ):
            with pytest.raises(ValueError, match=r"elements of .* share memory"):
                call()
        assert group.sequence == 0


# ---------------------------------------------------------------- many calls


async def test_calls_under_way_end_in_order_in_every_group() -> None:
    async with inproc_world(4) as world:
        pairs = world.open_group("pairs", [2, 0]), world.open_group("others", [3, 1])
        groups: list[list[Group]] = [world.groups, *pairs]
        ended: list[tuple[str, int, int]] = []
        works = []
        for number in range(200):
            members = groups[number % 3]
            xs = [numbers(number + group.rank, number % 50) for group in members]
            for group, x in zip(members, xs, strict=True):
                wanted = total(xs)
                work = group.all_reduce(x)
                work.get_future().add_done_callback(
                    lambda done, group=group, work=work, wanted=wanted: (
                        np.testing.assert_array_equal(done.result(), wanted),
                        ended.append((group.name, group.rank, work.sequence)),
                    )
                )
                works.append(work)
        await wait_results(works)
        for members in groups:
            for group in members:
                mine = [
                    number
                    for name, rank, number in ended
                    if (name, rank) == (group.name, group.rank)
                ]
                assert mine == list(range(1, group.sequence + 1))


async def test_ranks_of_a_group_are_counted_in_its_own_order() -> None:
    async with inproc_world(5) as world:
        members = world.open_group("some", [4, 1, 3])
        assert [group.rank for group in members] == [0, 1, 2]
        xs = [np.full(3, world_rank) for world_rank in (4, 1, 3)]
        outs = [np.zeros((3, 3), np.int64) for _ in members]
        await wait_results(
            group.all_gather_into_tensor(out, x)
            for group, out, x in zip(members, outs, xs, strict=True)
        )
        assert_equal(outs, [np.array(xs)] * 3)
        await wait_results(group.broadcast(x, 0) for group, x in zip(members, xs, strict=True))
        assert_equal(xs, [np.full(3, 4)] * 3)


async def test_only_the_ranks_of_a_group_wait_for_its_calls() -> None:
    async with inproc_world(3) as world:
        pair = world.open_group("pair", [0, 1])
        blocked = world.groups[0].barrier()
        await wait_results(group.barrier() for group in pair)
        assert not blocked.is_completed()
        await wait_results([blocked, *(group.barrier() for group in world.groups[1:])])


async def test_a_world_of_more_ranks_than_anything_else_here_works() -> None:
    async with inproc_world(13) as world:
        xs = [numbers(rank, 150) for rank in range(13)]
        wanted = total(kept(xs))
        await world.call_on_all(lambda group: group.all_reduce(xs[group.rank]))
        await world.call_on_all(lambda group: group.barrier())
        assert_equal(xs, [wanted] * 13)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("root", [-1, 3])
async def test_a_root_outside_the_group_is_refused(root: int) -> None:
    async with inproc_world(3) as world:
        group, x = world.groups[0], np.zeros(2)
        for call in (
            lambda: group.broadcast(x, root),
            lambda: group.reduce(x, root),
            lambda: group.gather(x, None, root),
            lambda: group.scatter(x, None, root),
        ):
            with pytest.raises(ValueError, match="whose ranks go from 0 to 2"):
                call()
        assert group.sequence == 0


async def test_a_list_is_needed_at_the_root_and_nowhere_else() -> None:
    async with inproc_world(2) as world:
        x, many = np.zeros(2), [np.zeros(2), np.zeros(2)]
        for rank in range(2):
            group = world.groups[rank]
            wrong = None if rank == 0 else many
            for call in (
                lambda group=group, wrong=wrong: group.gather(x, wrong, 0),
                lambda group=group, wrong=wrong: group.scatter(x, wrong, 0),
            ):
                with pytest.raises(ValueError, match="_list is"):
                    call()


async def test_arrays_that_do_not_fit_together_are_refused() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        x, y, other = np.zeros(4), np.zeros(5), np.zeros(4, np.float32)
        two = [np.zeros(4), np.zeros(4)]
        for call in (
            lambda: group.all_gather([y, y.copy()], x),
            lambda: group.all_gather([np.zeros(4), other], x),
            lambda: group.all_gather(two[:1], x),
            lambda: group.all_gather([x, x], np.zeros(4)),
            lambda: group.all_gather_into_tensor(np.zeros(9), x),
            lambda: group.all_gather_into_tensor(np.zeros(8, np.float32), x),
            lambda: group.reduce_scatter(x, [y, y]),
            lambda: group.reduce_scatter_tensor(x, np.zeros(9)),
            lambda: group.all_to_all(two, [np.zeros(4), other]),
            lambda: group.all_to_all(two, [y, y]),  # what it gives itself does not fit
            lambda: group.all_to_all_single(np.zeros(3), np.zeros(3)),
            lambda: group.all_to_all_single(np.zeros(4), np.zeros(4), [1, 3], [2, 2]),
            lambda: group.all_to_all_single(np.zeros(4), np.zeros(4), [4], [2, 2]),
            lambda: group.all_to_all_single(np.zeros(4), np.zeros(4), [5, -1], [5, -1]),
            lambda: group.all_to_all_single(np.array(0.0), np.array(0.0)),
        ):
            with pytest.raises(ValueError):
                call()
        assert group.sequence == 0


async def test_what_cannot_be_reduced_is_refused() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        for call in (
            lambda: group.all_reduce(np.zeros(2, bool), ReduceOp.AVG),
            lambda: group.reduce(np.zeros(2), 0, ReduceOp.BAND),
            lambda: group.reduce_scatter_tensor(np.zeros(1, "M8[s]"), np.zeros(2, "M8[s]")),
            lambda: group.all_reduce(np.zeros(2), 7),
        ):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(ValueError, match="name of one, such as 'sum', not 'total'"):
            group.all_reduce(np.zeros(2), "total")
        assert group.sequence == 0


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_must_be_positive_and_end(timeout: float) -> None:
    async with inproc_world(2) as world:
        with pytest.raises(ValueError, match="timeout"):
            world.groups[0].barrier(timeout=timeout)
        assert world.groups[0].sequence == 0
