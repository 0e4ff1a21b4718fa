"""Lifetimes of shared memory: views, arrays, worlds, groups, and children of a fork."""

import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, tell, until
from programs.shared_segments import blocks, mapped, resident, variant

AREA_BYTES = 2840 << 10
"""Just less than an area of a group of two ranks."""


def use_views() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    table = ah.empty((n + 1, 10_000), np.float32)
    table[...] = me
    ah.all_reduce(table[1])
    tell("view", said=variant())
    faults.note(not (table[1] == sum(range(n))).all() or not (table[[0, 2]] == me).all(), table)
    ah.all_gather_into_tensor(np.empty((n, 20_000), np.float32), table[:2])
    tell("rows", said=variant())
    tall = ah.empty((20_000, 2), np.float32)
    tall[...] = me
    out = np.empty((n, 20_000), np.float32)
    ah.all_gather_into_tensor(out, tall[:, 1])
    faults.note(not (out == np.arange(n)[:, None]).all(), out)
    tell("column", said=variant())
    mixed = np.full(10_000, me, np.float32) if me == 1 else table[0]
    ah.all_reduce(mixed)
    tell("mixed", said=variant())
    faults.note(not (mixed == sum(range(n))).all(), mixed)
    tell("done", faults=faults)
    ah.destroy_process_group()


def return_memory() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    faults = Faults()
    ah.all_reduce(np.ones(3))
    until(lambda: blocks() > AREA_BYTES)  # the world has what it touches ahead of its calls
    ah.barrier()
    before = blocks()
    x = ah.empty(8 << 20)  # 64 MiB
    faults.note(blocks() - before > 1 << 20, "taken before it is touched")
    x[:] = 7
    faults.note(blocks() - before < 64 << 20, "not where it should be")
    ah.all_reduce(x)
    view = x[5:9].reshape(2, 2).T
    address = x.ctypes.data
    del x
    faults.note(blocks() - before < 64 << 20, "gone although a view is held")
    faults.note(not (view == 7 * n).all(), view)
    del view
    ah.barrier()
    faults.note(blocks() - before > 1 << 20, "not given back", blocks() - before)
    again = ah.empty(8 << 20)
    faults.note(again.ctypes.data != address or again.any(), "not used again, or not zero")
    del again
    many = [ah.empty(1 + at * 1000, np.uint8) for at in range(50)]
    for at, array in enumerate(many):
        array[:] = at
    del many[::2]
    more = [ah.empty(3000, np.uint8) for _ in range(100)]
    faults.note(any(array.any() for array in more), "not zero")
    faults.note(
        any((array != 2 * at + 1).any() for at, array in enumerate(many)), "given out twice"
    )
    del many, more
    faults.note(blocks() - before > 1 << 20, "not given back", blocks() - before)
    said = [failure(lambda: ah.empty(*what))["error"] for what in ((1 << 60,), (3, object))]
    faults.note(said != ["MemoryError", "TypeError"], said)
    faults.note(ah.empty(0).size or ah.empty((3, 0)).size or ah.empty(()).shape, "empty")
    tell("done", faults=faults)
    ah.destroy_process_group()


def make_worlds_again() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    kept = []
    for again in range(4):
        if again:
            ah.init_process_group(timeout=30, job=f"again-{again}")
        x = ah.empty(20_000)
        x[:] = me + again
        ah.all_reduce(x)
        faults.note(variant() != "direct", variant())
        group = ah.new_group(list(range(n))[::-1])
        ah.broadcast(x, 1, group=group)
        call = ah.all_reduce_init(x)
        kept.append(x)
        del x, group, call
        ah.destroy_process_group()
    until(lambda: mapped() == 2 * len(kept))  # their own memory, open and mapped
    for again, x in enumerate(kept):
        faults.note(not (x == sum(range(n)) + again * n).all(), "unreadable", again)
    del x
    kept.clear()
    until(lambda: mapped() == 0)
    tell("done", faults=faults)


def make_groups_again() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    faults = Faults()

    def use(count):
        for _ in range(count):
            group = ah.new_group([1, 0])
            x = np.ones(200_000)
            ah.all_reduce(x, group=group)
            faults.note(not (x == n).all(), x)
            ah.destroy_process_group(group)
        ah.barrier()
        gc.collect()

    use(5)
    before = blocks(), len(threading.enumerate())
    use(60)
    grown = blocks() - before[0]
    faults.note(grown > 60 * 4096, "bytes", grown)
    until(lambda: len(threading.enumerate()) <= before[1])
    tell("done", faults=faults)
    ah.destroy_process_group()


def touch_memory_ahead() -> None:
    """Count the page faults of the first calls of groups, which have the memory for them."""
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    faults = Faults()
    until(lambda: blocks() > AREA_BYTES)
    x = np.ones(1 << 17)
    for _ in range(3):
        ah.barrier()
        before, mapped_before = blocks(), resident()
        group = ah.new_group()
        until(lambda: resident() - mapped_before > n * AREA_BYTES)
        ah.barrier(group=group)
        found = count_faults(lambda: ah.all_reduce(x, group=group))
        faults.note(found > 64, "page faults", found)
        ah.destroy_process_group(group)
        ah.barrier()
        faults.note(blocks() - before > 1 << 20, "not given back", blocks() - before)
    faults.note(not (x == n**3).all(), x)
    tell("done", faults=faults)
    ah.destroy_process_group()


def open_ways_ahead() -> None:
    """Send a first message, and start a first call, that need nothing of the event loop."""
    ah.init_process_group(timeout=30)
    faults = Faults()
    made = np.zeros(1)
    while not made.all():  # on a busy host not all ranks make a group at about the same time
        group = ah.new_group()
        made[:] = group.order.comm is not None
        ah.all_reduce(made, ah.ReduceOp.MIN)
    until(lambda: group.order.p2p is not None)
    faults.note(group.order.comm.async_context is None, "calls are begun elsewhere")
    threads = threading.enumerate()
    call = ah.all_reduce(np.ones(3), group=group, async_op=True)
    call.wait()
    x, peer = np.full(3, ah.get_rank()), 1 - ah.get_rank()
    faults.note(ah.send(x, peer, group=group) if peer else ah.recv(x, peer, group=group) != peer)
    faults.note(x.any() if peer else (x != peer).any(), x)
    ah.barrier()
    ah.destroy_process_group(group)
    until(lambda: count_others(threads) == 1)  # that of calls that are not waited for
    tell("done", faults=faults)
    ah.destroy_process_group()


def count_others(threads: Sequence[threading.Thread]) -> int:
    """Return how many threads there are beside these."""
    return len([one for one in threading.enumerate() if one not in threads])


def count_faults(run: Callable[[], object]) -> int:
    """Return how often the calling thread touches a page of memory for the first time."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    run()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def fork_a_child() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    kept = ah.empty(10_000)
    kept[:] = me
    call = ah.all_reduce_init(np.ones(3))
    call.start()
    call.wait()
    fresh = ah.new_group()
    until(lambda: fresh.order.comm is not None)
    held, forked = threading.Event(), threading.Event()

    def hold_lock():  # as a thread that runs callbacks may when its process forks
        with fresh.submitter.executor.callbacks._changed:
            held.set()
            forked.wait()

    holder = threading.Thread(target=hold_lock)
    holder.start()
    held.wait()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        calls = [
            lambda: ah.all_reduce(np.ones(3), group=fresh, async_op=True),
            lambda: ah.barrier(),
            lambda: ah.all_reduce(np.ones(3)),
            lambda: ah.all_gather(list(np.ones((n, 3))), np.ones(3)),
            lambda: ah.all_reduce(np.ones(3), async_op=True),
            lambda: call.start(),
            lambda: ah.empty(10_000),
            lambda: ah.new_group(),
        ]
        said = [failure(one) for one in calls]
        ah.destroy_process_group()
        del kept
        gc.collect()
        bad = [one for one in said if one["error"] != "ForkedProcess"]
        print(bad, file=sys.stderr, flush=True)
        os._exit(1 if bad else 0)
    forked.set()
    holder.join()
    status = os.waitpid(child, 0)[1]
    faults.note(status, "child")
    faults.note(not (kept == me).all(), "the child's doing", kept)
    ah.all_reduce(kept)
    faults.note(not (kept == sum(range(n))).all(), kept)
    call.start()
    call.wait()
    tell("done", faults=faults)
    ah.destroy_process_group()
