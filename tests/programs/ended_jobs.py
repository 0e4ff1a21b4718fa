"""Ranks of jobs that end, well or not, for later questions of commands."""

import os
import signal

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell


def _begin(links: str = "auto") -> tuple[int, npt.NDArray[np.float64]]:
    """Make 20 calls, and wait for a word; return the rank and the array of the calls."""
    ah.init_process_group(timeout=40, backend=links)
    x = np.ones(4)
    for _ in range(20):
        ah.all_reduce(x, label="step")
    tell("ready")
    hear()
    return ah.get_rank(), x


def lose_rank_two(links: str) -> None:
    """Be in a call without rank 2; end then without a goodbye, as where a launcher ends ranks."""
    me, x = _begin(links)

    def step() -> None:
        ah.all_reduce(x, label="grad")

    if me != 2:
        tell("told", **failure(step))
        hear()
        os._exit(1)
    hear()


def raise_on_rank_two() -> None:
    me, _ = _begin()
    if me == 2:
        raise LookupError("no such row")
    ah.barrier()


def leave_on_rank_two() -> None:
    me, _ = _begin()
    if me != 2:
        ah.barrier()
    ah.destroy_process_group()


def block_on_rank_one() -> None:
    me, _ = _begin()
    if me:
        ah.barrier()
    else:
        hear()


def end_well() -> None:
    _begin()
    ah.destroy_process_group()


def exit_without_a_call() -> None:
    ah.init_process_group()
    os._exit(3)


def go_on_without_rank_one() -> None:
    ah.init_process_group(timeout=40, on_failure="shrink", min_size=1)
    x = np.ones(4)
    ah.all_reduce(x)
    tell("ready")
    hear()
    if ah.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ah.all_reduce(x)
    ah.destroy_process_group()
