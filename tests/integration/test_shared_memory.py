"""Calls of ranks that share memory: right over every face, for every array, and said so."""

import json
import os
import textwrap
from typing import Any

import pytest

from support.ranks.processes import Cluster, Job, Process

USE = """
import asyncio
from support.arrays.collective_cases import *
ah.init_process_group(timeout=30)
n, me = ah.get_world_size(), ah.get_rank()
faults = []

def fine(wrong, *where):
    if wrong:
        faults.append([str(one) for one in (*where, wrong)])

def shared(length, dtype):
    return ah.empty(length, dtype)

def variant():
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]
"""
END = """
tell("done", faults=faults)
ah.destroy_process_group()
"""


def script(text: str) -> str:
    """Return a whole script: it joins, does what the text says, tells what was wrong, leaves."""
    return USE + textwrap.dedent(text) + END


def told(ranks: list[Process], what: str = "done") -> list[dict[str, Any]]:
    """Return what all ranks tell; none has a fault to tell, and all end well."""
    said = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    for one in said:
        assert one.get("faults", []) == []
    return said


# ---------------------------------------------------------------- right numbers


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_collective_is_right_around_every_threshold(job: Job, size: int) -> None:
    text = """
    slot, attach, chunk = json.loads(os.environ["LIMITS"])
    limits = (slot // n, slot, attach, chunk // max(n - 1, 1), chunk)
    lengths = {0, 1, 11, 13, *(limit // 4 + by for limit in limits for by in (-1, 0, 1))}
    for make in (np.empty, shared):
        for length in sorted(lengths):
            for seed, name in enumerate(EVERY):
                root = (length + seed) % n
                one = case(name, me, n, length, root=root, seed=seed, make=make)
                one.run(ah)
                fine(one.wrong(), make.__name__, length)
    """
    # Many ranks with smaller limits: the same cases with less to copy.
    limits = [8 << 10, 64 << 10, 1 << 20] if size < 3 else [4 << 10, 40 << 10, 64 << 10]
    names = ("SLOT_MAX", "ATTACH_MIN", "CHUNK")
    given = {f"ALLHANDS_ARENA_{name}": str(one) for name, one in zip(names, limits, strict=True)}
    told(job(size, script(text), LIMITS=json.dumps(limits), **given))


@pytest.mark.parametrize("size", [2, 3])
def test_calls_of_all_faces_keep_one_order(job: Job, size: int) -> None:
    text = """
    group = ah.default_group()
    for round, length in enumerate((3, 3_000, 30_000)):
        started = []
        for seed, name in enumerate(EVERY):
            one = case(name, me, n, length, root=seed % n, seed=seed)
            match (seed + round) % 3:
                case 0:
                    one.run(ah)
                    fine(one.wrong(), "sync", length)
                case 1:
                    started.append((one, one.run(ah, async_op=True)))
                case 2:
                    started.append((one, one.run(group)))
        for one, work in started:
            work.wait()
            fine(one.wrong(), "async", length)
        if n > 1 and any("shared memory" not in work.explain() for _, work in started):
            faults.append([work.explain() for _, work in started])
    """
    told(job(size, script(text)))


def test_threads_that_call_on_groups_of_their_own_do_not_disturb_each_other(job: Job) -> None:
    text = """
    groups = [ah.new_group() for _ in range(3)]

    def use(number):
        for round in range(6):
            for seed, name in enumerate(EVERY):
                one = case(name, me, n, 10 ** (number + 2), seed=seed + number)
                work = one.run(ah, group=groups[number], async_op=round % 2 == 1)
                work and work.wait()
                fine(one.wrong(), number, round)

    threads = [threading.Thread(target=use, args=[number]) for number in range(len(groups))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """
    told(job(2, script(text)))


def test_the_asyncio_face_uses_shared_memory(job: Job) -> None:
    text = """
    import asyncio
    from support.arrays.collective_cases import *
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
    """
    for one in told(job(2, textwrap.dedent(text))):
        assert "slots" in one["said"]


# ---------------------------------------------------------------- arrays of every kind


@pytest.mark.parametrize("size", [2, 3])
def test_every_dtype_is_reduced_by_every_operation_it_allows(job: Job, size: int) -> None:
    text = """
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    for dtype in (*names.split(), *"float16 float32 float64 complex64 complex128".split()):
        for seed, op in enumerate(allowed(dtype)):
            for length in (5, 3_001):
                for name in ("all_reduce", "reduce_scatter_tensor"):
                    one = case(name, me, n, length, dtype, op=op, seed=seed)
                    one.run(ah)
                    fine(one.wrong(), dtype, op, length)
    """
    told(job(size, script(text)))


@pytest.mark.parametrize("size", [2, 3])
def test_averages_of_integers_are_divided_towards_zero_whatever_way_a_call_goes(
    job: Job, size: int
) -> None:
    text = """
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
                fine(not np.array_equal(x, want), "all_reduce", *where, x, want)
                ah.all_reduce(x := mine(), AVG, async_op=True).wait()
                fine(not np.array_equal(x, want), "async", *where)
                ah.reduce(x := mine(), n - 1, AVG)
                kept = want if me == n - 1 else mine()
                fine(not np.array_equal(x, kept), "reduce", *where)
                ah.reduce_scatter(out := make(length, dtype), [mine()] * n, AVG)
                fine(not np.array_equal(out, want), "reduce_scatter", *where)
                whole = make(n * length, dtype)
                whole.reshape(n, length)[:] = mine()
                ah.reduce_scatter_tensor(out := make(length, dtype), whole, AVG)
                fine(not np.array_equal(out, want), "reduce_scatter_tensor", *where)
                ah.all_reduce_coalesced([x := mine(), y := mine()], AVG)
                fine(not np.array_equal([x, y], [want, want]), "coalesced", *where)
    """
    told(job(size, script(text)))


def test_elements_of_any_kind_are_moved(job: Job) -> None:
    text = """
    import ml_dtypes
    record = np.dtype([("key", "<i2"), ("value", ">f8"), ("name", "S3")])
    kinds = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, record, ">i4", ">f8", "S5", "U3"]
    for dtype in (*kinds, "M8[s]", "m8[ns]", np.longdouble, "V7"):
        for length in (1, 5, 40_000):
            for seed, name in enumerate(MOVING):
                one = case(name, me, n, length, dtype, seed=seed)
                one.run(ah)
                fine(one.wrong(), dtype, length)
    said = failure(lambda: ah.all_reduce(np.zeros(3, "S5")))
    fine(said["error"] != "TypeError", said)
    for length in (3, 5_000, 300_000):
        x = (np.arange(length) % 7 + me).astype(ml_dtypes.bfloat16)
        ah.all_reduce(x)
        fine(not np.array_equal(x, 2 * (np.arange(length) % 7) + 1), "bfloat16", length)
    """
    told(job(2, script(text)))


def test_inputs_may_have_any_strides_and_overlap_outputs(job: Job) -> None:
    text = """
    for length in (6, 30_000):
        a = np.concatenate([values(r, length, np.float32) for r in range(n)])
        wide = np.zeros((length, 2), np.float32)
        wide[:, 1] = values(me, length, np.float32)
        out = np.zeros(n * length, np.float32)
        ah.all_gather_into_tensor(out, wide[:, 1])
        fine(not (out == a).all(), "strided", length)
        out = np.zeros(n * length, np.float32)
        out[me * length :][:length] = values(me, length, np.float32)
        ah.all_gather_into_tensor(out, out[me * length :][:length])
        fine(not (out == a).all(), "in place", length)
        x = np.tile(values(me, length, np.float32), n)
        ah.reduce_scatter_tensor(x[:length], x)
        want = sum(values(r, length, np.float32) for r in range(n))
        fine(not (x[:length] == want).all(), "scattered into its input", length)
        x = np.concatenate([values(me, length, np.float32, r) for r in range(n)])
        ah.all_to_all_single(x, x)
        want = np.concatenate([values(r, length, np.float32, me) for r in range(n)])
        fine(not (x == want).all(), "exchanged in place", length)
        lists = list(x.reshape(n, length))
        ah.all_to_all(lists, lists[::-1][::-1])
        x = wide[::-1, 1]
        outs = [np.zeros(length, np.float32) for _ in range(n)]
        ah.all_gather(outs, x)
        fine(any((o != values(r, length, np.float32)[::-1]).any() for r, o in enumerate(outs)), "-")
        x = np.zeros(4 * length + 1, np.uint8)[1:].view(np.float32)  # unaligned
        x[:] = values(me, length, np.float32)
        ah.all_reduce(x)
        want = sum(values(r, length, np.float32) for r in range(n))
        fine(not (x == want).all(), "unaligned", length)
        wide = np.zeros(16 * length + 1, np.uint8)[1:].view(np.complex128)
        wide[:] = me + 1
        ah.all_reduce(wide)
        fine(not (wide == n * (n + 1) // 2).all(), "unaligned complex", length)
        x = np.asfortranarray(np.full((2, 3), float(me)))
        said = failure(lambda: ah.all_reduce(x))
        fine(said["error"] != "ValueError", said)
        frozen = np.ones(length)
        frozen.flags.writeable = False
        said = failure(lambda: ah.broadcast(frozen))
        fine(said["error"] != "ValueError", said)
        ah.reduce(frozen if me else np.ones(length), 0)
        scalar = np.array(float(me))
        ah.all_reduce(scalar)
        fine(scalar[()] != n * (n - 1) / 2, scalar)
    """
    told(job(3, script(text)))


# ---------------------------------------------------------------- what it says


def test_a_call_says_how_it_was_carried_out(job: Job) -> None:
    text = """
    ah.all_reduce(np.ones(1))  # from here on all know how they can reach each other

    def said(name, length, make=np.empty, **more):
        one = case(name, me, n, length, make=make, **more)
        one.run(ah)
        fine(one.wrong())
        return variant()

    tell("small", said=[said(name, 2) for name in EVERY])
    tell("middle", said=[said(name, 4096) for name in EVERY if name != "barrier"])
    tell("large", said=[said(name, 1 << 18) for name in EVERY if name != "barrier"])
    tell("shared", said=[said(name, 1 << 18, shared) for name in EVERY if name != "barrier"])
    work = ah.all_reduce(np.ones(2), async_op=True)
    work.wait()
    tell("work", said=work.explain())
    """
    everything = {"small": 12, "middle": 11, "large": 11, "shared": 11}
    reduced = {2: ["swap", "mailboxes", "swap", "swap"], 3: ["mailboxes"] * 2 + ["swap"] * 2}
    for size in (2, 3):
        ranks = job(size, script(text), ALLHANDS_ARENA_ATTACH_MIN=str(1 << 16))
        said = {what: [rank.expect(what)["said"] for rank in ranks] for what in everything}
        for one in said["small"]:
            assert one == ["slots"] * everything["small"]
        for one in said["middle"]:
            moved = ["staged"] * 3 + ["swap"] * 4
            assert one == [*moved, *reduced[size]]
        for one in said["large"]:
            assert one == [*["attach"] * 7, *reduced[size]]
        for one in said["shared"]:
            assert one == ["direct"] * everything["shared"]
        for rank in ranks:
            assert rank.expect("work")["said"].startswith("all_reduce #")
        told(ranks)


@pytest.mark.parametrize("backend", ["socket"])
def test_calls_over_links_say_nothing_of_shared_memory(job: Job) -> None:
    text = """
    ah.all_reduce(np.ones(4))
    work = ah.all_reduce(np.ones(4), async_op=True)
    work.wait()
    x = ah.empty(4)
    x[:] = 1
    ah.all_reduce(x)
    tell("said", said=[variant(), ah.default_group().explain(), work.explain(), x.tolist()])
    """
    ranks = job(2, script(text))
    for rank in ranks:
        assert rank.expect("said")["said"] == ["", "", "doubling over links", [2.0] * 4]
    told(ranks)


# ---------------------------------------------------------------- arrays in shared memory

MEMORY = """
import gc

def blocks():
    '''Return the bytes that this process's own shared memory takes.'''
    found = [os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_ours(fd)]
    assert len(found) == 1, found
    return found[0].st_blocks * 512

def is_ours(fd):
    try:
        return "memfd:allhands" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the listing itself
        return False

def mapped():
    '''Return how many segments this process has open or mapped.'''
    gc.collect()
    maps = sum("memfd:allhands" in line for line in open("/proc/self/maps"))
    return maps + sum(map(is_ours, os.listdir("/proc/self/fd")))
"""


def test_views_of_shared_arrays_are_used_where_they_are(job: Job) -> None:
    text = """
    table = ah.empty((n + 1, 10_000), np.float32)
    table[...] = me
    ah.all_reduce(table[1])
    tell("view", said=variant())
    fine(not (table[1] == sum(range(n))).all() or not (table[[0, 2]] == me).all(), table)
    ah.all_gather_into_tensor(np.empty((n, 20_000), np.float32), table[:2])
    tell("rows", said=variant())
    tall = ah.empty((20_000, 2), np.float32)
    tall[...] = me
    out = np.empty((n, 20_000), np.float32)
    ah.all_gather_into_tensor(out, tall[:, 1])
    fine(not (out == np.arange(n)[:, None]).all(), out)
    tell("column", said=variant())
    mixed = np.full(10_000, me, np.float32) if me == 1 else table[0]
    ah.all_reduce(mixed)
    tell("mixed", said=variant())
    fine(not (mixed == sum(range(n))).all(), mixed)
    """
    ranks = job(3, script(text))
    for rank in ranks:
        assert rank.expect("view")["said"] == "direct"
        assert rank.expect("rows")["said"] == "direct"
        assert rank.expect("column")["said"] != "direct"
        assert rank.expect("mixed")["said"] == "mailboxes"
    told(ranks)


def test_the_memory_of_a_shared_array_goes_back_when_nobody_holds_it(job: Job) -> None:
    text = """
    ah.all_reduce(np.ones(3))
    before = blocks()
    x = ah.empty(8 << 20)  # 64 MiB
    fine(blocks() - before > 1 << 20, "taken before it is touched")
    x[:] = 7
    fine(blocks() - before < 64 << 20, "not where it should be")
    ah.all_reduce(x)
    view = x[5:9].reshape(2, 2).T
    address = x.ctypes.data
    del x
    fine(blocks() - before < 64 << 20, "gone although a view is held")
    fine(not (view == 7 * n).all(), view)
    del view
    ah.barrier()
    fine(blocks() - before > 1 << 20, "not given back", blocks() - before)
    again = ah.empty(8 << 20)
    fine(again.ctypes.data != address or again.any(), "not used again, or not zero")
    del again
    many = [ah.empty(1 + at * 1000, np.uint8) for at in range(50)]
    for at, array in enumerate(many):
        array[:] = at
    del many[::2]
    more = [ah.empty(3000, np.uint8) for _ in range(100)]
    fine(any(array.any() for array in more), "not zero")
    fine(any((array != 2 * at + 1).any() for at, array in enumerate(many)), "given out twice")
    del many, more
    fine(blocks() - before > 1 << 20, "not given back", blocks() - before)
    said = [failure(lambda: ah.empty(*what))["error"] for what in ((1 << 60,), (3, object))]
    fine(said != ["MemoryError", "TypeError"], said)
    fine(ah.empty(0).size or ah.empty((3, 0)).size or ah.empty(()).shape, "empty")
    """
    told(job(2, script(MEMORY + textwrap.dedent(text))))


def test_worlds_come_and_go_in_one_process_and_leave_nothing(job: Job) -> None:
    text = """
    kept = []
    for again in range(4):
        if again:
            ah.init_process_group(timeout=30, job=f"again-{again}")
        x = ah.empty(20_000)
        x[:] = me + again
        ah.all_reduce(x)
        fine(variant() != "direct", variant())
        group = ah.new_group(list(range(n))[::-1])
        ah.broadcast(x, 1, group=group)
        call = ah.all_reduce_init(x)
        kept.append(x)
        del x, group, call
        ah.destroy_process_group()
    until(lambda: mapped() == 2 * len(kept))  # their own memory, open and mapped
    for again, x in enumerate(kept):
        fine(not (x == sum(range(n)) + again * n).all(), "unreadable", again)
    del x
    kept.clear()
    until(lambda: mapped() == 0)
    tell("done", faults=faults)
    """
    told(job(2, USE + textwrap.dedent(MEMORY) + textwrap.dedent(text)))


# ---------------------------------------------------------------- prepared calls


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_prepared_call_is_made_again_and_again(job: Job) -> None:
    text = """
    for length in (1, 1_000, 100_000):
        x, y = np.empty(length), np.empty(length)
        call, other = ah.all_reduce_init(x), ah.all_reduce_init(y, ah.ReduceOp.MAX, label="other")
        for step in range(200 if length < 100_000 else 5):
            x[:], y[:] = step + me, step - me
            call.start()
            if step % 3 == 1:  # others come between
                z = np.full(7, float(me))
                ah.all_reduce(z)
                fine(not (z == sum(range(n))).all(), "between", z)
            if step % 5 == 2:
                works = [ah.broadcast(np.full(3, float(me)), 1, async_op=True) for _ in range(3)]
                fine(any((work.result() != 1).any() for work in works), "broadcast")
            if step % 2:
                other.start()
            call.wait()
            fine(not (x == n * step + sum(range(n))).all(), "prepared", step, x)
            if step % 2:
                other.wait()
                fine(not (y == step).all(), "max", step, y)
    """
    told(job(3, script(text)))


def test_a_prepared_call_that_is_misused_says_so_and_the_group_goes_on(job: Job) -> None:
    text = """
    ah.barrier()
    x = np.ones(3)
    call = ah.all_reduce_init(x)
    fine("not started" not in failure(call.wait)["text"], "waited before")
    call.start()
    fine("started already" not in failure(call.start)["text"], "started twice")
    call.wait()
    fine("not started" not in failure(call.wait)["text"], "waited twice")
    fine(not (x == n).all(), x)
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
            fine(not (x == n).all(), "resized", x)
        elif change == "dtype":
            x.dtype = np.int64
            x[:] = -3
            call.start()
            call.wait()
            fine(not (x == -3 * n).all(), "of another dtype", x)
        else:
            x.flags.writeable = False
            said = failure(call.start)
            fine(said["error"] != "ValueError", said)
    bad = ([1.0], x[::2], x.astype("S3"))
    said = [failure(lambda: ah.all_reduce_init(one))["error"] for one in bad]
    fine(said != ["TypeError", "ValueError", "TypeError"], said)
    dropped = np.full(5, float(me))
    call = ah.all_reduce_init(dropped)
    call.start()
    del call
    z = np.ones(3)
    ah.all_reduce(z)
    fine(not (z == n).all() or not (dropped == sum(range(n))).all(), z, dropped)
    call = ah.all_reduce_init(z)
    call.start()
    del call  # and is finished by leaving
    """
    told(job(2, script(text)))


def test_a_prepared_call_that_fails_can_be_made_again(job: Job) -> None:
    text = """
    ah.barrier()
    x = np.ones(3)
    call = ah.all_reduce_init(x, timeout=0.2, label="mine")
    if me == 0:
        call.start()
        said = failure(call.wait)
        fine(said["error"] != "CollectiveTimeout" or "mine" not in said["text"], said)
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
    fine(not (x == n).all(), x)
    call.start()
    if me == 0:
        said = failure(lambda: ah.all_reduce(np.ones(2)))
    else:
        said = failure(lambda: ah.all_reduce(np.ones(4)))
    fine(said["error"] != "CollectiveMismatch", said)
    call.wait()
    fine(not (x == n * n).all(), x)
    """
    ranks = job(2, script(text))
    ranks[0].expect("late")
    for rank in ranks:
        rank.say()
    told(ranks)


# ---------------------------------------------------------------- limits and who can share


def test_limits_choose_how_a_call_is_carried_out(job: Job) -> None:
    text = """
    ah.all_reduce(np.ones(1))
    said = []
    for name, nbytes in (("all_reduce", 500), ("all_reduce", 1000), ("broadcast", 100_000)):
        one = case(name, me, n, nbytes // 4)
        one.run(ah)
        fine(one.wrong(), name, nbytes)
        said.append(variant())
    tell("said", said=said)
    """
    slots = {"ALLHANDS_ARENA_SLOT_MAX": "600"}
    attach = {"ALLHANDS_ARENA_ATTACH_MIN": "65536"}
    never = {"ALLHANDS_ARENA_ATTACH_MIN": "-1"}
    chunk = {"ALLHANDS_ARENA_CHUNK": "4096"}
    for given, want in (
        ({}, ["slots", "slots", "staged"]),
        ({**slots, **attach}, ["slots", "swap", "attach"]),
        ({**slots, **never, **chunk}, ["slots", "swap", "staged"]),
    ):
        ranks = job(2, script(text), **given)
        for rank in ranks:
            assert rank.expect("said")["said"] == want
        told(ranks)


def test_ranks_with_other_limits_talk_over_links_and_say_so(cluster: Cluster) -> None:
    text = script(
        """
        for seed, name in enumerate(EVERY):
            one = case(name, me, n, 5_000, seed=seed, make=shared)
            one.run(ah)
            fine(one.wrong(), name)
        tell("said", said=ah.default_group().explain())
        pair = ah.new_group([1, 2])
        if me:
            x = np.ones(3)
            ah.all_reduce(x, group=pair)
            fine(not (x == 2).all(), x)
            tell("pair", said=pair.explain())
        """
    )
    url = cluster.daemon() + "/job"
    ranks = [
        cluster.start(
            text,
            RANK=str(rank),
            WORLD_SIZE="3",
            ALLHANDS_URL=url,
            ALLHANDS_ARENA_CHUNK="65536" if rank else "4096",
        )
        for rank in range(3)
    ]
    assert [rank.expect("said")["said"] for rank in ranks] == ["", "", ""]
    for rank in ranks[1:]:
        assert "slots" in rank.expect("pair")["said"]
    told(ranks)
    for rank in ranks:
        assert "group 'world' talks over links" in "".join(rank.errors)
        assert "ALLHANDS_ARENA_" in "".join(rank.errors)


def test_who_insists_on_shared_memory_that_cannot_be_is_told_why(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    text = """
    tell("told", **failure(lambda: ah.init_process_group(timeout=5, backend="shm")))
    os._exit(0)
    """
    ranks = [
        cluster.start(
            text if not rank else text.replace('"shm"', '"socket"'),
            RANK=str(rank),
            WORLD_SIZE="2",
            ALLHANDS_URL=url,
        )
        for rank in range(2)
    ]
    said = ranks[0].expect("told")
    assert said["error"] == "AllhandsError", said
    assert "cannot share memory" in said["text"]
    assert "backend='auto'" in said["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
def test_ranks_in_two_network_namespaces_do_without_shared_memory(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    text = """
    import ctypes
    if os.environ["RANK"] == "1":
        door = os.open("/proc/self/ns/net", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWNET
        from allhands.shm import arena
        key = arena.host_key()
        assert libc.setns(door, 0) == 0, os.strerror(ctypes.get_errno())
        assert key != arena.host_key()
        arena.host_key = lambda: key  # as seen from there; the sockets must stay reachable
    backend = os.environ["WANTED"]
    said = failure(lambda: ah.init_process_group(timeout=10, backend=backend))
    if said["error"]:
        tell("refused", **said)
        os._exit(0)
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist(), said=ah.default_group().explain())
    ah.destroy_process_group()
    """
    for wanted in ("auto", "shm"):
        ranks = cluster.world(2, text, ALLHANDS_URL=url + wanted, WANTED=wanted)
        for rank in ranks:
            said = rank.expect("done" if wanted == "auto" else "refused")
            if wanted == "auto":
                assert said["x"] == [2.0] * 3
                assert said["said"] == ""
            else:
                assert "cannot share memory" in said["text"]


# ---------------------------------------------------------------- groups


def test_groups_in_any_order_of_ranks_are_right(job: Job) -> None:
    text = """
    for ranks in ([2, 0, 1], [1, 0], [2, 1], [0, 2], [2], [2, 1, 0]):
        group = ah.new_group(ranks)
        at = ah.get_rank(group)
        if at < 0:
            continue
        for length in (3, 5_000, 60_000):
            for seed, name in enumerate(EVERY):
                one = case(name, at, len(ranks), length, root=seed % len(ranks), seed=seed)
                one.run(group).wait()
                fine(one.wrong(), ranks, length)
        if len(ranks) > 1:
            fine("shared memory" not in group.explain(), ranks, group.explain())
        ah.destroy_process_group(group)
        for async_op in (False, True):
            late = case("all_reduce", at, len(ranks), 3)
            said = failure(lambda: (late.run(ah, group=group, async_op=async_op) or group).wait())
            fine("destroyed" not in said["text"], said)
    """
    told(job(3, script(text)))


def test_groups_made_and_forgotten_do_not_pile_up_memory(job: Job) -> None:
    text = """
    def use(count):
        for _ in range(count):
            group = ah.new_group([1, 0])
            x = np.ones(200_000)
            ah.all_reduce(x, group=group)
            fine(not (x == n).all(), x)
            ah.destroy_process_group(group)
        ah.barrier()
        gc.collect()

    use(5)
    before = blocks(), len(threading.enumerate())
    use(60)
    grown = blocks() - before[0]
    fine(grown > 60 * 4096, "bytes", grown)
    until(lambda: len(threading.enumerate()) <= before[1])
    """
    told(job(2, script(MEMORY + textwrap.dedent(text))))


# ---------------------------------------------------------------- forks


def test_a_forked_child_is_told_that_it_is_no_rank_and_its_parent_goes_on(job: Job) -> None:
    text = """
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
    fine(status, "child")
    fine(not (kept == me).all(), "the child's doing", kept)
    ah.all_reduce(kept)
    fine(not (kept == sum(range(n))).all(), kept)
    call.start()
    call.wait()
    """
    told(job(2, script(MEMORY + textwrap.dedent(text))))


def test_a_call_behind_a_prepared_one_does_not_overtake_what_was_queued(job: Job) -> None:
    text = """
    ah.barrier()
    x, y, z = (np.full(3, float(at)) for at in (1, 2, 3))
    call = ah.all_reduce_init(x)
    main = threading.main_thread().ident
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
    fine([x[0], y[0], z[0]] != [2, 4, 6], x, y, z)
    """
    ranks = job(2, script(text))
    ranks[0].expect("queued")
    ranks[1].say()
    told(ranks)
