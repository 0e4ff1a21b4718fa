"""The collectives as functions, and the forms of their group argument."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.functional import expand_group
from allhands.testing import on_threads

F = ah.functional


def _flat() -> ah.DeviceMesh:
    return ah.init_device_mesh((ah.get_world_size(),))


def _square() -> ah.DeviceMesh:
    return ah.init_device_mesh((2, 2))


# ---------------------------------------------------------------- P59


@on_threads(4)
def test_p059_list_of_ranks():
    assert expand_group([0, 1, 2, 3]) == ("", [0, 1, 2, 3], 4)
    assert expand_group([0, 1, 2, 3], "bla") == ("bla", [0, 1, 2, 3], 4)
    assert expand_group(np.arange(4)) == expand_group(range(4)) == ("", [0, 1, 2, 3], 4)


@on_threads(4)
def test_p059_list_of_lists_of_ranks():
    assert expand_group([[0, 1], [2, 3]]) == ("", [0, 1, 2, 3], 2)
    assert expand_group([[0, 1], [2, 3]], "blu") == ("blu", [0, 1, 2, 3], 2)
    assert expand_group(np.arange(4).reshape(2, 2)).group_size == 2
    with pytest.raises(ValueError, match="group sizes must be identical"):
        expand_group([[0], [1, 2, 3]])


@on_threads(4)
def test_p059_process_group(rank: int):
    assert expand_group(None) == expand_group(ah.default_group()) == ("", [0, 1, 2, 3], 4)
    assert expand_group(ah.default_group(), "bla").tag == "bla"
    mine, _ = ah.new_subgroups(2)
    assert expand_group(mine) == (ah.get_group_tag(mine), ah.get_process_group_ranks(mine), 2)
    assert expand_group(mine.name) == expand_group(mine)
    alone = ah.new_group([rank], "my_pg")
    assert expand_group(alone) == ("my_pg", [rank], 1)
    assert expand_group(alone, "bla") == ("bla", [rank], 1)


@on_threads(4)
def test_p059_mesh_of_one_dimension():
    mesh = _flat()
    assert expand_group(mesh) == (ah.get_group_tag(mesh.get_group()), [0, 1, 2, 3], 4)


@on_threads(4)
def test_p059_mesh_and_a_dimension(rank: int):
    mesh = ah.init_device_mesh((2, 2), ("dp", "tp"))
    for kind in (AssertionError, ValueError, RuntimeError):
        with pytest.raises(kind, match="Only 1D mesh"):
            expand_group(mesh)
    ranks = [rank % 2, rank % 2 + 2]
    assert expand_group((mesh, 0)) == (ah.get_group_tag(mesh.get_group(0)), ranks, 2)
    assert expand_group((mesh, "dp")) == expand_group((mesh, 0))
    ranks = [rank // 2 * 2, rank // 2 * 2 + 1]
    assert expand_group((mesh, 1)) == (ah.get_group_tag(mesh.get_group(1)), ranks, 2)


@on_threads(2)
def test_p059_what_is_no_group_is_refused(rank: int):
    for wrong, error, text in [
        (3.5, TypeError, "a group is"),
        (["a"], TypeError, "whole numbers"),
        ([], ValueError, "at least one rank"),
        ("nobody", ValueError, "is registered here"),
        ([1 - rank], ValueError, "is not among the ranks"),
        (ah.new_group([1 - rank]), ValueError, "does not belong to"),
    ]:
        with pytest.raises(error, match=text):
            F.all_reduce(np.ones(1), "sum", wrong)


@on_threads(4)
def test_p059_group_of_ranks_is_made_once_and_found_again(rank: int):
    half = [[0, 1], [2, 3]]
    for _ in range(2):
        total = F.all_reduce(np.full(2, float(rank)), "sum", half)
        assert total.tolist() == [1, 1] if rank < 2 else [5, 5]
    made = ah.find_group("functional", half[rank // 2])
    assert ah.get_sequence_number(made) == 2
    F.all_reduce(np.ones(1), "sum", half[rank // 2], "mine")
    assert ah.get_sequence_number(ah.find_group("mine", half[rank // 2])) == 1
    F.all_reduce(np.ones(1), "sum", [0, 1, 2, 3])
    assert ah.get_sequence_number() == 1  # these are the world


# ---------------------------------------------------------------- P62, P63


@on_threads(4)
def test_p062_broadcast_on_a_mesh(rank: int):
    x = np.full(4, float(rank == 0))
    given = x.copy()
    assert (F.broadcast(x, 0, _flat()) == 1).all()
    assert (x == given).all()


@on_threads(4)
def test_p062_broadcast_from_a_rank_of_the_group(rank: int):
    group = ah.new_group([3, 1, 2, 0])
    assert F.broadcast(np.full((2, 2), rank), 1, group).tolist() == [[1, 1], [1, 1]]


@on_threads(4)
def test_p063_all_reduce_on_a_mesh(rank: int):
    x = np.ones(4)
    assert F.all_reduce(x, "sum", _flat()).tolist() == [4] * 4
    assert F.all_reduce(x, "sum", (_square(), 1)).tolist() == [2] * 4
    assert (x == 1).all()


@on_threads(2)
def test_p063_operation_by_name(rank: int):
    x = np.array([rank + 1, 6])
    wanted = {"sum": 3, "product": 2, "min": 1, "max": 2, "band": 0, "bor": 3, "bxor": 3}
    for name, result in wanted.items():
        assert F.all_reduce(x, name)[0] == result
    assert F.all_reduce(x.astype(float), "AVG").tolist() == [1.5, 6]
    assert F.all_reduce(x, ah.ReduceOp.MAX)[0] == 2
    with pytest.raises(ValueError, match="name of one"):
        F.all_reduce(x, "median")


@on_threads(2)
def test_p063_what_is_given_stays_as_it_was(rank: int):
    x = np.arange(12.0).reshape(3, 4).T  # not contiguous
    x.flags.writeable = False
    got = F.all_reduce(x, "sum")
    assert got.shape == (4, 3)
    assert (got == 2 * x).all()
    assert got.flags.writeable
    got[:] = 0
    assert x[3, 2] == 11


# ---------------------------------------------------------------- P64


@on_threads(4)
def test_p064_all_reduce_coalesced():
    x, y = np.ones(4), np.full((2, 3), 3.0)
    got = F.all_reduce_coalesced([x, y], "sum", _flat())
    assert [one.tolist() for one in got] == [[4] * 4, [[12] * 3] * 2]
    assert x.tolist() == [1] * 4


@on_threads(2)
def test_p064_arrays_of_one_dtype_are_one_call(rank: int):
    arrays = [np.full(at, at + rank, dtype) for at in range(4) for dtype in ("f4", "i8")]
    before = ah.get_sequence_number()
    got = F.all_reduce_coalesced(arrays, "max")
    assert ah.get_sequence_number() == before + 2
    for at, (one, given) in enumerate(zip(got, arrays, strict=True)):
        assert one.dtype == given.dtype
        assert one.tolist() == [at // 2 + 1] * (at // 2)


@on_threads(4)
def test_p064_all_gather_into_tensor_coalesced(rank: int):
    arrays = [np.ones(4), np.full((1, 2), rank), np.full(4, 2.0)]
    got = F.all_gather_into_tensor_coalesced(arrays, _flat())
    assert [one.shape for one in got] == [(16,), (4, 2), (16,)]
    assert (got[0] == 1).all()
    assert got[1].tolist() == [[at, at] for at in range(4)]
    assert (got[2] == 2).all()


@on_threads(2)
def test_p064_refused_before_any_call_is_made():
    calls: list[Callable[[Any], object]] = [
        lambda arrays: F.all_reduce_coalesced(arrays, "band"),
        lambda arrays: F.reduce_scatter_tensor_coalesced(arrays, "band"),
        F.all_gather_into_tensor_coalesced,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="requires non-empty tensor list"):
            call([])
        with pytest.raises(TypeError, match="must be a list"):
            call(np.ones(4))
    for call in calls[:2]:
        with pytest.raises(TypeError, match="BAND"):
            call([np.ones(2, np.int64), np.ones(2)])  # the second cannot be done
    assert ah.get_sequence_number() == 0


# ---------------------------------------------------------------- P65


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_p065_all_gather_tensor_along_a_dimension(dim: int):
    @on_threads(4)
    def body(rank: int) -> None:
        for mesh in (_flat(), _square()):
            x = np.full((3, 3, 3), float(rank)) + np.arange(27).reshape(3, 3, 3)
            got = F.all_gather_tensor(x, gather_dim=dim, group=(mesh, 0))
            ranks = range(4) if mesh.ndim == 1 else (rank % 2, rank % 2 + 2)
            assert (got == np.concatenate([x - rank + one for one in ranks], axis=dim)).all()

    body()


@on_threads(2)
def test_p065_all_gather_tensor_of_single_values(rank: int):
    assert F.all_gather_tensor(np.array(rank + 5)).tolist() == [5, 6]
    with pytest.raises(ValueError, match="gather_dim=1 is none"):
        F.all_gather_tensor(np.ones(2), 1)


# ---------------------------------------------------------------- P66


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_p066_reduce_scatter_tensor_along_a_dimension(dim: int):
    @on_threads(4)
    def body(rank: int) -> None:
        for mesh in (_flat(), _square()):
            size, place = mesh.size(0), mesh.get_local_rank(0)
            shape = [3, 3]
            shape[dim] *= size
            x = np.arange(9.0 * size).reshape(shape)
            got = F.reduce_scatter_tensor(x, "sum", scatter_dim=dim, group=(mesh, 0))
            assert got.shape == (3, 3)
            assert (got == size * np.split(x, size, axis=dim)[place]).all()

    body()


@on_threads(4)
def test_p066_reduce_scatter_tensor_coalesced_of_int64(rank: int):
    arrays = [np.ones(4, np.int64), np.full(4, 2)]
    got = F.reduce_scatter_tensor_coalesced(arrays, "sum", [0, 0], _flat())
    assert [one.tolist() for one in got] == [[4], [8]]
    assert got[0].dtype == np.int64


@on_threads(2)
def test_p066_reduce_scatter_tensor_coalesced_along_dimensions(rank: int):
    x, y = np.arange(12).reshape(3, 4), np.arange(4, dtype=np.float32)
    got = F.reduce_scatter_tensor_coalesced([x, y, x], "sum", [1, 0, -1])
    share = 2 * np.split(x, 2, axis=1)[rank]
    assert (got[0] == share).all()
    assert got[1].tolist() == [4 * rank, 4 * rank + 2]
    assert (got[2] == share).all()


@on_threads(2)
def test_p066_shares_that_are_not_equal_are_refused():
    with pytest.raises(ValueError, match=r"dimension 0 \(3\) must be a multiple of group_size 2"):
        F.reduce_scatter_tensor(np.ones((3, 2)))
    with pytest.raises(ValueError, match="must be a multiple of group_size 2"):
        F.reduce_scatter_tensor_coalesced([np.ones(2), np.ones(3)])
    with pytest.raises(ValueError, match="1 dimensions for 2 arrays"):
        F.reduce_scatter_tensor_coalesced([np.ones(2), np.ones(2)], "sum", [0])
    assert ah.get_sequence_number() == 0


# ---------------------------------------------------------------- P70


@pytest.mark.parametrize("width", [(5,), ()])
def test_p070_uneven_all_to_all_single(width: tuple[int, ...]):
    @on_threads(4)
    def body(rank: int) -> None:
        sizes = [(at + 1) * (rank + 1) for at in range(4)]
        x = np.full((sum(sizes), *width), rank + 1.0)
        got = F.all_to_all_single(x, sizes, sizes, _flat())
        wanted = [np.full((size, *width), at + 1.0) for at, size in enumerate(sizes)]
        assert (got == np.concatenate(wanted)).all()
        assert (x == rank + 1).all()

    body()


@on_threads(4)
def test_p070_all_to_all_single_without_sizes(rank: int):
    x = np.full((4, 4), rank + 1.0)
    got = F.all_to_all_single(x, None, None, _flat())
    assert got.tolist() == [[at + 1.0] * 4 for at in range(4)]


@on_threads(2)
def test_p070_sizes_that_do_not_fit_are_refused():
    x = np.ones(4)
    for given, text in [
        (([2, 2], None), "must either be specified together or both set to None"),
        ((None, [2, 2]), "must either be specified together or both set to None"),
        (([4], [2, 2]), "Number of tensor splits not equal to group size"),
        (([2, 2], [2, 1]), "Split sizes doesn't match total dim 0 size"),
        (([5, -1], [2, 2]), "Split sizes doesn't match total dim 0 size"),
    ]:
        with pytest.raises(ValueError, match=text):
            F.all_to_all_single(x, *given)
    assert ah.get_sequence_number() == 0


# ---------------------------------------------------------------- P72


@on_threads(4)
def test_p072_permute_on_the_dimensions_of_a_mesh():
    mesh = ah.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        line = mesh[name]
        place = line.get_local_rank()
        x = np.arange(2, dtype=np.float32) + 2 * place
        got = F.permute_tensor(x, [1, 0], group=line)
        assert got.tolist() == [2 * (1 - place), 2 * (1 - place) + 1]


@on_threads(3)
def test_p072_permute_along_a_ring(rank: int):
    x = np.full((2, 2), rank).T
    assert (F.permute_tensor(x, [1, 2, 0]) == (rank - 1) % 3).all()
    assert (F.permute_tensor(x, [0, 2, 1]) == [0, 2, 1][rank]).all()
    for wrong in ([0, 1], [0, 1, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="each rank of the group once"):
            F.permute_tensor(x, wrong)


# ---------------------------------------------------------------- kinds of arrays, later results


@on_threads(2)
def test_results_are_of_the_kind_given(rank: int) -> None:
    xp = pytest.importorskip("array_api_strict")
    x = xp.asarray([1.0 + rank, 2.0])
    for got, want in (
        (F.all_reduce(x, "sum"), [3, 4]),
        (F.broadcast(x, 1), [2, 2]),
        (F.all_gather_tensor(x), [1, 2, 2, 2]),
        (F.reduce_scatter_tensor(x, "max"), [2]),
        (F.permute_tensor(x, [1, 0]), [2 - rank, 2]),
        (F.all_to_all_single(x), [[1, 2], [2, 2]][rank]),
        *zip(F.all_reduce_coalesced([x, x]), [[3, 4], [3, 4]], strict=True),
    ):
        assert type(got) is type(x)
        assert np.asarray(got).tolist() == want
    assert np.asarray(x).tolist() == [1 + rank, 2]
    assert F.all_gather_tensor(b"ab") == b"abab"
    assert F.all_reduce(bytearray(b"\x01"), "sum") == bytearray(b"\x02")
    assert F.all_reduce(array("d", [1, 2])) == array("d", [2, 4])
    assert F.all_reduce(memoryview(b"\x03")).tolist() == [6]
    assert isinstance(F.all_reduce(np.float32(1)), np.ndarray)


@on_threads(2)
def test_tensors_give_tensors(rank: int) -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((2, 3), rank + 1.0).t()
    got = F.all_reduce(x)
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [[3.0, 3.0]] * 3
    assert F.all_gather_tensor(x, gather_dim=1).shape == (3, 4)


@on_threads(2)
def test_what_is_no_array_is_to_be_wrapped_and_the_result_is_returned() -> None:
    calls: list[Callable[[Any], object]] = [
        F.all_reduce,
        lambda x: F.broadcast(x, 0),
        F.all_gather_tensor,
        F.reduce_scatter_tensor,
        F.all_to_all_single,
        lambda x: F.permute_tensor(x, [1, 0]),
        lambda x: F.all_reduce_coalesced([x]),
    ]
    for call in calls:
        for given in (0.5, [1.0, 2.0]):
            with pytest.raises(TypeError, match=r"wrap it.*, and take the new array"):
                call(given)
    with pytest.raises(TypeError, match=r"wrap it.*, and read the result from x$"):
        ah.all_reduce(0.5)


@on_threads(2)
def test_results_may_come_later(rank: int) -> None:
    x = np.arange(4.0).reshape(2, 2) + rank
    rows = [x - rank, x - rank + 1]
    calls: list[tuple[Any, Any]] = [
        (F.all_reduce(x, "sum", async_op=True), 2 * x + 1 - 2 * rank),
        (F.broadcast(x, 1, async_op=True), x + 1 - rank),
        (F.all_gather_tensor(x, 1, async_op=True), np.hstack(rows)),
        (F.reduce_scatter_tensor(x, async_op=True), (2 * x + 1 - 2 * rank)[rank : rank + 1]),
        (F.permute_tensor(x, [1, 0], async_op=True), x + 1 - 2 * rank),
        (F.all_reduce_coalesced([x, x[0]], async_op=True), [2 * x + 1 - 2 * rank]),
        (
            F.all_gather_into_tensor_coalesced([x], async_op=True),
            [np.vstack(rows)],
        ),
    ]
    for work, want in calls:
        future = work.get_future()
        assert work.wait(30)
        assert work.is_success()
        assert work.result() is work.result()
        got = future.result(30)
        if isinstance(got, list):
            got, want = got[0], want[0]
        np.testing.assert_array_equal(got, want)


@on_threads(2)
def test_a_result_that_does_not_come_raises_later(rank: int) -> None:
    ah.barrier()
    if rank:
        ah.abort("it is enough")
        return
    work = F.all_reduce(np.ones(3), async_op=True)
    with pytest.raises(ah.AllhandsError):
        work.result()
    assert isinstance(work.exception(), ah.AllhandsError)
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(ah.AllhandsError):
        work.get_future().result(30)
