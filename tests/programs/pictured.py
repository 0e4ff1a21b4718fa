"""Ranks of a job of which pictures are taken: it runs, it stalls, or it fails.

This is a script: its first argument names a function, the others are for that.
"""

import sys
import time

import numpy as np

import allhands as ah

_SECONDS = 4.0
"""For which all goes well."""


def train(fate: str) -> None:
    """Step with the others; then `run` goes on, `stall` has rank 5 stay away, `fail` has 3 fail."""
    ah.init_process_group()
    rank = ah.get_rank()
    halves = [ah.new_group(list(range(first, first + 4))) for first in (0, 4)]
    gradient, is_over = np.ones(1 << 16, np.float32), np.zeros(1, np.float32)
    end = time.monotonic() + _SECONDS
    while not is_over[0]:
        compute(rank)
        ah.all_reduce(gradient, group=halves[rank // 4])
        is_over[0] = fate != "run" and time.monotonic() > end
        ah.all_reduce(is_over)
    if fate == "stall" and rank == 5:
        load_batch()
    if fate == "fail" and rank == 3:
        raise ValueError("the loss is not finite")
    ah.barrier()


def compute(rank: int) -> None:
    """Take a little time, on rank 5 a little more."""
    time.sleep(0.02 + 0.004 * (rank == 5))


def load_batch() -> None:
    """Wait for data that do not come."""
    time.sleep(600)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
