"""Results of every collective of a group, on ranks within one loop, against NumPy."""

from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from allhands.collectives.reduction import OPS, ReduceOp
from allhands.testing.inproc_world import inproc_world, wait_results
from support.arrays.whole_numbers import Array, assert_equal, kept, numbers, total

SIZES = (1, 2, 3, 4, 5, 8)
LENGTHS = (0, 1, 7, 150)
"""In a miniature world 150 elements are several slices, and each of their messages many frames."""

pytestmark = pytest.mark.usefixtures("miniature")


# ---------------------------------------------------------------- whole arrays


@pytest.mark.parametrize("size", SIZES)
async def test_all_reduce_gives_everybody_the_sum(size: int) -> None:
    async with inproc_world(size) as world:
        for length in LENGTHS:
            xs = [numbers(rank, length) for rank in range(size)]
            wanted = total(kept(xs))
            given = await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
            assert_equal(xs, [wanted] * size)
            assert all(result is x for result, x in zip(given, xs, strict=True))


@pytest.mark.parametrize("op", OPS)
async def test_all_reduce_knows_every_operation(op: ReduceOp) -> None:
    reference: dict[ReduceOp, Callable[[Sequence[Array]], Array]] = {
        ReduceOp.SUM: lambda all_: fold(np.add, all_),
        ReduceOp.AVG: lambda all_: fold(np.add, all_) / np.float64(len(all_)),
        ReduceOp.PRODUCT: lambda all_: fold(np.multiply, all_),
        ReduceOp.MIN: lambda all_: fold(np.minimum, all_),
        ReduceOp.MAX: lambda all_: fold(np.maximum, all_),
        ReduceOp.BAND: lambda all_: fold(np.bitwise_and, all_),
        ReduceOp.BOR: lambda all_: fold(np.bitwise_or, all_),
        ReduceOp.BXOR: lambda all_: fold(np.bitwise_xor, all_),
        ReduceOp.LAND: lambda all_: fold(np.logical_and, [x != 0 for x in all_]),
        ReduceOp.LOR: lambda all_: fold(np.logical_or, [x != 0 for x in all_]),
        ReduceOp.LXOR: lambda all_: fold(np.logical_xor, [x != 0 for x in all_]),
    }
    dtype = "float64" if op is ReduceOp.AVG else "int64"
    for size, length in product((1, 3, 4), LENGTHS):
        async with inproc_world(size) as world:
            xs = [numbers(rank, length, dtype) for rank in range(size)]
            wanted = reference[op](kept(xs)).astype(dtype)
            await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank], op))
            assert_equal(xs, [wanted] * size)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint16", "int32", "uint64", "float16", "float32"),
        *("complex64", "complex128", ml_dtypes.bfloat16),
    ],
)
async def test_all_reduce_takes_every_dtype(dtype: str) -> None:
    async with inproc_world(3) as world:
        for length in LENGTHS:
            xs = [numbers(rank, length, dtype) for rank in range(3)]
            wanted = total(kept(xs))
            await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
            assert_equal(xs, [wanted] * 3)


@pytest.mark.parametrize("size", [3, 4, 5, 8])
async def test_all_reduce_of_floats_gives_the_same_bits_everywhere(size: int) -> None:
    async with inproc_world(size) as world:
        for length in (5, 300):
            rng = np.random.default_rng(length)
            xs = [rng.standard_normal(length).astype(np.float32) for _ in range(size)]
            exact = total([x.astype(np.float64) for x in xs])
            await world.call_on_all(lambda group, xs=xs: group.all_reduce(xs[group.rank]))
            assert len({x.tobytes() for x in xs}) == 1
            np.testing.assert_allclose(xs[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
async def test_averages_of_integers_are_divided_towards_zero(
    size: int, dtype: str, deterministic: bool
) -> None:
    rng = np.random.default_rng(size)
    for length in LENGTHS:
        given = [rng.integers(-9, 9, size * length).astype(dtype) for _ in range(size)]
        total = fold(np.add, given).tolist()
        wanted = np.array([abs(x) // size * (1 if x > 0 else -1) for x in total], dtype)
        async with inproc_world(size, deterministic=deterministic) as world:
            whole, rooted = kept(given), kept(given)
            await world.call_on_all(
                lambda group, xs=whole: group.all_reduce(xs[group.rank], ReduceOp.AVG)
            )
            assert_equal(whole, [wanted] * size)
            await world.call_on_all(
                lambda group, xs=rooted: group.reduce(xs[group.rank], 0, ReduceOp.AVG)
            )
            assert_equal(rooted, [wanted, *given[1:]])
            shares = [np.empty(length, dtype) for _ in range(size)]
            await world.call_on_all(
                lambda group, xs=given, outs=shares: group.reduce_scatter_tensor(
                    outs[group.rank], xs[group.rank], ReduceOp.AVG
                )
            )
            assert_equal([np.concatenate(shares)], [wanted])


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT])
async def test_deterministic_reductions_fold_in_the_order_of_ranks(
    dtype: str, op: ReduceOp
) -> None:
    size, length = 5, 150
    rng = np.random.default_rng(5)
    given = [rng.standard_normal(length).astype(dtype) for _ in range(size)]
    wide = "float32" if np.dtype(dtype).itemsize == 2 else dtype
    ufunc = np.multiply if op is ReduceOp.PRODUCT else np.add
    expected = fold(ufunc, [x.astype(wide) for x in given])
    if op is ReduceOp.AVG:
        expected = np.true_divide(expected, size)
    expected = expected.astype(dtype)
    async with inproc_world(size, deterministic=True) as world:
        whole = kept(given)
        await world.call_on_all(lambda group: group.all_reduce(whole[group.rank], op))
        assert_equal(whole, [expected] * size)
        rooted = kept(given)
        await world.call_on_all(lambda group: group.reduce(rooted[group.rank], 2, op))
        assert_equal(rooted, [*given[:2], expected, *given[3:]])
        shares = [np.empty(length // size, dtype) for _ in range(size)]
        await world.call_on_all(
            lambda group: group.reduce_scatter_tensor(shares[group.rank], given[group.rank], op)
        )
        assert_equal([np.concatenate(shares)], [expected])


async def test_all_reduce_keeps_the_shape_and_writes_the_callers_array() -> None:
    async with inproc_world(2) as world:
        xs = [np.full((3, 4, 5), rank + 1) for rank in range(2)]
        scalars = [np.array(rank + 1) for rank in range(2)]
        halves = [np.zeros((2, 30)) + rank for rank in range(2)]
        await world.call_on_all(lambda group: group.all_reduce(xs[group.rank]))
        await world.call_on_all(lambda group: group.all_reduce(scalars[group.rank]))
        await world.call_on_all(lambda group: group.all_reduce(halves[group.rank][1]))
        assert_equal(xs, [np.full((3, 4, 5), 3)] * 2)
        assert_equal(scalars, [np.array(3)] * 2)
        assert_equal(halves, [np.array([[rank] * 30, [1] * 30], float) for rank in range(2)])


@pytest.mark.parametrize("size", SIZES)
async def test_broadcast_gives_everybody_the_array_of_any_root(size: int) -> None:
    async with inproc_world(size) as world:
        for length, root in product(LENGTHS, range(size)):
            xs = [numbers(rank, length) for rank in range(size)]
            wanted = xs[root].copy()
            await world.call_on_all(
                lambda group, xs=xs, root=root: group.broadcast(xs[group.rank], root)
            )
            assert_equal(xs, [wanted] * size)


@pytest.mark.parametrize("dtype", ["S3", "datetime64[s]", ">i4", "i2,f8", "float128", "U5"])
async def test_what_only_moves_may_have_any_plain_dtype(dtype: str) -> None:
    async with inproc_world(3) as world:
        for length in LENGTHS:
            raw = np.random.default_rng(1).integers(0, 100, length * np.dtype(dtype).itemsize)
            original = raw.astype(np.uint8).view(dtype) if length else np.empty(0, dtype)
            xs = [original.copy() if rank == 1 else np.zeros(length, dtype) for rank in range(3)]
            outs = [np.zeros(3 * length, dtype) for _ in range(3)]
            await world.call_on_all(lambda group, xs=xs: group.broadcast(xs[group.rank], 1))
            await world.call_on_all(
                lambda group, xs=xs, outs=outs: group.all_gather_into_tensor(
                    outs[group.rank], xs[group.rank]
                )
            )
            assert {x.tobytes() for x in xs} == {original.tobytes()}
            assert {out.tobytes() for out in outs} == {original.tobytes() * 3}


@pytest.mark.parametrize("size", SIZES)
async def test_reduce_writes_the_root_alone(size: int) -> None:
    async with inproc_world(size) as world:
        for length, root in product(LENGTHS, range(size)):
            xs = [numbers(rank, length) for rank in range(size)]
            before = kept(xs)
            given = await world.call_on_all(
                lambda group, xs=xs, root=root: group.reduce(xs[group.rank], root)
            )
            wanted = [*before]
            wanted[root] = total(before)
            assert_equal(xs, wanted)
            assert [result is not None for result in given] == [r == root for r in range(size)]


async def test_reduce_reads_what_it_could_not_write() -> None:
    async with inproc_world(3) as world:
        xs = [np.arange(60).reshape(10, 6) * (rank + 1) for rank in range(3)]
        xs[0].flags.writeable = False
        xs[1] = xs[1].T.copy().T  # the same elements, laid out by columns
        await world.call_on_all(lambda group: group.reduce(xs[group.rank], 2, ReduceOp.MAX))
        assert_equal(xs[2:], [np.arange(60).reshape(10, 6) * 3])


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("size", SIZES)
async def test_gather_fills_the_list_of_any_root(size: int) -> None:
    async with inproc_world(size) as world:
        for length, root in product(LENGTHS, range(size)):
            xs = [numbers(rank, length) for rank in range(size)]
            before = kept(xs)
            into = [np.zeros(length, np.int64) for _ in range(size)]
            await world.call_on_all(
                lambda group, xs=xs, into=into, root=root: group.gather(
                    xs[group.rank], into if group.rank == root else None, root
                )
            )
            assert_equal(into, before)
            assert_equal(xs, before)


@pytest.mark.parametrize("size", SIZES)
async def test_scatter_gives_everybody_their_array_of_any_root(size: int) -> None:
    async with inproc_world(size) as world:
        for length, root in product(LENGTHS, range(size)):
            parts = [numbers(rank, length) for rank in range(size)]
            before = kept(parts)
            xs = [np.zeros(length, np.int64) for _ in range(size)]
            await world.call_on_all(
                lambda group, xs=xs, parts=parts, root=root: group.scatter(
                    xs[group.rank], parts if group.rank == root else None, root
                )
            )
            assert_equal(xs, before)
            assert_equal(parts, before)


@pytest.mark.parametrize("size", SIZES)
async def test_all_gather_fills_lists_and_tensors_alike(size: int) -> None:
    async with inproc_world(size) as world:
        for length in LENGTHS:
            xs = [numbers(rank, length) for rank in range(size)]
            before = kept(xs)
            lists = [[np.zeros(length, np.int64) for _ in xs] for _ in xs]
            whole = [np.zeros((size, length), np.int64) for _ in xs]
            await world.call_on_all(
                lambda group, xs=xs, lists=lists: group.all_gather(
                    lists[group.rank], xs[group.rank]
                )
            )
            await world.call_on_all(
                lambda group, xs=xs, whole=whole: group.all_gather_into_tensor(
                    whole[group.rank], xs[group.rank]
                )
            )
            for rank in range(size):
                assert_equal(lists[rank], before)
                assert_equal([whole[rank]], [np.array(before).reshape(size, length)])
            assert_equal(xs, before)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN])
@pytest.mark.parametrize("size", SIZES)
async def test_reduce_scatter_takes_lists_and_tensors_alike(size: int, op: ReduceOp) -> None:
    ufunc = np.add if op is ReduceOp.SUM else np.minimum
    async with inproc_world(size) as world:
        for length in LENGTHS:
            tensors = [numbers(rank, size * length) for rank in range(size)]
            lists = [[part.copy() for part in np.split(whole, size)] for whole in tensors]
            before = kept(tensors)
            wanted = np.split(fold(ufunc, before), size)
            ours = [np.zeros(length, np.int64) for _ in range(size)]
            theirs = [np.zeros(length, np.int64) for _ in range(size)]
            await world.call_on_all(
                lambda group, ours=ours, lists=lists: group.reduce_scatter(
                    ours[group.rank], lists[group.rank], op
                )
            )
            await world.call_on_all(
                lambda group, theirs=theirs, tensors=tensors: group.reduce_scatter_tensor(
                    theirs[group.rank], tensors[group.rank], op
                )
            )
            assert_equal(ours, wanted)
            assert_equal(theirs, wanted)
            assert_equal(tensors, before)
            assert_equal([np.concatenate(parts) for parts in lists], before)


async def test_an_average_divides_wherever_it_ends() -> None:
    async with inproc_world(4) as world:
        xs = [np.full(60, rank, np.float32) for rank in range(4)]
        outs = [np.zeros(15, np.float32) for _ in range(4)]
        await world.call_on_all(
            lambda group: group.reduce_scatter_tensor(
                outs[group.rank], xs[group.rank], ReduceOp.AVG
            )
        )
        await world.call_on_all(lambda group: group.reduce(xs[group.rank], 3, ReduceOp.AVG))
        assert_equal(outs, [np.full(15, 1.5, np.float32)] * 4)
        assert_equal(xs, [np.full(60, value, np.float32) for value in (0, 1, 2, 1.5)])


@pytest.mark.parametrize("size", SIZES)
async def test_all_to_all_transposes_lists_of_uneven_arrays(size: int) -> None:
    async with inproc_world(size) as world:
        for base in (0, 3, 40):
            given = [
                [numbers(100 * rank + peer, base * ((rank + 2 * peer) % 4)) for peer in range(size)]
                for rank in range(size)
            ]
            before = [kept(arrays) for arrays in given]
            into = [
                [np.zeros_like(given[peer][rank]) for peer in range(size)] for rank in range(size)
            ]
            await world.call_on_all(
                lambda group, given=given, into=into: group.all_to_all(
                    into[group.rank], given[group.rank]
                )
            )
            for rank in range(size):
                assert_equal(into[rank], [before[peer][rank] for peer in range(size)])
                assert_equal(given[rank], before[rank])


@pytest.mark.parametrize("size", SIZES)
async def test_all_to_all_single_shares_rows_equally(size: int) -> None:
    async with inproc_world(size) as world:
        for rows, width in product((0, 1, 7), (1, 6)):
            xs = [numbers(rank, size * rows * width).reshape(-1, width) for rank in range(size)]
            outs = [np.zeros_like(x) for x in xs]
            await world.call_on_all(
                lambda group, xs=xs, outs=outs: group.all_to_all_single(
                    outs[group.rank], xs[group.rank]
                )
            )
            shares = [np.split(x, size) for x in xs]
            wanted = [np.concatenate([share[rank] for share in shares]) for rank in range(size)]
            assert_equal(outs, wanted)


@pytest.mark.parametrize("size", SIZES)
async def test_all_to_all_single_takes_uneven_rows(size: int) -> None:
    async with inproc_world(size) as world:
        rows = np.array([[(3 * rank + peer) % 5 for peer in range(size)] for rank in range(size)])
        xs = [numbers(rank, int(rows[rank].sum()) * 6).reshape(-1, 6) for rank in range(size)]
        outs = [np.zeros((int(rows[:, rank].sum()), 6), np.int64) for rank in range(size)]
        await world.call_on_all(
            lambda group: group.all_to_all_single(
                outs[group.rank], xs[group.rank], rows[:, group.rank].tolist(), rows[group.rank]
            )
        )
        cut = [np.split(xs[rank], np.cumsum(rows[rank])[:-1]) for rank in range(size)]
        wanted = [np.concatenate([cut[peer][rank] for peer in range(size)]) for rank in range(size)]
        assert_equal(outs, wanted)


@pytest.mark.parametrize("size", SIZES)
async def test_a_barrier_ends_when_all_have_come_and_not_before(size: int) -> None:
    async with inproc_world(size) as world:
        early = [group.barrier() for group in world.groups[:-1]]
        await world.run_until_idle()
        assert not any(work.is_completed() for work in early)
        last = world.groups[-1].barrier()
        assert await wait_results([*early, last]) == [None] * size
