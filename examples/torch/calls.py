"""The calls of torch.distributed that programs make themselves, and two ways to look at them.

    allhands run -n 4 examples/torch/calls.py
    torchrun --nproc-per-node 4 examples/torch/calls.py
    allhands run -n 4 examples/torch/calls.py --dump /tmp/calls/rank_
    python -m torch.distributed.flight_recorder.fr_trace /tmp/calls

Objects, messages around a ring, shares of different sizes, a sparse sum and a functional one; then
what PyTorch's profiler saw. With `--dump` each rank writes what it has called, for PyTorch's tool
that compares the ranks.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.profiler import ProfilerActivity, profile

import allhands.torch


def objects(rank: int, size: int) -> list[str]:
    """Return what every rank has said, after rank 0 has said what to say."""
    asked = ["name and place" if rank == 0 else None]
    dist.broadcast_object_list(asked, src=0)
    said: list[str | None] = [None] * size
    dist.all_gather_object(said, f"{asked[0]}: rank {rank} of {size}")
    return [one for one in said if one is not None]


def ring(rank: int, size: int) -> float:
    """Return what came around from the rank before, while the own number went to the next."""
    mine, came = torch.tensor([float(rank)]), torch.empty(1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (rank + 1) % size),
            dist.P2POp(dist.irecv, came, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    return float(came.item())


def shares(rank: int, size: int) -> list[float]:
    """Return what all ranks gave this one: rank r gives r + 1 numbers to each."""
    going = [rank + 1] * size
    coming = [other + 1 for other in range(size)]
    given = torch.full((sum(going),), float(rank))
    got = torch.empty(sum(coming))
    dist.all_to_all_single(got, given, coming, going)
    return list(got.tolist())


def sums(rank: int, size: int) -> tuple[list[float], list[float]]:
    """Return the sum of vectors that have one element each, and of whole ones."""
    one = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (size,), check_invariants=True)
    dist.all_reduce(one)
    world = dist.group.WORLD
    assert world is not None
    whole = all_reduce(torch.full((2,), 1.0 + rank), "sum", world)
    return list(one.to_dense().tolist()), list(whole.tolist())


def main() -> None:
    """Make the calls, and show what they gave."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--dump", help="what the files of the flight recorder begin with")
    dump = arguments.parse_args().dump
    dist.init_process_group("allhands")
    rank, size = dist.get_rank(), dist.get_world_size()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        said, came = objects(rank, size), ring(rank, size)
        got, (sparse, whole) = shares(rank, size), sums(rank, size)
    if rank == 0:
        print("\n".join(said))
        print(f"around the ring: {came}")
        print(f"shares: {got}")
        print(f"sparse sum: {sparse}, functional sum: {whole}")
        events = profiled.key_averages()
        calls = sorted(event.key for event in events if event.key.startswith("allhands:"))
        print(f"the profiler saw: {', '.join(calls)}")
    if dump:
        allhands.torch.dump_flight_recorder(dump)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
