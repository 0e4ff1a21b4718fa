"""Calls of ranks that share memory: right over every face, for every array, and said so."""

import json
import textwrap
from typing import Any

import pytest

from harness import Job, Process

USE = """
import asyncio
from collectives import *
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
    from collectives import *
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
    said = failure(lambda: ah.all_reduce(np.zeros(3, ml_dtypes.float8_e5m2)))
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
        assert rank.expect("said")["said"] == ["", "", "", [2.0] * 4]
    told(ranks)
