"""Functional collectives of PyTorch, eager: groups in every form, results, shapes."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.torch.ranks import on_ranks
from support.torch.shared_world import SharedWorld

on_four_ranks = SharedWorld(4)


def flat() -> Any:
    return DeviceMesh("cpu", torch.arange(dist.get_world_size()))


def square() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def halves(tag: str | None = None) -> Any:
    """Make a group of each two neighbour ranks, and return this rank's."""
    rank = dist.get_rank()
    made = [c10d._new_group_with_tag([at, at + 1], pg_tag=tag) for at in (0, 2)]
    return made[rank // 2]


# ---------------------------------------------------------------- groups


@on_four_ranks
def test_p059_groups_are_given_as_ranks_groups_and_meshes(rank: int) -> None:
    expand = funcol._expand_group
    assert expand([0, 1, 2, 3]) == ("", [0, 1, 2, 3], 4)
    assert expand([0, 1, 2, 3], "bla")[0] == "bla"
    assert expand([[0, 1], [2, 3]], "blu") == ("blu", [0, 1, 2, 3], 2)
    with pytest.raises(ValueError, match="group sizes must be identical"):
        expand([[0], [1, 2, 3]])
    world = dist.group.WORLD
    assert expand(world) == (c10d._get_group_tag(world), [0, 1, 2, 3], 4)
    assert expand(world, "bla")[0] == "bla"
    mine = halves()
    assert expand(mine) == (c10d._get_group_tag(mine), dist.get_process_group_ranks(mine), 2)
    alone = [c10d._new_group_with_tag([at], pg_tag="alone") for at in range(4)][rank]
    assert expand(alone) == ("alone", [rank], 1)
    assert expand(alone, "bla")[0] == "bla"

    line, grid = flat(), square()
    assert expand(line) == (c10d._get_group_tag(line.get_group(0)), [0, 1, 2, 3], 4)
    with pytest.raises(AssertionError, match="Only 1D mesh"):
        expand(grid)
    for dim, ranks in ((0, [rank % 2, rank % 2 + 2]), (1, [rank // 2 * 2, rank // 2 * 2 + 1])):
        assert expand((grid, dim)) == (c10d._get_group_tag(grid.get_group(dim)), ranks, 2)
    subgroup, _ = dist.new_subgroups(group_size=2)
    ranks = [rank // 2 * 2, rank // 2 * 2 + 1]
    assert expand(subgroup) == (c10d._get_group_tag(subgroup), ranks, 2)


@on_four_ranks
def test_p060_equal_ranks_and_tag_are_one_group_and_none_without_a_tag(rank: int) -> None:
    tagged, same, other = halves("blu"), halves("blu"), halves("blu2")
    plain, again = halves(), halves()
    assert tagged is same
    assert len({id(one) for one in (tagged, other, plain, again)}) == 4
    x = torch.full((1,), float(rank))
    for group in (tagged, other, plain, again):  # each is a group of its own that works
        assert funcol.all_reduce(x, "sum", group).item() == [1.0, 5.0][rank // 2]


@on_four_ranks
def test_p061_groups_are_found_by_their_tag_or_made_and_so_is_the_root(rank: int) -> None:
    first, second, plain, again = halves("blu"), halves("bla"), halves(), halves()

    def found(group: Any, tag: str = "") -> Any:
        tag, ranks, _ = funcol._expand_group(group, tag)
        return c10d._find_pg_by_ranks_and_tag(tag, ranks)

    for group in (first, second, plain, again):
        assert found(group) is group
    assert found(second, "blu") is first
    assert found(plain, "blu") is first
    assert found(first, "") is first
    made = c10d._find_or_create_pg_by_ranks_and_tag("new", [0, 1, 2, 3], 2)
    assert halves("new") is made
    assert c10d._find_pg_by_ranks_and_tag("", [0, 1, 2, 3]) is dist.group.WORLD


# ---------------------------------------------------------------- results


@on_four_ranks
def test_p062_functional_broadcast_on_a_mesh(rank: int) -> None:
    x = torch.full((4,), float(rank))
    assert funcol.broadcast(x, 2, flat()).tolist() == [2.0] * 4
    assert x.tolist() == [float(rank)] * 4


@on_four_ranks
def test_p063_functional_all_reduce_on_a_mesh_and_on_one_of_its_dimensions(rank: int) -> None:
    x = torch.full((4,), float(rank))
    assert funcol.all_reduce(x, "sum", flat()).tolist() == [6.0] * 4
    assert funcol.all_reduce(x, "avg", flat()).tolist() == [1.5] * 4
    grid = square()
    assert funcol.all_reduce(x, "sum", (grid, 1)).tolist() == [[1.0], [5.0]][rank // 2] * 4
    assert funcol.all_reduce(x, "max", (grid, 0)).tolist() == [[2.0], [3.0]][rank % 2] * 4
    assert x.tolist() == [float(rank)] * 4


@on_four_ranks
def test_p064_functional_forms_of_coalesced_calls(rank: int) -> None:
    mesh, x, y = flat(), torch.full((4,), float(rank)), torch.full((2, 3), rank + 1.0)
    both = funcol.all_reduce_coalesced([x, y], "sum", mesh)
    assert [one.tolist() for one in both] == [[6.0] * 4, [[10.0] * 3] * 2]
    first, second = funcol.all_gather_into_tensor_coalesced([x, y], mesh)
    assert first.tolist() == [float(one) for one in range(4) for _ in range(4)]
    assert second.shape == (8, 3)
    assert second[::2, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


@on_four_ranks
def test_p065_functional_all_gather_tensor_along_any_dimension(rank: int) -> None:
    for mesh in (flat(), square()):
        size = mesh.size(0)
        for dim in range(3):
            shape = [3, 3, 3]
            shape[dim] *= size
            whole = funcol.all_gather_tensor(
                torch.full((3, 3, 3), float(mesh.get_local_rank(0))),
                gather_dim=dim,
                group=(mesh, 0),
            )
            assert list(whole.shape) == shape
            for at, part in enumerate(whole.chunk(size, dim)):
                assert part.unique().tolist() == [at]


@on_four_ranks
def test_p066_functional_reduce_scatter_tensor_along_any_dimension_and_coalesced(
    rank: int,
) -> None:
    for mesh in (flat(), square()):
        size, here = mesh.size(0), mesh.get_local_rank(0)
        for dim in (0, 1):
            parts = [torch.full((3, 3), at + 1.0) for at in range(size)]
            share = funcol.reduce_scatter_tensor(
                torch.cat(parts, dim), "sum", scatter_dim=dim, group=(mesh, 0)
            )
            assert share.tolist() == (torch.ones(3, 3) * size * (here + 1)).tolist()
    whole = [torch.ones(4, dtype=torch.int64), torch.arange(8, dtype=torch.int64)]
    one, two = funcol.reduce_scatter_tensor_coalesced(whole, "sum", [0, 0], flat())
    assert one.tolist() == [4]
    assert two.tolist() == [8 * rank, 8 * rank + 4]
    assert two.dtype == torch.int64


def test_p067_shapes_are_inferred_where_there_is_no_data() -> None:
    x = torch.rand((2, 3, 4), device="meta")
    assert funcol.all_reduce(x, "sum", "0").shape == x.shape
    functional = torch.ops._c10d_functional
    assert functional.all_gather_into_tensor(x, 5, "0").shape == (10, 3, 4)
    assert functional.reduce_scatter_tensor(x, "sum", 2, "0").shape == (1, 3, 4)


@on_four_ranks
def test_p067_shapes_are_inferred_on_a_group_of_the_backend(rank: int) -> None:
    world, functional = dist.group.WORLD, torch.ops._c10d_functional
    assert world is not None
    x, out = torch.empty((2, 3), device="meta"), torch.empty((8, 3), device="meta")
    assert funcol.all_reduce(x, "sum", world).shape == (2, 3)
    gather = functional.all_gather_into_tensor_out
    assert gather(x, 4, world.group_name, out=out).shape == (8, 3)
    dist.all_gather_into_tensor(out, x)
    assert out.is_meta


@on_four_ranks
def test_p070_functional_all_to_all_single_with_uneven_splits_and_without(rank: int) -> None:
    mesh, n = flat(), 4
    sizes = [(at + 1) * (rank + 1) for at in range(n)]
    for shape in [(sum(sizes), 5), (sum(sizes),)]:
        got = funcol.all_to_all_single(torch.full(shape, rank + 1.0), sizes, sizes, mesh)
        wanted = [torch.full((size, *shape[1:]), at + 1.0) for at, size in enumerate(sizes)]
        assert got.tolist() == torch.cat(wanted).tolist()
    got = funcol.all_to_all_single(torch.full((n, n), rank + 1.0), None, None, mesh)
    assert got[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]


@on_four_ranks
def test_p072_permute_tensor_on_a_dimension_of_a_mesh(rank: int) -> None:
    grid = square()
    for name in ("dp", "tp"):
        mesh = grid[name]
        here = mesh.get_local_rank()
        got = funcol.permute_tensor(torch.arange(2.0) + 2 * here, [1, 0], group=mesh)
        assert got.tolist() == [2.0 * (1 - here), 2.0 * (1 - here) + 1]


@on_four_ranks
def test_p113_meshes_are_named_sliced_and_flattened(rank: int) -> None:
    grid = square()
    assert (grid.get_local_rank("dp"), grid.get_local_rank("tp")) == divmod(rank, 2)
    assert grid["tp"].mesh.tolist() == [rank // 2 * 2, rank // 2 * 2 + 1]
    assert dist.get_process_group_ranks(grid.get_group("dp")) == [rank % 2, rank % 2 + 2]
    assert {type(one).__module__ for one in grid.get_all_groups()} == {
        "allhands.torch.process_group"
    }
    assert tuple(grid.get_coordinate()) == divmod(rank, 2)
    whole = grid._flatten("all")
    x = torch.ones(1)
    dist.all_reduce(x, group=whole.get_group())
    assert (x.item(), whole.size(), whole.get_local_rank()) == (4.0, 4, rank)
    cube = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
    dist.all_reduce(x, group=cube["b"].get_group())
    dist.all_reduce(x, group=cube["a", "c"].get_group("c"))
    assert x.item() == 8.0


@on_ranks(2)
def test_a_functional_call_that_cannot_end_says_so_where_its_result_is_read(rank: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 1:
        return
    result = funcol.all_reduce(torch.ones(2), "sum", group)
    with pytest.raises(RuntimeError, match=r"all_reduce.* rank 1"):
        result + 1
