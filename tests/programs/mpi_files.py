"""Ranks that read and write files with the MPI of allhands."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from programs.protocol import tell


def _start() -> Any:
    from allhands.mpi import MPI

    return MPI


def share_pointers(folder: str) -> None:
    """A pointer of all ranks: moved by one rank, by threads, in order, set, and at the end."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    path = Path(folder) / "pointers"
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    if rank == size - 1:
        file.Write_shared(np.zeros(10, np.uint8))  # the others make no call
    comm.Barrier()
    assert file.Get_position_shared() == 10
    comm.Barrier()

    def write() -> None:
        for _ in range(50):
            file.Write_shared(np.full(2, rank + 1, np.uint8))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.Seek_shared(2, MPI.SEEK_CUR)  # behind what all have written before it
    assert file.Get_position_shared() == 10 + size * 300 + 2
    comm.Barrier()
    content = np.frombuffer(path.read_bytes(), np.uint8)[10:]
    assert np.bincount(content).tolist() == [0] + [300] * size
    comm.Barrier()
    file.Set_size(0)
    file.Set_view(0, MPI.INT64_T)
    file.Write_ordered(np.full(rank + 1, rank))
    got = np.full(size + 1, -1)
    status = MPI.Status()
    file.Seek_shared(0)
    file.Read_ordered_begin(got[: rank + 1])
    with pytest.raises(MPI.Exception, match="Read_ordered_end first"):
        file.Read_all_begin(got)
    file.Read_ordered_end(got[: rank + 1], status)
    assert got.tolist() == [rank] * (rank + 1) + [-1] * (size - rank)
    assert status.Get_count(MPI.INT64_T) == rank + 1
    file.Close()
    length = path.stat().st_size
    file = MPI.File.Open(comm, path, MPI.MODE_WRONLY | MPI.MODE_APPEND)
    assert file.Get_position() == file.Get_position_shared() == length
    file.Close()
    tell(what="done")


def fail_alone(folder: str) -> None:
    """One rank fails in collective calls: all do, and go on."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank = comm.rank
    path = Path(folder) / "failures"
    create = MPI.MODE_CREATE | MPI.MODE_RDWR

    def fails(code: int, text: str, call: Any, *arguments: Any) -> None:
        with pytest.raises(MPI.Exception, match=text) as caught:
            call(*arguments)
        assert caught.value.Get_error_class() == code, str(caught.value)

    fails(MPI.ERR_AMODE, "opened with one of", MPI.File.Open, comm, path, create if rank else 0)
    assert not path.exists(), "rank 0 has not created it"
    fails(
        MPI.ERR_NOT_SAME,
        "rank 0",
        MPI.File.Open,
        comm,
        path,
        create | (MPI.MODE_APPEND if rank else 0),
    )
    fails(
        MPI.ERR_NO_SUCH_FILE,
        "rank 1: .*absent|^MPI_ERR_NO_SUCH_FILE: .*absent",
        MPI.File.Open,
        comm,
        str(path) + (".absent" if rank == 1 else ""),
        MPI.MODE_RDWR,
    )
    file = MPI.File.Open(comm, path, create | MPI.MODE_DELETE_ON_CLOSE)
    fails(
        MPI.ERR_UNSUPPORTED_DATAREP,
        "nonsense",
        file.Set_view,
        0,
        MPI.INT,
        None,
        "native" if rank else "nonsense",
    )
    fails(MPI.ERR_ARG, "no file has -1 bytes", file.Set_size, -1)
    fails(MPI.ERR_IO, "File too large", file.Set_size, 1 << 62)
    fails(MPI.ERR_ARG, "before the view", file.Seek_shared, -1)
    file.Set_size(16)
    assert file.Get_size() == 16
    if rank == 0:
        path.unlink()
    fails(MPI.ERR_NO_SUCH_FILE, "failures", file.Close)
    assert file == MPI.FILE_NULL
    tell(what="done")


def keep_views(folder: str) -> None:
    """Views that outlive datatypes and handles; external32; what modes refuse."""
    MPI = _start()
    comm = MPI.COMM_WORLD
    rank, size = comm.rank, comm.size
    path = Path(folder) / "views"
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
    other = MPI.File(file)
    numbers = np.arange(3000, dtype=np.int32)
    stripe = MPI.INT32_T.Create_vector(10, 1, size).Create_resized(0, 40 * size).Commit()
    file.Set_view(4 * rank, MPI.INT32_T, stripe, "external32")
    stripe.Free()
    file.Write_all([numbers + rank, MPI.INT32_T])
    assert other.Get_position() == 3000, "handles have one position"
    disp, etype, tile, datarep = other.Get_view()
    assert (disp, etype.Get_size(), tile.Get_size(), datarep) == (4 * rank, 4, 40, "external32")
    with pytest.raises(NotImplementedError, match="INT64_T"):
        file.Write(np.zeros(4, np.int64))  # MPI.LONG
    comm.Barrier()
    assert path.read_bytes() == (numbers[:, None] + np.arange(size)).astype(">i4").tobytes()
    got = np.full(4000, -1, np.int32)
    status = MPI.Status()
    file.Read_at(7, [got, MPI.INT32_T], status)
    assert status.Get_count(MPI.INT32_T) == 2993
    assert (got[:2993] == numbers[7:] + rank).all()
    assert (got[2993:] == -1).all()
    file.Close()
    with pytest.raises(MPI.Exception, match="is closed"):
        other.Get_size()
    file = MPI.File.Open(comm, path)
    with pytest.raises(MPI.Exception) as caught:
        file.Write(numbers)
    assert caught.value.Get_error_class() == MPI.ERR_READ_ONLY
    assert file.Get_position() == 0
    file.Close()
    file = MPI.File.Open(comm, path, MPI.MODE_WRONLY | MPI.MODE_SEQUENTIAL)
    with pytest.raises(MPI.Exception) as caught:
        file.Write_at(0, numbers)
    assert caught.value.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION
    file.Write_ordered(b"ab")
    file.Close()
    assert path.read_bytes()[: 2 * size] == b"ab" * size
    tell(what="done")


def share_nothing(folder: str) -> None:
    """Ranks that see one another's processes nowhere: no pointer of all, and all else."""
    MPI = _start()
    from allhands.mpi.files import opening

    comm = MPI.COMM_WORLD
    vars(opening)["name_host"] = lambda: f"host {comm.rank}"
    file = MPI.File.Open(comm, Path(folder) / "hosts", MPI.MODE_CREATE | MPI.MODE_RDWR)
    file.Set_view(comm.rank, MPI.BYTE)
    file.Write_all(b"x")
    for call in (file.Write_shared, file.Write_ordered):
        with pytest.raises(NotImplementedError, match="Write_at"):
            call(b"y")
    with pytest.raises(NotImplementedError, match="on one host only"):
        file.Seek_shared(0)
    file.Sync()
    assert file.Get_size() == comm.size
    file.Close()
    tell(what="done")
