"""Meshes of groups that exist, and the namespace `group` with the world."""

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


@on_threads(4)
def test_a_mesh_takes_the_groups_it_is_given(rank: int) -> None:
    row = ah.new_group([0, 1] if rank < 2 else [2, 3])
    column = ah.new_group([rank % 2, rank % 2 + 2])
    mesh = ah.DeviceMesh.from_group(
        [column, row], np.arange(4).reshape(2, 2), mesh_dim_names=("dp", "tp")
    )
    assert mesh.get_group("dp") is column
    assert mesh.get_all_groups() == [column, row]
    assert (mesh.shape, mesh.get_coordinate()) == ((2, 2), [rank // 2, rank % 2])
    assert mesh["tp"].get_group() is row
    assert mesh["tp"].mesh.tolist() == list(row.ranks)
    flat = mesh.flatten()
    assert flat.get_group().ranks == (0, 1, 2, 3)


@on_threads(3)
def test_a_mesh_of_one_group_has_its_ranks_in_its_order(rank: int) -> None:
    group = ah.new_group([2, 0])
    mesh = ah.DeviceMesh.from_group(group, mesh_dim_names=("dp",))
    assert (mesh.mesh.tolist(), mesh.mesh_dim_names) == ([2, 0], ("dp",))
    assert mesh.get_coordinate() == {0: [1], 1: None, 2: [0]}[rank]
    if rank != 1:
        assert mesh.get_group() is group
        x = np.ones(1)
        ah.all_reduce(x, group=mesh.get_group("dp"))
        assert x[0] == 2
    assert ah.DeviceMesh.from_group([group], [2, 0], mesh_dim_names=["a"]).mesh.tolist() == [2, 0]


@on_threads(2)
def test_groups_that_do_not_make_a_mesh_are_refused(rank: int) -> None:
    world, alone = ah.default_group(), ah.new_group([rank])
    from_group = ah.DeviceMesh.from_group
    with pytest.raises(ValueError, match=r"has ranks \[0, 1\], and the mesh has \[1, 0\]"):
        from_group(world, [1, 0])
    with pytest.raises(ValueError, match="one group at least"):
        from_group([])
    with pytest.raises(ValueError, match="needs mesh, "):
        from_group([world, alone])
    with pytest.raises(ValueError, match="needs mesh_dim_names"):
        from_group([world, alone], [[0], [1]])
    with pytest.raises(ValueError, match="2 dimensions has as many groups, not 1"):
        from_group(world, [[0, 1]])
    with pytest.raises(ValueError, match="along dimension 0 through this rank"):
        from_group([alone, world], [[0], [1]], mesh_dim_names=("a", "b"))
    with pytest.raises(ValueError, match="and not in the mesh"):
        from_group(alone, [1 - rank])
    with pytest.raises(ValueError, match=r"has 2 names, the mesh 1 dimensions"):
        from_group(world, mesh_dim_names=("a", "b"))
    with pytest.raises(TypeError, match="takes a group or several, not 3"):
        from_group([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"ranks of .* are not known here: give mesh"):
        from_group(ah.NonMember("elsewhere"))


@on_threads(3)
def test_the_world_is_in_the_namespace_group(rank: int) -> None:
    assert ah.group.WORLD is ah.default_group()
    assert ah.get_rank(ah.group.WORLD) == rank
    assert ah.is_available()
    assert ah.get_backend() == ah.get_backend(ah.group.WORLD) == "threads"
    small = ah.new_group([0, 1])
    if isinstance(small, ah.Group):
        assert ah.get_backend(small) == "threads"
    else:
        with pytest.raises(ValueError, match="does not belong to group"):
            ah.get_backend(small)


@pytest.mark.parametrize("backend", ["auto", "fake"])
def test_backend_is_what_the_world_was_joined_with(backend: str) -> None:
    assert ah.group.WORLD is None
    with pytest.raises(RuntimeError, match="init_process_group"):
        ah.get_backend()
    ah.init_process_group(backend=backend, rank=0, world_size=1)
    try:
        assert ah.group.WORLD is ah.default_group()
        assert ah.get_backend() == backend
    finally:
        ah.destroy_process_group()
    assert ah.group.WORLD is None
    with pytest.raises(AttributeError, match="has no attribute 'WORLDS'"):
        ah.group.WORLDS  # type: ignore[attr-defined]  # noqa: B018


@on_threads(2)
def test_newer_names_of_calls_are_the_same_calls(rank: int) -> None:
    output = np.zeros(4)
    ah.all_gather_single(output, np.full(2, float(rank)))
    assert output.tolist() == [0, 0, 1, 1]
    block = np.zeros(2)
    work = ah.reduce_scatter_single(block, np.arange(4.0), async_op=True)
    work.wait()
    assert block.tolist() == [[0, 2], [4, 6]][rank]
