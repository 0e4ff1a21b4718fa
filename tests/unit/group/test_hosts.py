"""Every collective of a group with ranks on several hosts, against NumPy."""

from collections.abc import Sequence
from functools import reduce as fold
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives.reduction import OPS, ReduceOp
from allhands.errors import CollectiveMismatch, CollectiveTimeout, PeerFailed
from allhands.testing.inproc_world import InprocWorld, inproc_world, wait_outcomes, wait_results
from support.arrays.collective_cases import called

Array = NDArray[np.generic]

LENGTHS = (0, 1, 7, 151)
HOSTS = ("aabb", "abab", "aaabbb", "aab", "abbb", "aabbcc", "abcc", "a-bb")
"""One letter for each rank."""

pytestmark = pytest.mark.usefixtures("miniature")
on_all_hosts = pytest.mark.parametrize("hosts", HOSTS)


def numbers(seed: int, length: int, dtype: str = "int64") -> Array:
    return np.random.default_rng(seed).integers(0, 5, length).astype(dtype)


def assert_equal(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@on_all_hosts
async def test_all_reduce_gives_everybody_the_sum(hosts: str) -> None:
    async with inproc_world(len(hosts), hosts=hosts) as world:
        for length in LENGTHS:
            xs = [numbers(rank, length) for rank in range(len(hosts))]
            wanted = fold(np.add, xs)
            works = [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
            await wait_results(works)
            assert_equal(xs, [wanted] * len(hosts))
            assert "hosts of" in works[0].explain()
            assert world.groups[0].explain() == works[0].explain()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("hosts", ["aabb", "aab"])
async def test_reductions_know_every_operation(op: ReduceOp, hosts: str) -> None:
    ufuncs = {
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
        ReduceOp.LAND: np.logical_and,
        ReduceOp.LOR: np.logical_or,
        ReduceOp.LXOR: np.logical_xor,
    }
    size = len(hosts)
    dtype = "float64" if op is ReduceOp.AVG else "int64"
    async with inproc_world(size, hosts=hosts) as world:
        for length in LENGTHS:
            given = [numbers(rank, size * length, dtype) for rank in range(size)]
            wanted = fold(ufuncs.get(op, np.add), given).astype(dtype)
            if op is ReduceOp.AVG:
                wanted = wanted / size
            whole, rooted = ([x.copy() for x in given] for _ in range(2))
            shares = [np.zeros(length, dtype) for _ in range(size)]
            await world.call_on_all(lambda group, xs=whole: group.all_reduce(xs[group.rank], op))
            await world.call_on_all(lambda group, xs=rooted: group.reduce(xs[group.rank], 1, op))
            await world.call_on_all(
                lambda group, xs=given, outs=shares: group.reduce_scatter_tensor(
                    outs[group.rank], xs[group.rank], op
                )
            )
            assert_equal(whole, [wanted] * size)
            assert_equal(rooted, [given[0], wanted, *given[2:]])
            assert_equal([np.concatenate(shares)], [wanted])


@on_all_hosts
async def test_averages_of_integers_are_divided_once_and_towards_zero(hosts: str) -> None:
    size = len(hosts)
    async with inproc_world(size, hosts=hosts) as world:
        for length in LENGTHS:
            rng = np.random.default_rng(length)
            given = [rng.integers(-9, 9, size * length) for _ in range(size)]
            total = fold(np.add, given).tolist()
            wanted = np.array([abs(x) // size * (1 if x > 0 else -1) for x in total], np.int64)
            whole, rooted = ([x.copy() for x in given] for _ in range(2))
            shares = [np.zeros(length, np.int64) for _ in range(size)]
            await world.call_on_all(
                lambda group, xs=whole: group.all_reduce(xs[group.rank], ReduceOp.AVG)
            )
            await world.call_on_all(
                lambda group, xs=rooted: group.reduce(xs[group.rank], 1, ReduceOp.AVG)
            )
            await world.call_on_all(
                lambda group, xs=given, outs=shares: group.reduce_scatter_tensor(
                    outs[group.rank], xs[group.rank], ReduceOp.AVG
                )
            )
            assert_equal(whole, [wanted] * size)
            assert_equal(rooted, [given[0], wanted, *given[2:]])
            assert_equal([np.concatenate(shares)], [wanted])


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "complex64", "complex128"],
)
async def test_all_reduce_takes_every_dtype(dtype: str) -> None:
    async with inproc_world(4, hosts="aabb") as world:
        for length in LENGTHS:
            xs = [numbers(rank, length, dtype) for rank in range(4)]
            wanted = fold(np.add, xs)
            await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
            assert_equal(xs, [wanted] * 4)


@on_all_hosts
@pytest.mark.parametrize("verify", [False, True])
async def test_all_reduce_of_floats_gives_the_same_bits_everywhere(
    hosts: str, verify: bool
) -> None:
    async with inproc_world(len(hosts), hosts=hosts, verify=verify) as world:
        for length in (5, 151, 300):
            rng = np.random.default_rng(length)
            xs = [rng.standard_normal(length).astype(np.float32) for _ in hosts]
            exact = fold(np.add, [x.astype(np.float64) for x in xs])
            await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
            assert len({x.tobytes() for x in xs}) == 1
            np.testing.assert_allclose(xs[0], exact, rtol=1e-5, atol=1e-5)


@on_all_hosts
async def test_rooted_calls_work_for_any_root(hosts: str) -> None:
    size = len(hosts)
    async with inproc_world(size, hosts=hosts) as world:
        for length, root in product(LENGTHS, range(size)):
            xs = [numbers(rank, length) for rank in range(size)]
            before = [x.copy() for x in xs]
            await world.call_on_all(lambda group, xs=xs, r=root: group.reduce(xs[group.rank], r))
            assert_equal([xs[root]], [fold(np.add, before)])
            xs[root][:] = before[root]
            assert_equal(xs, before)
            await world.call_on_all(lambda group, xs=xs, r=root: group.broadcast(xs[group.rank], r))
            assert_equal(xs, [before[root]] * size)


@pytest.mark.parametrize("dtype", ["int64", "S3", ">i4", "i2,f8"])
@on_all_hosts
async def test_all_gather_fills_lists_and_tensors_alike(hosts: str, dtype: str) -> None:
    size = len(hosts)
    async with inproc_world(size, hosts=hosts) as world:
        for length in LENGTHS:
            width = np.dtype(dtype).itemsize
            raw = [numbers(rank, length * width, "uint8") for rank in range(size)]
            xs = [one.view(dtype) for one in raw] if length else [np.zeros(0, dtype)] * size
            lists = [[np.zeros(length, dtype) for _ in xs] for _ in xs]
            whole = [np.zeros(size * length, dtype) for _ in xs]
            await world.call_on_all(
                lambda group, xs=xs, out=lists: group.all_gather(out[group.rank], xs[group.rank])
            )
            await world.call_on_all(
                lambda group, xs=xs, out=whole: group.all_gather_into_tensor(
                    out[group.rank], xs[group.rank]
                )
            )
            wanted = b"".join(x.tobytes() for x in xs)
            assert {b"".join(x.tobytes() for x in out) for out in lists} == {wanted}
            assert {out.tobytes() for out in whole} == {wanted}


@on_all_hosts
async def test_a_barrier_ends_when_all_have_come_and_not_before(hosts: str) -> None:
    async with inproc_world(len(hosts), hosts=hosts) as world:
        for late in range(len(hosts)):
            early = [group.barrier() for group in world.groups if group.rank != late]
            await world.run_until_idle()
            assert not any(work.is_completed() for work in early)
            await wait_results([*early, world.groups[late].barrier()])


async def test_deterministic_groups_keep_to_the_order_of_ranks() -> None:
    rng = np.random.default_rng(5)
    xs = [rng.standard_normal(151) for _ in range(4)]
    wanted = fold(np.add, xs)
    async with inproc_world(4, hosts="abab", deterministic=True) as world:
        works = [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
        await wait_results(works)
        assert_equal(xs, [wanted] * 4)
        assert "hosts of" not in works[0].explain()


# ---------------------------------------------------------------- endings


async def assert_usable(world: InprocWorld) -> None:
    for length in (1, 151):
        xs = [np.arange(length) * (group.rank + 1) for group in world.groups]
        await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
        assert_equal(xs, [np.arange(length) * sum(range(1, len(xs) + 1))] * len(xs))


@pytest.mark.parametrize("odd", range(5))
@pytest.mark.parametrize("hosts", ["aabbb", "abbba"])
@pytest.mark.parametrize("lengths", [(5, 4), (151, 150), (1, 151), (0, 1)])
async def test_a_mismatch_gives_every_rank_the_same_table(
    hosts: str, odd: int, lengths: tuple[int, int]
) -> None:
    async with inproc_world(5, hosts=hosts) as world:
        usual, unusual = lengths
        sizes = [unusual if rank == odd else usual for rank in range(5)]
        ended = await wait_outcomes(
            group.all_reduce(np.ones(sizes[group.rank])) for group in world.groups
        )
        for error in ended:
            assert isinstance(error, CollectiveMismatch), ended
            assert called(error) == {
                rank: f"all_reduce(float64[{size}], SUM)" for rank, size in enumerate(sizes)
            }
        await assert_usable(world)


@pytest.mark.parametrize("odd", range(4))
async def test_a_call_over_links_alone_does_not_match_one_in_phases(odd: int) -> None:
    async with inproc_world(4, hosts="aabb", timeout=4) as world:
        ended = await wait_outcomes(
            group.all_to_all_single(np.zeros(4), np.ones(4))
            if group.rank == odd
            else group.barrier()
            for group in world.groups
        )
        assert all(isinstance(error, CollectiveMismatch) for error in ended), ended
        await assert_usable(world)


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("length", [5, 151])
async def test_a_rank_that_does_not_come_costs_the_call_alone(late: int, length: int) -> None:
    async with inproc_world(4, hosts="aabb") as world:
        early = [group for group in world.groups if group.rank != late]
        ended = await wait_outcomes(
            group.all_reduce(np.ones(length), timeout=0.2) for group in early
        )
        assert all(isinstance(error, CollectiveTimeout) for error in ended), ended
        assert late in {rank for error in ended for rank in error.missing_ranks}
        x = np.ones(length)
        [own] = await wait_outcomes([world.groups[late].all_reduce(x, timeout=0.2)])
        # What the others sent before they gave up may be all that it needs.
        assert isinstance(own, CollectiveTimeout) or np.array_equal(x, np.full(length, 4.0)), own
        await assert_usable(world)


@pytest.mark.parametrize("length", [5, 151])
async def test_a_lost_rank_ends_the_call_of_all_and_is_named(length: int) -> None:
    async with inproc_world(4, hosts="aabb") as world:
        works = [group.all_reduce(np.ones(length)) for group in world.groups[:3]]
        await world.run_until_idle()
        await world.fail(3)
        for error in await wait_outcomes(works):
            assert isinstance(error, PeerFailed)
            assert error.failed_ranks == (3,)


async def test_a_rank_may_leave_when_its_part_is_done() -> None:
    async with inproc_world(4, hosts="aabb") as world:
        xs = [np.full(151, float(rank)) for rank in range(4)]
        works = [group.all_reduce(x) for group, x in zip(world.groups, xs, strict=True)]
        await world.leave(0)
        await wait_results(works)
        assert_equal(xs, [np.full(151, 6.0)] * 4)
        ended = await wait_outcomes(group.barrier() for group in world.groups[1:])
        assert all(isinstance(error, PeerFailed) for error in ended), ended


@pytest.mark.parametrize("hosts", ["aabb", "aaabbb"])
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
async def test_narrow_sums_are_rounded_once_by_each_host_and_once_between_them(
    dtype: str, hosts: str
) -> None:
    size = len(hosts)
    each = size // 2
    rng = np.random.default_rng(1)
    given = [rng.normal(0, 3, 60).astype(dtype) for _ in range(size)]

    def rounded(xs: Sequence[Array]) -> Array:
        return fold(np.add, [x.astype(np.float32) for x in xs]).astype(dtype)

    wanted = rounded([rounded(given[:each]), rounded(given[each:])])
    async with inproc_world(size, hosts=hosts) as world:
        xs = [x.copy() for x in given]
        await world.call_on_all(lambda group: group.all_reduce(xs[group.rank]))
        assert "hosts of" in world.groups[0].explain()
        assert_equal(xs, [wanted] * size)


@pytest.mark.parametrize("hosts", ["aabb", "aab"])
async def test_operations_with_a_factor_or_a_function_know_hosts(hosts: str) -> None:
    size, last = len(hosts), ReduceOp.user(lambda a, b: b, "last")
    async with inproc_world(size, hosts=hosts) as world:
        for length in (1, 300):
            given = [np.arange(length) + rank for rank in range(size)]
            xs, ys = ([x.copy() for x in given] for _ in range(2))
            await world.call_on_all(
                lambda group, xs=xs: group.all_reduce(xs[group.rank], ReduceOp.premul_sum(3))
            )
            assert_equal(xs, [3 * fold(np.add, given)] * size)
            await world.call_on_all(lambda group, ys=ys: group.all_reduce(ys[group.rank], last))
            assert_equal(ys, [given[-1]] * size)


@on_all_hosts
async def test_calls_of_several_steps_know_hosts(hosts: str) -> None:
    size = len(hosts)
    async with inproc_world(size, hosts=hosts, timeout=60) as world:  # a hundred slices a step
        for length in (3, 3000):
            xs = [numbers(rank, length) for rank in range(size)]
            wanted = np.cumsum(xs, axis=0)
            work = [group.scan(x) for group, x in zip(world.groups, xs, strict=True)]
            parts = [group.all_gather_v(np.full(group.rank, length)) for group in world.groups]
            await wait_results(work)
            assert_equal(xs, list(wanted))
            for found in await wait_results(parts):
                assert_equal(found, [np.full(rank, length) for rank in range(size)])
