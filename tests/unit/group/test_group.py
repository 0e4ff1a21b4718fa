"""Every collective of a group, on ranks within one loop, against NumPy."""

from collections.abc import Callable, Sequence
from functools import reduce as fold
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from allhands.collectives.reduction import OPS, ReduceOp
from allhands.group.group import Group
from allhands.testing.inproc_world import inproc_world, wait_results

Array = NDArray[np.generic]

SIZES = (1, 2, 3, 4, 5, 8)
LENGTHS = (0, 1, 7, 150)
"""In a miniature world 150 elements are several slices, and each of their messages many frames."""

pytestmark = pytest.mark.usefixtures("miniature")


def numbers(seed: int, length: int, dtype: str = "int64") -> Array:
    """Draw small whole numbers, which every dtype sums without rounding."""
    drawn = np.random.default_rng(seed).integers(0, 5, length)
    return drawn.astype(dtype)


def total(arrays: Sequence[Array]) -> Array:
    return fold(np.add, arrays)


def kept(arrays: Sequence[Array]) -> list[Array]:
    """Copy inputs, for a check that they stay unchanged."""
    return [array.copy() for array in arrays]


def assert_equal(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


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


async def test_outputs_that_are_not_contiguous_are_refused_before_anything_is_sent() -> None:
    async with inproc_world(2) as world:
        group = world.groups[0]
        x = np.zeros((4, 4)).T[::2]
        for call in (
            lambda: group.all_reduce(x),
            lambda: group.broadcast(x, 0),
            lambda: group.all_gather_into_tensor(x, np.zeros(4)),
            lambda: group.recv(x, 1),
        ):
            with pytest.raises(ValueError, match="C-contiguous"):
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
            lambda: group.all_to_all_single(np.zeros((2, 2)), np.zeros((2, 2)).T),
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
            lambda: group.all_reduce(np.zeros(2), "sum"),
        ):
            with pytest.raises(TypeError):
                call()
        assert group.sequence == 0


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
async def test_a_timeout_must_be_positive_and_end(timeout: float) -> None:
    async with inproc_world(2) as world:
        with pytest.raises(ValueError, match="timeout"):
            world.groups[0].barrier(timeout=timeout)
        assert world.groups[0].sequence == 0
