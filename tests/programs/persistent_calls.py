"""Prepared calls of ranks in shared memory: repeated, misused, failed and queued."""

import sys
import threading
from typing import Any

import numpy as np

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, hear, tell, until


def repeat_persistent_calls() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    for length in (1, 1_000, 100_000):
        x, y = np.empty(length), np.empty(length)
        call, other = ah.all_reduce_init(x), ah.all_reduce_init(y, ah.ReduceOp.MAX, label="other")
        for step in range(200 if length < 100_000 else 5):
            x[:], y[:] = step + me, step - me
            call.start()
            if step % 3 == 1:  # others come between
                z = np.full(7, float(me))
                ah.all_reduce(z)
                faults.note(not (z == sum(range(n))).all(), "between", z)
            if step % 5 == 2:
                works = [ah.broadcast(np.full(3, float(me)), 1, async_op=True) for _ in range(3)]
                faults.note(any((work.result() != 1).any() for work in works), "broadcast")
            if step % 2:
                other.start()
            call.wait()
            faults.note(not (x == n * step + sum(range(n))).all(), "prepared", step, x)
            if step % 2:
                other.wait()
                faults.note(not (y == step).all(), "max", step, y)
    tell("done", faults=faults)
    ah.destroy_process_group()


def misuse_persistent_calls() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    x = np.ones(3)
    call = ah.all_reduce_init(x)
    faults.note("not started" not in failure(call.wait)["text"], "waited before")
    call.start()
    faults.note("started already" not in failure(call.start)["text"], "started twice")
    call.wait()
    faults.note("not started" not in failure(call.wait)["text"], "waited twice")
    faults.note(not (x == n).all(), x)
    for change in ("resize", "dtype", "readonly"):
        x = np.ones(4)
        call = ah.all_reduce_init(x)
        call.start()
        call.wait()
        if change == "resize":
            x.resize(1 << 16, refcheck=False)
            x[:] = 1
            call.start()
            call.wait()
            faults.note(not (x == n).all(), "resized", x)
        elif change == "dtype":
            x.dtype = np.int64  # type: ignore[misc, assignment]
            x[:] = -3
            call.start()
            call.wait()
            faults.note(not (x == -3 * n).all(), "of another dtype", x)
        else:
            x.flags.writeable = False
            said = failure(call.start)
            faults.note(said["error"] != "ValueError", said)
    bad: list[Any] = [[1.0], x[::2], x.astype("S3")]
    said = [failure(lambda: ah.all_reduce_init(one))["error"] for one in bad]
    faults.note(said != ["TypeError", "ValueError", "TypeError"], said)
    dropped = np.full(5, float(me))
    call = ah.all_reduce_init(dropped)
    call.start()
    del call
    z = np.ones(3)
    ah.all_reduce(z)
    faults.note(not (z == n).all() or not (dropped == sum(range(n))).all(), z, dropped)
    call = ah.all_reduce_init(z)
    call.start()
    del call  # and is finished by leaving
    tell("done", faults=faults)
    ah.destroy_process_group()


def fail_a_prepared_call() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    x = np.ones(3)
    call = ah.all_reduce_init(x, timeout=0.2, label="mine")
    if me == 0:
        call.start()
        said = failure(call.wait)
        faults.note(said["error"] != "CollectiveTimeout" or "mine" not in said["text"], said)
        tell("late")
        hear()
    else:
        hear()
        call.start()
        call.wait()  # what rank 0 gave is there
    x[:] = 1
    call = ah.all_reduce_init(x)
    call.start()
    call.wait()
    faults.note(not (x == n).all(), x)
    call.start()
    if me == 0:
        said = failure(lambda: ah.all_reduce(np.ones(2)))
    else:
        said = failure(lambda: ah.all_reduce(np.ones(4)))
    faults.note(said["error"] != "CollectiveMismatch", said)
    call.wait()
    faults.note(not (x == n * n).all(), x)
    tell("done", faults=faults)
    ah.destroy_process_group()


def queue_behind_a_prepared_call() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    x, y, z = (np.full(3, float(at)) for at in (1, 2, 3))
    call = ah.all_reduce_init(x)
    main = threading.get_ident()
    works = []

    def reduce():
        ah.all_reduce(y)  # has no number before the prepared one has ended

    def queue():
        until(lambda: sys._current_frames()[main].f_code is reduce.__code__)
        works.append(ah.all_reduce(z, async_op=True))
        tell("queued")

    if me == 0:
        thread = threading.Thread(target=queue)
        thread.start()
        call.start()
        reduce()
        thread.join()
        works[0].wait()
    else:
        hear()
        call.start()
        ah.all_reduce(z)
        ah.all_reduce(y)
    call.wait()
    faults.note([x[0], y[0], z[0]] != [2, 4, 6], x, y, z)
    tell("done", faults=faults)
    ah.destroy_process_group()
