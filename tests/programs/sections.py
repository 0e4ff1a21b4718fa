"""Ranks in sections of their program, inspected from outside."""

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell


@ah.section("epoch")
def load_while_others_wait() -> None:
    """Stay in a section on rank 0 until told, while the others wait for it in a call."""
    ah.init_process_group(timeout=20)
    x = np.ones(4)
    ah.all_reduce(x)
    if ah.get_rank() == 0:
        with ah.section("load"):
            tell("in place")
            hear()
    else:
        tell("error", **failure(lambda: ah.all_reduce(x, timeout=1.5)))
        tell("in place")
        hear()
    ah.destroy_process_group()
