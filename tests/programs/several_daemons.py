"""Ranks that do as they are told while daemons and their store come and go."""

import numpy as np

import allhands as ah
from programs.protocol import hear, tell


def obey(timeout: float) -> None:
    """Reduce, or make a group and reduce there, for each line; end with `end`."""
    ah.init_process_group(timeout=timeout)
    rank, size = ah.get_rank(), ah.get_world_size()
    tell("ready")
    while (order := hear()) != "end":
        group = None if order == "reduce" else ah.new_group(range(size))
        for number in range(50):
            x = np.full(64, float(rank + number))
            ah.all_reduce(x, group=group)
            assert (x == sum(range(size)) + number * size).all()
        tell("done", order=order)
    ah.destroy_process_group()
    tell("ended")
