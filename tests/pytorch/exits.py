"""A program with one of many ends on each rank; `test_exits` runs the program.

    python exits.py FOLDER WAY...

It imports torch once, forks two ranks for each way, lets the interpreter end there as it does at
the end of any program, and prints the exit status and the errors of each rank as JSON.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import allhands.torch
import allhands.torch.patches
import allhands.torch.worlds

SECONDS = 30


def joins(rank: int, store: Path) -> None:
    dist.init_process_group(
        "allhands",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=SECONDS),
    )


def without_a_word(rank: int) -> None:
    dist.all_reduce(torch.ones(4))


def with_calls_in_flight(rank: int) -> None:
    for size in (4, 1 << 16):
        dist.all_reduce(torch.ones(size), async_op=True)
        for _ in range(10):
            work = dist.all_reduce(torch.ones(size).reshape(2, -1).t(), async_op=True)
            work.get_future().then(lambda future: [one.sum() for one in future.value()])


def with_a_group_in_use_by_ddp(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8), process_group=dist.new_group([0, 1]))
    model(torch.ones(2, 8)).sum().backward()


def at_exit(rank: int) -> None:
    atexit.register(dist.destroy_process_group)
    dist.all_reduce(torch.ones(4))


def aborted(rank: int) -> None:
    dist.barrier()
    if rank == 0:
        dist.group.WORLD.abort()
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(4))
        return
    sys.exit(3)


def recovered(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    allhands.torch.recover()
    dist.all_reduce(torch.ones(4), group=dist.new_group(backend="gloo"))


def with_an_error(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        raise LookupError("a bug of this rank")
    dist.all_reduce(torch.ones(4))


def with_a_thread_in_a_call(rank: int) -> None:
    def wait() -> None:
        with contextlib.suppress(RuntimeError):
            dist.recv(torch.ones(1), 1 - rank)

    threading.Thread(target=wait, daemon=True).start()
    dist.barrier()


def run(way: str, rank: int, store: Path) -> None:
    torch.set_num_threads(1)
    joins(rank, store)
    globals()[way](rank)


def main() -> None:
    folder, *ways = sys.argv[1:]
    ranks = []
    for way in ways:
        for rank in range(2):
            errors = tempfile.TemporaryFile()  # noqa: SIM115
            if (pid := os.fork()) == 0:
                os.dup2(errors.fileno(), 2)
                run(way, rank, Path(folder) / way)
                return
            ranks.append((way, pid, errors))
    said: dict[str, list[tuple[int, str]]] = {way: [] for way in ways}
    for way, pid, errors in ranks:
        _, status = os.waitpid(pid, 0)
        errors.seek(0)
        said[way].append((os.waitstatus_to_exitcode(status), errors.read().decode()))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
