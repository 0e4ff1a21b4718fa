"""Calls whose other ranks do not come: what their errors say of the outputs."""

import os

import allhands as ah
from programs.protocol import hear, tell
from support.arrays.collective_cases import EVERY, case


def time_out_of_every_kind(length: int) -> None:
    """Rank 0, the root, makes a call of each kind alone, after one that all have made."""
    ah.init_process_group(timeout=20)
    n, me = ah.get_world_size(), ah.get_rank()
    wrong: list[str] = []
    for name in EVERY:
        group = ah.new_group()
        one = case(name, me, n, length, seed=1)
        one.run(ah, group=group)
        if me > 0:
            continue
        other = case(name, me, n, length, seed=2)
        before = [array.tobytes() for array in other.written]
        try:
            other.run(ah, group=group, timeout=0.1)
        except ah.CollectiveTimeout as error:
            is_changed = before != [array.tobytes() for array in other.written]
            if error.outputs_intact and is_changed:
                wrong.append(name)
    tell("done", wrong=wrong)
    hear()
    os._exit(0)
