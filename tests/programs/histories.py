"""Random calls of ranks: some late, cancelled or mismatched."""

import os
import random
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import tell
from support.arrays.collective_cases import EVERY, allowed, case


def shared(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return ah.empty(length, dtype)


ROOTED = ("broadcast", "gather", "scatter", "reduce")  # who waits for nobody may go on
LENGTHS = (0, 1, 7, 200, 3_000, 20_000, 70_000, 300_000)
DTYPES = (np.float32, np.float64, np.int16, np.uint8, np.complex64, np.float16)


def play(seed: int, steps: int, group: Any) -> tuple[list[Any], dict[str, int]]:
    """Run a history known to all ranks; return the faults, and the calls' outcomes."""
    n, me = ah.get_world_size(), ah.get_rank()
    plan = random.Random(seed)
    mine = random.Random(f"{seed} {me}")
    wrong: list[Any] = []
    ended: dict[str, int] = {}
    running: list[Any] = []

    def settle(step, one, end, trouble, before):
        kind = "well"
        try:
            end()
        except ah.CollectiveTimeout as error:
            kind = "timeout"
            intact = error.outputs_intact
        except ah.CollectiveMismatch as error:
            kind, intact = "unlike", error.outputs_intact
        except ah.AllhandsError as error:
            intact = error.outputs_intact
            kind = "cancelled" if "cancelled" in str(error) else f"{type(error).__name__}: {error}"
        ended[kind] = ended.get(kind, 0) + 1
        if kind == "well":
            if one.wrong():
                wrong.append([step, one.wrong()])
            if trouble == "unlike" and one.name not in ROOTED:
                wrong.append([step, one.name, "nobody objected"])
            return
        if not trouble or (kind == "unlike") != (trouble == "unlike"):
            wrong.append([step, one.name, kind, trouble])
        if kind == "unlike" and not intact:
            wrong.append([step, one.name, "a mismatch after outputs were touched"])
        if intact and before != [array.tobytes() for array in one.written]:
            wrong.append([step, one.name, kind, "outputs were touched"])

    for step in range(steps):
        name = plan.choice(EVERY)
        dtype = plan.choice(DTYPES)
        length = plan.choices(LENGTHS, (1, 2, 3, 4, 4, 2, 2, 1))[0]
        root, op = plan.randrange(n), plan.choice(list(allowed(dtype)))
        if op is ah.ReduceOp.PRODUCT and dtype is np.float16:
            op = ah.ReduceOp.SUM  # products are not exact
        face = plan.choices(("sync", "async", "prepared"), (6, 3, 1))[0]
        trouble = plan.choices(("", "late", "cancelled", "unlike"), (40, 2, 1, 2))[0]
        who = plan.randrange(n)
        make = shared if plan.random() < 0.3 else np.empty
        if plan.random() < 0.1:  # not all ranks
            make = mine.choice((shared, np.empty))
        if face == "prepared":
            name = "all_reduce"
        if trouble == "cancelled":
            face = "async"
        patience, limit = plan.choice((0.02, 0.05)), 40.0
        if trouble:
            for one in running:  # they would time out with it
                settle(*one)
            running.clear()
            # Over links nobody hears that others have given up, so all do at about one time.
            if trouble != "unlike" and os.environ["ALLHANDS_BACKEND"] == "socket":
                limit = patience
            if who != me and trouble == "late":
                limit = patience
            if who == me:
                time.sleep(mine.random() * 0.06)
        if trouble == "unlike" and who == me:
            name, length = "all_reduce" if name == "barrier" else name, length + 1
        one = case(name, me, n, length, dtype, op=op, root=root, seed=step, make=make)
        before = [array.tobytes() for array in one.written] if trouble else []
        more = {"group": group, "timeout": limit}
        if face == "sync":
            settle(step, one, lambda: one.run(ah, **more), trouble, before)
        elif face == "async":
            work = one.run(ah, **more, async_op=True)
            if trouble == "cancelled" and who == me:
                work.cancel()
            running.append((step, one, work.wait, trouble, before))
        else:
            call = ah.all_reduce_init(*one.arguments, **more)
            call.start()
            running.append((step, one, lambda call=call: call.wait(), trouble, before))
        if len(running) > 8 or trouble or plan.random() < 0.2:
            for one in running:
                settle(*one)
            running.clear()
    for one in running:
        settle(*one)
    return wrong, ended


def play_in_the_world(seed: int, steps: int) -> None:
    ah.init_process_group(timeout=40)
    wrong, ended = play(seed, steps, None)
    tell("played", wrong=wrong[:5], ended=ended)
    ah.destroy_process_group()


def play_in_three_groups() -> None:
    ah.init_process_group(timeout=40)
    groups = [ah.new_group() for _ in range(3)]
    told: list[Any] = [None] * 3

    def use(at: int) -> None:
        told[at] = play(at, 100, groups[at])

    threads = [threading.Thread(target=use, args=[at]) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("played", wrong=[one[0][:5] for one in told])
    ah.destroy_process_group()
