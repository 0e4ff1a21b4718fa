"""Rank of a job whose start is measured: joins, reduces one array, and tells.

It imports no more than a program needs for that.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allhands.bench.ipc import JsonConnection
from allhands.bench.systems import names

_Reduce: TypeAlias = Callable[[NDArray[np.float32]], object]
_Joined: TypeAlias = tuple[int, int, _Reduce, Callable[[], object]]
"""Rank, size, all_reduce, and how to leave."""


def _join(system: str, meeting: str) -> _Joined:
    if system in names.MPI:
        from mpi4py import MPI

        world: Any = MPI.COMM_WORLD
        rank, size = world.Get_rank(), world.Get_size()
        return rank, size, lambda x: world.Allreduce(MPI.IN_PLACE, x), MPI.Finalize
    if system in names.ALLHANDS and system != names.TORCH:
        import allhands as ah

        ah.init_process_group()
        return ah.get_rank(), ah.get_world_size(), ah.all_reduce, ah.destroy_process_group
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "allhands" if system == names.TORCH else system
    dist.init_process_group(backend, f"file://{meeting}", rank=rank, world_size=size)
    return rank, size, lambda x: dist.all_reduce(torch.from_numpy(x)), dist.destroy_process_group


def _read_own_bytes() -> int:
    """Return the memory that no other process shares."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def main(arguments: Sequence[str]) -> None:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    rank, size, reduce, leave = _join(options["--contender"], options["--meeting"])
    x = np.full(2, rank + 1, np.float32)
    reduce(x)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(options["--driver"])
    driver = JsonConnection(connection)
    driver.send({"rank": rank, "size": size, "about": {}, "result": x.tolist()})
    while (order := driver.receive()) is not None and order["do"] != "leave":
        threads = len(os.listdir("/proc/self/task"))
        driver.send({"result": x.tolist(), "uss": _read_own_bytes(), "threads": threads})
    leave()
    driver.send({"left": True})


if __name__ == "__main__":
    main(sys.argv[1:])
