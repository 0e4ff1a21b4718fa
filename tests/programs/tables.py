"""Ranks with a table of cases over shared memory."""

import numpy as np

import allhands as ah
from programs.protocol import tell
from support.arrays import dtype_cases, faulty_calls


def run_every_dtype_case() -> None:
    ah.init_process_group(timeout=30)
    n, me = ah.get_world_size(), ah.get_rank()
    ah.all_reduce(np.ones(1))
    assert "shared memory" in ah.default_group().explain()
    tell("done", rows=dtype_cases.outcomes(me, n))
    ah.destroy_process_group()


def make_faulty_calls(count: int) -> None:
    ah.init_process_group(timeout=30)
    n, me = ah.get_world_size(), ah.get_rank()
    wrong = []
    for seed in range(count):
        group = ah.new_group(range(n))
        assert isinstance(group, ah.Group)
        ah.barrier(group=group)
        one = faulty_calls.from_random(seed, n)
        if said := one.make(me, n, group):
            wrong.append(f"{one}: {said}")
        ah.barrier()
    tell("done", wrong=wrong)
    ah.destroy_process_group()
