"""Ray's own collective calls over allhands; a coordinator has to run already.

allhands serve &
ALLHANDS_URL=ah://127.0.0.1:7070 python examples/on_ray_collective.py
"""

import sys

import numpy as np
import ray
from ray.util import collective

import allhands.ray


class Worker:
    """An actor of a collective group."""

    def __init__(self) -> None:
        allhands.ray.register()

    def average(self, value: float) -> float:
        """Return the average of the values of all actors."""
        x = np.full(1000, value)
        collective.allreduce(x, "train")
        size: int = collective.get_collective_group_size("train")
        return float(x[0]) / size

    def leave(self) -> None:
        collective.destroy_collective_group("train")


Actor = ray.remote(num_cpus=1)(Worker)


def main(size: int = 2) -> None:
    ray.init(log_to_driver=False, namespace="averages")
    allhands.ray.register()
    try:
        actors = [Actor.remote() for _ in range(size)]
        collective.create_collective_group(
            actors, size, list(range(size)), backend=allhands.ray.NAME, group_name="train"
        )
        averages = ray.get([one.average.remote(rank) for rank, one in enumerate(actors)])
        print(f"{size} actors have the averages {averages}")
        ray.get([one.leave.remote() for one in actors])
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
