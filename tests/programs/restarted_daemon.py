"""Ranks that go on while their coordinator is killed and started again."""

import contextlib
import os

import numpy as np

import allhands as ah
from allhands.coordinator.client import Control
from programs.protocol import hear, tell


def call_meanwhile(rounds: int) -> None:
    """Make collectives and groups all the time; then shrink without rank 3."""
    ah.init_process_group(timeout=60)
    world = ah.default_group()
    store = ah.connect(timeout=60)
    rank, size = ah.get_rank(), ah.get_world_size()
    x = np.empty(64)
    tell("ready")
    for number in range(rounds):
        x[:] = rank + number
        ah.all_reduce(x)
        assert (x == sum(range(size)) + number * size).all()
        if number % (rounds // 20) == 0:
            make_group(rank)
            ah.monitored_barrier()
            use_store(store, rank, size, number)
            if rank == 0:
                tell("round", number=number)
                hear()
    counts = [store.add(name, 0) for name in ("count", "popped")]
    tell("sum", sum=float(x[0]), counts=counts, length=store.queue_length("values"))
    hear()
    if rank == 3:
        os._exit(9)
    with contextlib.suppress(ah.PeerFailed):
        while True:
            ah.all_reduce(x)
    rest = world.shrink()
    y = np.ones(2)
    ah.all_reduce(y, group=rest)
    store.close()
    tell("shrunk", size=rest.size, sum=float(y[0]))
    ah.destroy_process_group()


def make_group(rank: int) -> None:
    group = ah.new_group([0, 1, 2])
    if rank < 3:
        y = np.full(3, float(rank))
        ah.all_reduce(y, group=group)
        assert (y == 3).all()
        ah.destroy_process_group(group)


def use_store(store: Control, rank: int, size: int, number: int) -> None:
    """Write what shows whether each write was made once."""
    store.add("count", 1)
    store.put(f"key{rank}", f"{number}")
    assert store.get(f"key{rank}") == f"{number}".encode()
    store.queue_push("values", f"{rank}")
    store.queue_pop("values", wait=True)
    store.add("popped", 1)
    assert store.barrier(f"meet{number}", f"{rank}", [f"{one}" for one in range(size)]) == 1


def make_group_later() -> None:
    """Make a group after the coordinator has been started again."""
    ah.init_process_group(timeout=60)
    tell("ready")
    hear()
    group = ah.new_group([0, 1])
    x = np.ones(2)
    ah.all_reduce(x, group=group)
    tell("sum", sum=float(x[0]))
    hear()
    ah.destroy_process_group()
