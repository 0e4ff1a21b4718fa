"""scatter_v and reduce_scatter_v over shared memory: results, the ways that they take, failures."""

import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import allhands as ah
from allhands.collectives.vector import sign_arrays
from programs.faults import Faults
from programs.protocol import failure, hear, tell, until
from programs.shared_segments import variant
from programs.vector_calls import OTHER, PLAIN, SHAPES, Array, check, is_direct, make

UFUNCS = {"SUM": np.add, "MAX": np.maximum, "BXOR": np.bitwise_xor}


def call_directly(faults: Faults, is_wanted: bool, call: Callable[[], Any], *where: object) -> Any:
    """Make a call and return its result; note if it goes another way than it should."""
    results: list[Any] = []
    faults.note(is_direct(lambda: results.append(call())) != is_wanted, *where, "way")
    return results[0]


# ---------------------------------------------------------------- scatter_v


def scatter_all(options: dict[str, Any]) -> None:
    """Scatter arrays of every kind from every root; groups of other options have another way."""
    ah.init_process_group(timeout=30, **options)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for dtype in (*PLAIN, *OTHER):
        for at, shape in enumerate(SHAPES if dtype == "float32" else SHAPES[:6]):
            root = at % n
            arrays = [make(rank + at, shape, dtype) for rank in range(n)]
            given = arrays if me == root else [None, []][me % 2]
            found = call_directly(
                faults,
                not options and (me != root or dtype in PLAIN),
                functools.partial(ah.scatter_v, given, root),
                *("scatter_v", shape, dtype),
            )
            check(faults, [found], [arrays[me]], "scatter_v", shape, dtype)
            faults.note(np.shares_memory(found, arrays[me]), "own memory", shape, dtype)
    if n > 1 and not options:
        half = ah.new_group([0, n - 1])
        if isinstance(half, ah.Group):
            ah.barrier(half)
            given = [np.full(3, 0), np.full((2, 2), 1)] if me == n - 1 else None
            found = call_directly(faults, True, lambda: ah.scatter_v(given, n - 1, half), "half")
            check(faults, [found], [np.full(3, 0) if me == 0 else np.full((2, 2), 1)], "half")
    tell("done", faults=faults)
    ah.destroy_process_group()


def scatter_ahead() -> None:
    """Scatter small arrays from rank 0, which does not wait once all have made such a call."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    for at in range(20):
        if at == 10 and me:
            hear()
        found = ah.scatter_v([np.full(rank + 1, at) for rank in range(n)] if me == 0 else None, 0)
        assert found.tolist() == [at] * (me + 1), found
    if me == 0:
        tell("ahead")
        hear()
    large = ah.scatter_v([np.full(50_000 + rank, rank) for rank in range(n)] if me == 0 else None)
    assert large.tolist() == [me] * (50_000 + me)
    ah.destroy_process_group()


def send_what_is_no_typed_array() -> None:
    """Send bytes that are no arrays with a dtype to a rank that takes such."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    comm = ah.default_group().order.comm
    assert comm is not None
    call, signature = sign_arrays("scatter_v", None, 0)

    def head(name: bytes, *numbers: int) -> bytes:
        packed = struct.pack(f"<{len(numbers)}q", *numbers) + name
        return packed.ljust(-(-len(packed) // 16) * 16, b"\0")

    heads = {
        "short": b"\0" * 24,
        "bytes": head(b"<f8", 64, 1, 3, 1, 3),
        "arrays": head(b"<f8", 48, 2, 3, 1, 3),
        "no name": head(b"", 48, 1, 0, 1, 3),
        "long name": head(b"<f8", 48, 1, 1 << 40, 1, 3),
        "negative name": head(b"<f8", 48, 1, -3, 1, 3),
        "unknown dtype": head(b"<q9", 48, 1, 3, 1, 3),
        "no text": head(b"\xff\xfe\xfd", 48, 1, 3, 1, 3),
        "objects": head(b"|O8", 48, 1, 3, 1, 3),
        "dimensions": head(b"<f8", 48, 1, 3, 1 << 40, 3),
        "length": head(b"<f8", 48, 1, 3, 1, 4),
        "negative length": head(b"<f8", 48, 1, 3, 1, -3),
        "overflow": head(b"<f8", 48, 1, 3, 1, (1 << 61) + 3),
        "good": head(b"<f8", 48, 1, 3, 1, 3),
    }
    for name, bad in heads.items():
        if me == 0:
            data = b"" if name == "short" else np.arange(3.0).tobytes()
            comm.exchange_now([(), (bad, data)], call, call.operation, signature, 0)
        else:
            said = failure(lambda: tell("came", values=ah.scatter_v(None, 0).tolist()))
            tell("refused", name=name, error=said["error"], text=said["text"])
        ah.barrier()
    tell("done", faults=[])
    ah.destroy_process_group()


# ---------------------------------------------------------------- reduce_scatter_v


def numbers(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return what a rank brings: numbers so small that every sum of them is exact."""
    count = int(np.prod(shape))
    return ((np.arange(count) + 2 * rank) % 7).astype(dtype).reshape(shape)


def combine(ufunc: np.ufunc, brought: Sequence[Array]) -> Array:
    return functools.reduce(lambda x, y: ufunc(x, y).astype(x.dtype), brought)


def reduce_all(options: dict[str, Any]) -> None:
    """Reduce blocks of unequal shapes of every dtype, in memory of every kind."""
    ah.init_process_group(timeout=30, **options)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    variants: set[str] = set()
    for dtype in PLAIN:
        known: Any = np.dtype(dtype)
        for at, first in enumerate(SHAPES):
            shapes = [SHAPES[(at + rank) % len(SHAPES)] if rank else first for rank in range(n)]
            for name, ufunc in UFUNCS.items():
                if not is_defined(name, known):
                    continue
                for memory in (np.empty, ah.empty):
                    mine = [memory(shape, known) for shape in shapes]
                    for one, shape in zip(mine, shapes, strict=True):
                        one[...] = numbers(me, shape, known)
                    kept = [one.copy() for one in mine]
                    op = ah.ReduceOp[name] if at % 2 else name.lower()
                    found = call_directly(
                        faults,
                        not options,
                        functools.partial(ah.reduce_scatter_v, mine, op),
                        *("reduce_scatter_v", shapes, dtype, name),
                    )
                    variants.add(variant())
                    brought = [numbers(rank, shapes[me], known) for rank in range(n)]
                    where = "reduce_scatter_v", shapes, dtype, name, memory.__name__
                    check(faults, [found], [combine(ufunc, brought)], *where)
                    check(faults, mine, kept, *where, "inputs")
                    faults.note(any(np.shares_memory(found, one) for one in mine), *where, "memory")
    mean = ah.reduce_scatter_v([np.full(rank + 1, 3.0 * me) for rank in range(n)], "avg")
    faults.compare(mean, np.full(me + 1, 3.0 * (n - 1) / 2), "avg")
    record = ah.flight_recorder()[-1]
    facts = record.operation, record.nbytes
    wanted = "reduce_scatter_v", 8 * n * (n + 1) // 2
    faults.note(not options and facts != wanted, "record", facts)
    tell("done", faults=faults, variants=sorted(variants))
    ah.destroy_process_group()


def is_defined(op: str, dtype: "np.dtype[Any]") -> bool:
    kind = dtype.kind
    return op == "SUM" or (op == "MAX" and kind != "c") or (op == "BXOR" and kind in "bui")


def reduce_by_functions() -> None:
    """Reduce with operations that the core does not know."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    half = ah.ReduceOp.premul_sum(0.5)
    for length in (0, 3, 5_000):
        mine = [np.full(length + rank, me + 1.0) for rank in range(n)]
        found = call_directly(faults, False, functools.partial(ah.reduce_scatter_v, mine, half))
        faults.compare(found, np.full(length + me, n * (n + 1) / 4), length)
    tell("done", faults=faults)
    ah.destroy_process_group()


# ---------------------------------------------------------------- both


def unaligned(x: Array) -> Array:
    """Return a copy at an odd address."""
    return np.frombuffer(bytearray(b"x" + x.tobytes()), np.uint8)[1:].view(x.dtype)


def mix_ways() -> None:
    """Let one rank's calls be checked, or begun and waited for, and the others' not."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for odd in range(n):
        is_odd = me == odd
        for length in (1, 6, 9_000):
            where = odd, length
            whole = [np.arange(2.0 * (length + rank)) for rank in range(n)]
            given = [one[::2] if is_odd else one[::2].copy() for one in whole]
            own, total = given[me].copy(), n * given[me]
            for root in range(n):
                brought = given if me == root else None
                check(faults, [ah.scatter_v(brought, root)], [own], *where, root, "scatter_v")
                if is_odd:
                    timed = ah.scatter_v(brought, root, timeout=20)
                else:
                    timed = ah.scatter_v(brought, root)
                check(faults, [timed], [own], *where, root, "timeout")
                begun = ah.scatter_v(brought, root, async_op=True) if is_odd else None
                found = ah.scatter_v(brought, root) if begun is None else begun.result()
                check(faults, [found], [own], *where, root, "begun")
            check(faults, [ah.reduce_scatter_v(given)], [total], *where, "reduce_scatter_v")
            begun = ah.reduce_scatter_v(given, async_op=True) if is_odd else None
            found = ah.reduce_scatter_v(given) if begun is None else begun.result()
            check(faults, [found], [total], *where, "begun")
            moved = [unaligned(one) for one in given] if is_odd else given
            check(faults, [ah.reduce_scatter_v(moved)], [total], *where, "unaligned")
    with ah.coalescing(async_ops=True) as manager:
        work = ah.scatter_v(
            [np.full(rank, 3) for rank in range(n)] if me == 0 else None, 0, None, True
        )
    manager.wait()
    check(faults, [work.result()], [np.full(me, 3)], "collected")
    tell("done", faults=faults)
    ah.destroy_process_group()


def differ() -> None:
    """Make calls that do not fit, which are refused on all ranks; later ones succeed."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    x = np.ones(3)
    odd = me == 1
    shapes = [3, 4, 5][:n], [4, 3, 5][:n]
    calls: dict[str, Callable[[], object]] = {
        "root": lambda: ah.scatter_v([x] * n if me in (0, 1) else None, min(me, 1)),
        "call": lambda: ah.reduce_scatter_v([x] * n) if odd else ah.all_to_all_v([x] * n),
        "sizes": lambda: ah.reduce_scatter_v([np.ones(one) for one in shapes[odd]]),
        "shapes": lambda: ah.reduce_scatter_v([np.ones((3, 2) if odd else (2, 3))] * n),
        "dimensions": lambda: ah.reduce_scatter_v([np.ones((6, 1) if odd else 6)] * n),
        "large sizes": lambda: ah.reduce_scatter_v(
            [np.ones(9_000 + (odd and at)) for at in range(n)]
        ),
        "operation": lambda: ah.reduce_scatter_v([x] * n, "max" if odd else "sum"),
        "dtype": lambda: ah.reduce_scatter_v([x.astype("f4" if odd else "f8")] * n),
        "primitive": lambda: (
            ah.reduce_scatter_v([x] * n) if odd else ah.reduce_scatter(np.zeros(3), [x] * n)
        ),
    }
    for name, call in calls.items():
        said = failure(call)
        again = ah.reduce_scatter_v([np.full(rank, 7) for rank in range(n)])
        right = again.tolist() == [7 * n] * me
        tell("refused", name=name, right=right, error=said["error"], text=said["text"])
    tell("done", faults=[])
    ah.destroy_process_group()


def refuse_arguments() -> None:
    """Tell the errors of wrong arguments, before the first call of a group and after it."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    x = np.ones(3)
    calls: dict[str, Callable[[], object]] = {
        "no list at the root": lambda: ah.scatter_v(None, me),
        "no list of arrays": lambda: ah.scatter_v(x, me),  # type: ignore[call-overload]
        "a list elsewhere": lambda: ah.scatter_v([x] * n, (me + 1) % n),
        "too few": lambda: ah.scatter_v([x] * (n - 1), me),
        "dtypes": lambda: ah.scatter_v([x] * (n - 1) + [x.astype("f4")], me),
        "objects": lambda: ah.scatter_v([np.array([None])] * n, me),
        "root": lambda: ah.scatter_v(None, n),
        "too few to reduce": lambda: ah.reduce_scatter_v([x] * (n - 1)),
        "dtypes to reduce": lambda: ah.reduce_scatter_v([x] * (n - 1) + [x.astype("f4")]),
        "name": lambda: ah.reduce_scatter_v([x] * n, "mean of all"),
        "no operation": lambda: ah.reduce_scatter_v([x] * n, 3),  # type: ignore[call-overload]
        "not of floats": lambda: ah.reduce_scatter_v([x] * n, ah.ReduceOp.BAND),
        "no numbers": lambda: ah.reduce_scatter_v([np.array(["a"])] * n),
    }
    for phase in ("checked", "direct"):
        for name, call in calls.items():
            said = failure(call)
            tell("said", phase=phase, name=name, error=said["error"], text=said["text"])
        ah.barrier()  # from here on there is a communicator
    tell("done", sequence=ah.default_group().sequence)
    ah.destroy_process_group()


# ---------------------------------------------------------------- ranks that do not come


def call_ragged(name: str, length: int) -> Array:
    """Make a call that needs the last rank on all others; return its result."""
    me, n = ah.get_rank(), ah.get_world_size()
    arrays = [np.full(length + rank, me) for rank in range(n)]
    if name == "reduce_scatter_v":
        return np.asarray(ah.reduce_scatter_v(arrays))
    return np.asarray(ah.scatter_v(arrays if me == n - 1 else None, n - 1))


def lose_a_rank(name: str, length: int) -> None:
    """Make calls of which the last is one that the last rank never makes: it is killed."""
    ah.init_process_group(timeout=40)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    for _ in range(3):
        call_ragged(name, length)
    if me == n - 1:
        ah.barrier()
        tell("here")
        hear()
    ah.barrier()
    group = ah.default_group()
    before = group.sequence
    threading.Thread(
        target=lambda: (until(lambda: group.sequence > before), tell("called")), daemon=True
    ).start()
    tell("failed", **failure(lambda: call_ragged(name, length)))


def wait_for_a_rank(name: str, length: int) -> None:
    """Let the last rank come when the others' time is over; later calls are right."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    call_ragged(name, length)
    if me == n - 1:
        hear()
        tell("late", **failure(lambda: call_ragged(name, length)))
    else:
        with ah.deadline(0.2):
            tell("timeout", **failure(lambda: call_ragged(name, length)))
    rights = []
    for _ in range(3):
        found = call_ragged(name, length)
        wanted = n * (n - 1) // 2 if name == "reduce_scatter_v" else n - 1
        rights.append(found.tolist() == [wanted] * (length + me))
    tell("next", right=all(rights))
    ah.destroy_process_group()
