"""Ranks with links through a proxy with a plan of faults."""

import contextlib
import os
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands.testing.faults import Plan, faults
from allhands.testing.proxy import BLOCK, links_through
from programs.protocol import failure, hear, tell, until

Joined = tuple[Plan, int, npt.NDArray[np.float32]]


@contextlib.contextmanager
def joined(*, verify: bool = False) -> Iterator[Joined]:
    """Join a world through a proxy; yield plan, rank, and an array summed before.

    A program that ends well leaves the world; a program cut off ends the process itself.
    """
    plan = faults(seed=7)
    me = int(os.environ["RANK"])
    with contextlib.ExitStack() as through:
        through.enter_context(links_through(plan, me))
        ah.init_process_group(timeout=30, backend="socket", verify=verify)
        x = np.ones(400_000, np.float32)
        ah.all_reduce(x)
        yield plan, me, x
        ah.destroy_process_group()


def flip_a_bit() -> None:
    with joined(verify=True) as (plan, me, x):
        ah.barrier()
        if me == 1:
            plan.flip(link=(0, 1), nth=700, bit=BLOCK * 4)
        ah.barrier()
        link: tuple[int, int] | None = None
        try:
            for _ in range(10):
                x[:] = 1
                ah.all_reduce(x)
                assert (x == 3).all()
        except ah.DataCorrupted as error:
            link = error.link
        tell("told", link=link, flips=[event.ranks for event in plan.log])
        x[:] = 1
        ah.all_reduce(x)
        tell("sum", sum=float(x.sum()))


def part_two_ranks() -> None:
    with joined() as (plan, _, x):
        ah.barrier()
        plan.partition({0}, {1})
        x[:] = 1
        tell("failed", **failure(lambda: ah.all_reduce(x, timeout=2)))
        hear()  # the other may still be in the call
        plan.is_over = True
        os._exit(0)


def cut_a_link() -> None:
    with joined() as (plan, me, x):
        ah.barrier()
        if me == 1:
            plan.cut(link=(0, 1))
        x[:] = 1
        errors = []
        for _ in range(2):
            errors.append(failure(lambda: ah.all_reduce(x, timeout=10)))
        tell("failed", **errors[-1])
        os._exit(0)


def slow_a_link_down() -> None:
    with joined() as (plan, me, x):
        ah.barrier()
        if me == 1:
            plan.slow(2_000_000, link=(0, 1)).delay(0.001, link=(0, 1), probability=0.01)
        x[:] = me + 1
        begun = time.monotonic()
        ah.all_reduce(x)
        tell("sum", right=bool((x == 3).all()), took=time.monotonic() - begun)
        plan.is_over = True


def be_parted_from_the_coordinator() -> None:
    ah.init_process_group(timeout=20, heartbeat_window=1.0)
    tell("here")
    if ah.get_rank() == 1:
        hear()
        # Before it hears of it, it may still end what rank 0 began.
        until(lambda: failure(lambda: ah.barrier(timeout=1))["error"] == "MembershipChanged")
    tell("failed", **failure(lambda: ah.barrier(timeout=10)))
    os._exit(0)
