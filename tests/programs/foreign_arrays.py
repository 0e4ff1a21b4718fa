"""Calls on arrays of other libraries and of any layout, the ranks bringing different ones."""

from itertools import product
from typing import Any

import numpy as np

import allhands as ah
from programs.faults import Faults
from programs.protocol import tell
from support.arrays.collective_cases import EVERY, case
from support.arrays.foreign import LAYOUTS, WRAPPERS, wrap_all

CALLS = tuple(name for name in EVERY if name != "barrier")
LENGTHS = (1, 7, 40_000)


def run_every_call(options: dict[str, Any]) -> None:
    """Join a world, and make every call."""
    ah.init_process_group(timeout=60, **options)
    tell("done", faults=make_every_call())


def make_every_call() -> Faults:
    """Make every call on arrays of every kind, waited for at once and later."""
    me, size, faults = ah.get_rank(), ah.get_world_size(), Faults()
    kinds = list(product(LAYOUTS.items(), WRAPPERS.items()))
    cells = product(CALLS, LENGTHS, range(len(kinds)), (False, True))
    for name, length, at, async_op in cells:
        if length == LENGTHS[-1] and at % 5:
            continue  # of the large ones some
        (layout, make), (wrapper, wrap) = kinds[(at + 5 * me) % len(kinds)]
        one = case(name, me, size, length, np.int64, root=at % size, make=make, seed=at)
        one.arguments = wrap_all(one.arguments, wrap)
        work = one.run(ah, async_op=async_op)
        if work is not None:
            work.wait()
        faults.note(one.wrong(), layout, wrapper, length, async_op)
    return faults
