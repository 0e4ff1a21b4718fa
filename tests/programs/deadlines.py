"""Calls within deadlines of blocks, and long calls."""

import logging
import time

import numpy as np

import allhands as ah
from allhands.engine.failures import slow_calls
from programs.protocol import failure, hear, tell


def call_within_deadlines() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()
    x, big = np.ones(3), np.ones(100_000)
    prepared = ah.all_reduce_init(x)
    pair = ah.new_group([0, 1])
    store = ah.store()

    def persist():
        prepared.start()
        prepared.wait()

    collectives = [
        lambda: ah.all_reduce(x),
        lambda: ah.all_reduce(big, timeout=20),
        lambda: ah.barrier(pair),
        lambda: ah.all_reduce(x, async_op=True).wait(),
        persist,
    ]
    others = [lambda: ah.recv(x, 1), lambda: ah.recv(x, 1, pair, 5), lambda: store.get("nothing")]
    for seconds in (0.05, 0):
        for call in [*collectives, *(others if me == 0 else [])]:
            if me == 1:
                hear()
            with ah.deadline(10), ah.deadline(0.2 if me else seconds), ah.deadline(20):
                said = failure(call)
            if me == 0:
                tell("ended", **said)
    y = np.ones(3)
    ah.all_reduce(y)
    ah.send(y, 1) if me == 0 else ah.recv(y, 0)
    tell("next", y=y.tolist())
    ah.destroy_process_group()


def leave_after_a_timeout(apart: float) -> None:
    """Let rank 0 leave after a wait for rank 2 in vain, and rank 1 wait `apart` longer."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    due = np.array([time.monotonic() + 1.5])  # one clock: however late a rank begins
    ah.broadcast(due, 0)
    if me == 2:
        hear()
    else:
        with ah.deadline(due[0] + me * apart - time.monotonic()):
            tell("ended", **failure(lambda: ah.all_reduce(np.ones(3))))
    ah.destroy_process_group()


def log_a_slow_call() -> None:
    slow_calls.MAX_PATIENCE = 0.1

    class Teller(logging.Handler):
        def emit(self, record):
            tell("log", text=record.getMessage(), **getattr(record, "allhands", {}))

    logging.getLogger("allhands").addHandler(Teller())
    ah.init_process_group(timeout=30)
    ah.barrier()
    if ah.get_rank() == 1:
        hear()
    ah.all_reduce(np.ones(3), timeout=1 if ah.get_rank() == 0 else 30)
    ah.barrier()
    ah.destroy_process_group()
