"""Ranks in actors of Ray, which average what each has; a coordinator has to run already.

    allhands serve &
    ALLHANDS_URL=ah://127.0.0.1:7070 python examples/on_ray.py

On a cluster set ALLHANDS_URL and ALLHANDS_TLS_DIR before `ray start` on each node: actors have the
environment of their node, and no token passes through Ray.
"""

import secrets
import sys

import numpy as np
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import allhands as ah


class Rank:
    """One rank, as long as its actor lives."""

    def __init__(self, job: str, rank: int, size: int) -> None:
        # All actors are constructed at once, and each waits here for the others.
        ah.init_process_group(job=job, rank=rank, world_size=size, timeout=120)

    def average(self, count: int) -> float:
        """Return the average of this rank's array with those of all others."""
        x = np.full(count, float(ah.get_rank()))
        ah.all_reduce(x, ah.ReduceOp.AVG)
        return float(x[0])

    def leave(self) -> None:
        """Leave the world; else the others are told that this rank is lost."""
        ah.destroy_process_group()


Actor = ray.remote(num_cpus=1)(Rank)


def main(size: int = 2) -> None:
    ray.init(log_to_driver=False)
    job = f"ray-{secrets.token_hex(4)}"
    try:
        # All or none: ranks would wait for one for which there is no processor.
        room = placement_group([{"CPU": 1}] * size)
        ray.get(room.ready(), timeout=60)
        place = PlacementGroupSchedulingStrategy(room)
        ranks = [
            Actor.options(scheduling_strategy=place).remote(job, rank, size) for rank in range(size)
        ]
        averages = ray.get([one.average.remote(1000) for one in ranks])
        print(f"{size} ranks of job {job} have the averages {averages}")
        ray.get([one.leave.remote() for one in ranks])
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
