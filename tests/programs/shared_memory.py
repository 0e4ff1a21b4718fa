"""Calls of ranks that share memory: on every face, for every array, in every group."""

import asyncio
import ctypes
import gc
import json
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, hear, tell, until
from support.arrays.collective_cases import EVERY, MOVING, allowed, case, values


def shared(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return ah.empty(length, dtype)


def variant() -> str:
    """Return the variant of the last call over shared memory."""
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]


def blocks() -> int:
    """Return the bytes allocated in this process's shared memory."""
    found = [os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_ours(fd)]
    assert len(found) == 1, found
    return found[0].st_blocks * 512


def is_ours(fd: str) -> bool:
    try:
        return "memfd:allhands" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the listing itself
        return False


def mapped() -> int:
    """Return how many segments this process has open or mapped."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        found = sum("memfd:allhands" in line for line in maps)
    return found + sum(map(is_ours, os.listdir("/proc/self/fd")))


def every_collective() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    slot, attach, chunk = json.loads(os.environ["LIMITS"])
    limits = (slot // n, slot, attach, chunk // max(n - 1, 1), chunk)
    lengths = {0, 1, 11, 13, *(limit // 4 + by for limit in limits for by in (-1, 0, 1))}
    for make in (np.empty, shared):
        for length in sorted(lengths):
            for seed, name in enumerate(EVERY):
                root = (length + seed) % n
                one = case(name, me, n, length, root=root, seed=seed, make=make)
                one.run(ah)
                faults.note(one.wrong(), make.__name__, length)
    tell("done", faults=faults)
    ah.destroy_process_group()


def call_from_every_face() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    group = ah.default_group()
    for round, length in enumerate((3, 3_000, 30_000)):
        started = []
        for seed, name in enumerate(EVERY):
            one = case(name, me, n, length, root=seed % n, seed=seed)
            match (seed + round) % 3:
                case 0:
                    one.run(ah)
                    faults.note(one.wrong(), "sync", length)
                case 1:
                    started.append((one, one.run(ah, async_op=True)))
                case 2:
                    started.append((one, one.run(group)))
        for one, work in started:
            work.wait()
            faults.note(one.wrong(), "async", length)
        if n > 1 and any("shared memory" not in work.explain() for _, work in started):
            faults.append([work.explain() for _, work in started])
    tell("done", faults=faults)
    ah.destroy_process_group()


def call_from_threads() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    groups = [ah.new_group() for _ in range(3)]

    def use(number):
        for round in range(6):
            for seed, name in enumerate(EVERY):
                one = case(name, me, n, 10 ** (number + 2), seed=seed + number)
                work = one.run(ah, group=groups[number], async_op=round % 2 == 1)
                work and work.wait()
                faults.note(one.wrong(), number, round)

    threads = [threading.Thread(target=use, args=[number]) for number in range(len(groups))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    tell("done", faults=faults)
    ah.destroy_process_group()


def call_from_asyncio() -> None:
    faults = []

    async def main():
        async with ah.aio.connect(timeout=20) as world:
            for length in (3, 3_000, 30_000):
                cases = [case(name, world.rank, world.size, length) for name in EVERY]
                await asyncio.gather(*(one.run(world) for one in cases))
                faults.extend(one.wrong() for one in cases if one.wrong())
            await world.all_reduce(np.ones(3))
            return world.group.explain()

    tell("done", said=asyncio.run(main()), faults=faults)


def reduce_every_dtype() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    for dtype in (*names.split(), *["float16", "float32", "float64", "complex64", "complex128"]):
        for seed, op in enumerate(allowed(dtype)):
            for length in (5, 3_001):
                for name in ("all_reduce", "reduce_scatter_tensor"):
                    one = case(name, me, n, length, dtype, op=op, seed=seed)
                    one.run(ah)
                    faults.note(one.wrong(), dtype, op, length)
    tell("done", faults=faults)
    ah.destroy_process_group()


def average_integers() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    AVG = ah.ReduceOp.AVG

    def brought(rank, length, dtype):
        return ((np.arange(length) * (rank + 3)) % 23 - 11 - rank).astype(dtype)

    for dtype in (np.int8, np.int32, np.int64):
        for make in (np.empty, shared):
            for length in (1, 5, 4_000, 200_000):
                all_ranks = [brought(r, length, np.int64) for r in range(n)]
                want = np.trunc(sum(all_ranks) / n).astype(dtype)

                def mine():
                    x = make(length, dtype)
                    x[:] = brought(me, length, dtype)
                    return x

                where = dtype.__name__, make.__name__, length
                ah.all_reduce(x := mine(), AVG)
                faults.note(not np.array_equal(x, want), "all_reduce", *where, x, want)
                ah.all_reduce(x := mine(), AVG, async_op=True).wait()
                faults.note(not np.array_equal(x, want), "async", *where)
                ah.reduce(x := mine(), n - 1, AVG)
                kept = want if me == n - 1 else mine()
                faults.note(not np.array_equal(x, kept), "reduce", *where)
                ah.reduce_scatter(out := make(length, dtype), [mine()] * n, AVG)
                faults.note(not np.array_equal(out, want), "reduce_scatter", *where)
                whole = make(n * length, dtype)
                whole.reshape(n, length)[:] = mine()
                ah.reduce_scatter_tensor(out := make(length, dtype), whole, AVG)
                faults.note(not np.array_equal(out, want), "reduce_scatter_tensor", *where)
                ah.all_reduce_coalesced([x := mine(), y := mine()], AVG)
                faults.note(not np.array_equal([x, y], [want, want]), "coalesced", *where)
    tell("done", faults=faults)
    ah.destroy_process_group()


def move_every_kind() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    import ml_dtypes

    record = np.dtype([("key", "<i2"), ("value", ">f8"), ("name", "S3")])
    kinds = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, record, ">i4", ">f8", "S5", "U3"]
    for dtype in (*kinds, "M8[s]", "m8[ns]", np.longdouble, "V7"):
        for length in (1, 5, 40_000):
            for seed, name in enumerate(MOVING):
                one = case(name, me, n, length, dtype, seed=seed)
                one.run(ah)
                faults.note(one.wrong(), dtype, length)
    said = failure(lambda: ah.all_reduce(np.zeros(3, "S5")))
    faults.note(said["error"] != "TypeError", said)
    for length in (3, 5_000, 300_000):
        x = (np.arange(length) % 7 + me).astype(ml_dtypes.bfloat16)
        ah.all_reduce(x)
        faults.note(not np.array_equal(x, 2 * (np.arange(length) % 7) + 1), "bfloat16", length)
    tell("done", faults=faults)
    ah.destroy_process_group()


def stride_and_overlap() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    for length in (6, 30_000):
        a = np.concatenate([values(r, length, np.float32) for r in range(n)])
        wide = np.zeros((length, 2), np.float32)
        wide[:, 1] = values(me, length, np.float32)
        out = np.zeros(n * length, np.float32)
        ah.all_gather_into_tensor(out, wide[:, 1])
        faults.note(not (out == a).all(), "strided", length)
        out = np.zeros(n * length, np.float32)
        out[me * length :][:length] = values(me, length, np.float32)
        ah.all_gather_into_tensor(out, out[me * length :][:length])
        faults.note(not (out == a).all(), "in place", length)
        x = np.tile(values(me, length, np.float32), n)
        ah.reduce_scatter_tensor(x[:length], x)
        want = sum(values(r, length, np.float32) for r in range(n))
        faults.note(not (x[:length] == want).all(), "scattered into its input", length)
        x = np.concatenate([values(me, length, np.float32, r) for r in range(n)])
        ah.all_to_all_single(x, x)
        want = np.concatenate([values(r, length, np.float32, me) for r in range(n)])
        faults.note(not (x == want).all(), "exchanged in place", length)
        lists = list(x.reshape(n, length))
        ah.all_to_all(lists, lists[::-1][::-1])
        x = wide[::-1, 1]
        outs = [np.zeros(length, np.float32) for _ in range(n)]
        ah.all_gather(outs, x)
        faults.note(
            any((o != values(r, length, np.float32)[::-1]).any() for r, o in enumerate(outs)), "-"
        )
        x = np.zeros(4 * length + 1, np.uint8)[1:].view(np.float32)  # unaligned
        x[:] = values(me, length, np.float32)
        ah.all_reduce(x)
        want = sum(values(r, length, np.float32) for r in range(n))
        faults.note(not (x == want).all(), "unaligned", length)
        wide = np.zeros(16 * length + 1, np.uint8)[1:].view(np.complex128)
        wide[:] = me + 1
        ah.all_reduce(wide)
        faults.note(not (wide == n * (n + 1) // 2).all(), "unaligned complex", length)
        x = np.asfortranarray(np.full((2, 3), float(me)))
        said = failure(lambda: ah.all_reduce(x))
        faults.note(said["error"] != "ValueError", said)
        frozen = np.ones(length)
        frozen.flags.writeable = False
        said = failure(lambda: ah.broadcast(frozen))
        faults.note(said["error"] != "ValueError", said)
        ah.reduce(frozen if me else np.ones(length), 0)
        scalar = np.array(float(me))
        ah.all_reduce(scalar)
        faults.note(scalar[()] != n * (n - 1) / 2, scalar)
    tell("done", faults=faults)
    ah.destroy_process_group()


def explain_calls() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.all_reduce(np.ones(1))  # from here on all know how they can reach each other

    def said(name, length, make=np.empty, **more):
        one = case(name, me, n, length, make=make, **more)
        one.run(ah)
        faults.note(one.wrong())
        return variant()

    tell("small", said=[said(name, 2) for name in EVERY])
    tell("middle", said=[said(name, 4096) for name in EVERY if name != "barrier"])
    tell("large", said=[said(name, 1 << 18) for name in EVERY if name != "barrier"])
    tell("shared", said=[said(name, 1 << 18, shared) for name in EVERY if name != "barrier"])
    work = ah.all_reduce(np.ones(2), async_op=True)
    work.wait()
    tell("work", said=work.explain())
    tell("done", faults=faults)
    ah.destroy_process_group()


def explain_links() -> None:
    ah.init_process_group(timeout=30)
    faults = Faults()
    ah.all_reduce(np.ones(4))
    work = ah.all_reduce(np.ones(4), async_op=True)
    work.wait()
    x = ah.empty(4)
    x[:] = 1
    ah.all_reduce(x)
    tell("said", said=[variant(), ah.default_group().explain(), work.explain(), x.tolist()])
    tell("done", faults=faults)
    ah.destroy_process_group()


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


def repeat_prepared_calls() -> None:
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


def misuse_prepared_calls() -> None:
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


def obey_limits() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    ah.all_reduce(np.ones(1))
    said = []
    for name, nbytes in (("all_reduce", 500), ("all_reduce", 1000), ("broadcast", 100_000)):
        one = case(name, me, n, nbytes // 4)
        one.run(ah)
        faults.note(one.wrong(), name, nbytes)
        said.append(variant())
    tell("said", said=said)
    tell("done", faults=faults)
    ah.destroy_process_group()


def differ_in_limits() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    for seed, name in enumerate(EVERY):
        one = case(name, me, n, 5_000, seed=seed, make=shared)
        one.run(ah)
        faults.note(one.wrong(), name)
    tell("said", said=ah.default_group().explain())
    pair = ah.new_group([1, 2])
    if me:
        x = np.ones(3)
        ah.all_reduce(x, group=pair)
        faults.note(not (x == 2).all(), x)
        tell("pair", said=pair.explain())
    tell("done", faults=faults)
    ah.destroy_process_group()


def insist_on_a_backend(backend: str) -> None:
    tell("told", **failure(lambda: ah.init_process_group(timeout=5, backend=backend)))
    os._exit(0)


def share_across_namespaces() -> None:
    if os.environ["RANK"] == "1":
        door = os.open("/proc/self/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
        from allhands.shm import arena

        key = arena.compute_host_key()
        assert libc.setns(door, 0) == 0, os.strerror(ctypes.get_errno())
        assert key != arena.compute_host_key()
        arena.compute_host_key = lambda: key  # as seen from there; the sockets must stay reachable
    backend = os.environ["WANTED"]
    said = failure(lambda: ah.init_process_group(timeout=10, backend=backend))
    if said["error"]:
        tell("refused", **said)
        os._exit(0)
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist(), said=ah.default_group().explain())
    ah.destroy_process_group()


def order_ranks_otherwise() -> None:
    ah.init_process_group(timeout=30)
    faults = Faults()
    for ranks in ([2, 0, 1], [1, 0], [2, 1], [0, 2], [2], [2, 1, 0]):
        group = ah.new_group(ranks)
        at = ah.get_rank(group)
        if at < 0:
            continue
        for length in (3, 5_000, 60_000):
            for seed, name in enumerate(EVERY):
                one = case(name, at, len(ranks), length, root=seed % len(ranks), seed=seed)
                one.run(group).wait()
                faults.note(one.wrong(), ranks, length)
        if len(ranks) > 1:
            faults.note("shared memory" not in group.explain(), ranks, group.explain())
        ah.destroy_process_group(group)
        for async_op in (False, True):
            late = case("all_reduce", at, len(ranks), 3)
            said = failure(lambda: (late.run(ah, group=group, async_op=async_op) or group).wait())
            faults.note("destroyed" not in said["text"], said)
    tell("done", faults=faults)
    ah.destroy_process_group()


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
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        calls = [
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
    status = os.waitpid(child, 0)[1]
    faults.note(status, "child")
    faults.note(not (kept == me).all(), "the child's doing", kept)
    ah.all_reduce(kept)
    faults.note(not (kept == sum(range(n))).all(), kept)
    call.start()
    call.wait()
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

    def queue():
        until(lambda: sys._current_frames()[main].f_code is ah.all_reduce.__code__)
        works.append(ah.all_reduce(z, async_op=True))
        tell("queued")

    if me == 0:
        thread = threading.Thread(target=queue)
        thread.start()
        call.start()
        ah.all_reduce(y)  # has no number before the prepared one has ended
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
