"""DeviceMesh: ranks in several dimensions, with a group along each."""

import numpy as np
import pytest

import allhands as ah
from allhands.testing import on_threads


def _total(group: ah.Group) -> float:
    x = np.full(2, float(ah.get_rank()))
    ah.all_reduce(x, group=group)
    return float(x[0])


@on_threads(6)
def test_p113_mesh_has_a_group_along_each_dimension(rank: int):
    mesh = ah.init_device_mesh((2, 3), mesh_dim_names=("dp", "tp"))
    row, column = divmod(rank, 3)
    assert (mesh.ndim, mesh.shape, mesh.size(), mesh.size(0), mesh.size("tp")) == (
        *(2, (2, 3), 6, 2, 3),
    )
    assert mesh.get_coordinate() == [row, column]
    assert mesh.get_rank() == rank
    assert [mesh.get_local_rank(0), mesh.get_local_rank("tp")] == [row, column]
    assert mesh.get_group("dp") is mesh.get_group(0) is mesh.get_group(-2)
    assert [group.ranks for group in mesh.get_all_groups()] == [
        (column, column + 3),
        (3 * row, 3 * row + 1, 3 * row + 2),
    ]
    assert _total(mesh.get_group("dp")) == 2 * column + 3
    assert _total(mesh.get_group("tp")) == 9 * row + 3


@on_threads(8)
def test_p113_mesh_is_sliced_by_name(rank: int):
    mesh = ah.init_device_mesh((2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    tp = mesh["tp"]
    assert (tp.ndim, tp.shape, tp.mesh_dim_names) == (1, (2,), ("tp",))
    assert tp.get_group() is mesh.get_group("tp")  # no group is made for it
    assert tp.get_local_rank() == rank % 2
    assert tp.mesh.tolist() == [rank // 2 * 2, rank // 2 * 2 + 1]

    pair = mesh["dp", "tp"]
    cp = rank // 2 % 2
    assert pair.mesh.tolist() == [[2 * cp, 2 * cp + 1], [2 * cp + 4, 2 * cp + 5]]
    assert pair.get_coordinate() == [rank // 4, rank % 2]
    assert pair["dp"].get_group() is mesh.get_group("dp")

    turned = mesh["tp", "dp"]
    assert turned.mesh.tolist() == pair.mesh.T.tolist()
    assert turned.get_coordinate() == [rank % 2, rank // 4]
    assert turned.get_group(0) is mesh.get_group("tp")
    assert mesh["dp", "cp", "tp"] is mesh


@on_threads(8)
def test_p113_mesh_is_flattened(rank: int):
    mesh = ah.init_device_mesh((2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    flat = mesh["dp", "cp"].flatten()
    ranks = [rank % 2 + 2 * at for at in range(4)]
    assert flat.mesh.tolist() == ranks
    assert flat.mesh_dim_names == ("dp_cp",)
    assert flat.get_local_rank() == rank // 2
    assert _total(flat.get_group()) == sum(ranks)
    assert mesh["dp", "cp"].flatten() is flat
    assert mesh["dp_cp"] is flat
    assert mesh["cp", "tp"].flatten("model").get_group().size == 4
    assert mesh["model"].mesh_dim_names == ("model",)
    assert mesh["dp"].flatten() is not mesh  # one dimension is flat
    whole = mesh.flatten()
    assert whole.get_group() is ah.default_group()
    for name in ("dp", "model"):
        with pytest.raises(ValueError, match="already exists for submesh"):
            mesh["dp", "tp"].flatten(name)


@on_threads(4)
def test_p113_mesh_of_ranks_in_any_order(rank: int):
    mesh = ah.DeviceMesh(np.array([[3, 1], [0, 2]]), mesh_dim_names=["a", "b"])
    assert mesh.get_group("a").ranks == ((3, 0) if rank in (3, 0) else (1, 2))
    assert mesh.get_local_rank("b") == {3: 0, 1: 1, 0: 0, 2: 1}[rank]
    assert ah.DeviceMesh([0, 1, 2, 3]).get_group() is ah.default_group()


@on_threads(3)
def test_p113_rank_outside_the_mesh(rank: int):
    mesh = ah.init_device_mesh((2,), ("dp",))
    assert mesh.size() == 2
    if rank == 2:
        assert mesh.get_coordinate() is None
        for ask in (mesh.get_group, mesh.get_local_rank, mesh.get_all_groups):
            with pytest.raises(RuntimeError, match="rank 2 is not in DeviceMesh"):
                ask()
    else:
        assert _total(mesh.get_group()) == 1


@on_threads(4)
def test_p113_two_meshes_have_groups_of_their_own():
    first, second = (ah.init_device_mesh((2, 2)) for _ in range(2))
    assert first.get_group(0) is not second.get_group(0)
    for mesh in (second, first):
        assert _total(mesh.get_group(0)) in (2, 4)


@on_threads(4)
def test_p113_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="should not be bigger than default world size 4"):
        ah.init_device_mesh((2, 3))
    with pytest.raises(ValueError, match="should have same length"):
        ah.init_device_mesh((2, 2), ("dp",))
    with pytest.raises(ValueError, match="must be unique"):
        ah.init_device_mesh((2, 2), ("dp", "dp"))
    with pytest.raises(ValueError, match="each once at most"):
        ah.DeviceMesh([0, 1, 1])
    with pytest.raises(ValueError, match="from 0 to 3"):
        ah.DeviceMesh([0, 4])
    with pytest.raises(TypeError, match="made of ranks"):
        ah.DeviceMesh([0.5, 1.0])
    with pytest.raises(TypeError, match="takes a shape"):
        ah.init_device_mesh("cpu", (2, 2))  # type: ignore[arg-type]


@on_threads(4)
def test_p113_dimension_that_is_not_there_is_refused():
    mesh = ah.init_device_mesh((2, 2), ("dp", "tp"))
    with pytest.raises(KeyError, match="Invalid mesh_dim_name 'pp'"):
        mesh["pp"]
    with pytest.raises(KeyError, match="Invalid mesh_dim_name"):
        mesh.get_group("pp")
    with pytest.raises(ValueError, match="name each dimension once"):
        mesh["dp", "dp"]
    with pytest.raises(IndexError, match="there is no dimension 2"):
        mesh.get_group(2)
    with pytest.raises(RuntimeError, match="DeviceMesh have 2 dimensions"):
        mesh.get_group()
    with pytest.raises(RuntimeError, match="without mesh_dim_names"):
        ah.init_device_mesh((2, 2))["dp"]
    with pytest.raises(ValueError, match="read-only"):
        mesh.mesh[0, 0] = 3


def test_p113_mesh_of_many_ranks_that_are_not_there():
    ah.init_process_group(backend="fake", rank=77, world_size=128)
    try:
        mesh = ah.init_device_mesh((4, 2, 16), mesh_dim_names=("dp", "cp", "tp"))
        assert mesh.get_coordinate() == [2, 0, 13]
        assert mesh.get_group("dp").ranks == (13, 45, 77, 109)
        flat = mesh["dp", "cp"].flatten()
        assert flat.get_group().ranks == tuple(range(13, 128, 16))
        assert flat.get_local_rank() == 4
        whole = ah.functional.all_gather_tensor(np.ones((3, 2)), 1, (mesh, "tp"))
        assert whole.shape == (3, 32)
    finally:
        ah.destroy_process_group()
