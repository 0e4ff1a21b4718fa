"""Calls of ranks in shared memory: on every face, for every array, in every group."""

import asyncio
import json
import os
import threading

import numpy as np

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, tell
from programs.shared_segments import shared
from support.arrays.collective_cases import EVERY, MOVING, allowed, case, values


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
        table = np.arange(6.0).reshape(2, 3)
        x = np.array(table + me, order="F" if me else "C")
        ah.all_reduce(x)
        faults.note(not (x == n * table + n * (n - 1) // 2).all(), "by columns", x)
        frozen = np.ones(length)
        frozen.flags.writeable = False
        said = failure(lambda: ah.all_reduce(frozen))
        faults.note(said["error"] != "ValueError", said)
        x = np.zeros(length)
        ah.broadcast(x if me else frozen)
        faults.note(me > 0 and not (x == 1).all(), "what the root may not write", length)
        ah.reduce(frozen if me else np.ones(length), 0)
        scalar = np.array(float(me))
        ah.all_reduce(scalar)
        faults.note(scalar[()] != n * (n - 1) / 2, scalar)
    tell("done", faults=faults)
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
