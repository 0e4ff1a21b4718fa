"""v-variants and collectives on objects over shared memory, and the ways that they take."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands.collectives.core_call import sign_call
from programs.faults import Faults
from programs.list_calls import list_functions
from programs.protocol import failure, tell

Array = npt.NDArray[Any]

PLAIN = ("bool", "int8", "int64", "uint16", "float16", "float32", "complex128", ml_dtypes.bfloat16)
OTHER = (">f8", "U3", "datetime64[s]")
SHAPES = ((), (1,), (0,), (5, 0, 2), (3, 2), (2, 1, 2, 1, 2, 1, 1, 2), (70, 90), (300, 400))


def is_direct(call: Callable[[], object]) -> bool:
    """Make a call; return whether the plain function gave it to the core at once."""
    return "resolve_group" not in list_functions(call)  # with which the checked way begins


def make(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return the array that a rank brings: its shape has a dimension more on odd ranks."""
    shape = (*shape, 2) if rank % 2 and len(shape) < 8 else shape
    numbers = np.arange(int(np.prod(shape))) + rank
    return (numbers % 97).astype(dtype).reshape(shape)


def check(faults: Faults, found: list[Array], wanted: list[Array], *where: object) -> None:
    """Note results of another dtype, shape or content, or in memory that is not their own."""
    faults.note(len(found) != len(wanted), *where, "length")
    for got, want in zip(found, wanted, strict=False):
        alike = got.dtype == want.dtype and got.shape == want.shape
        faults.note(not alike or got.tobytes() != want.tobytes(), *where, got.shape, want.shape)
        faults.note(not (got.flags.c_contiguous and got.flags.writeable), *where, "flags")


def call_each(
    faults: Faults, me: int, n: int, shape: tuple[int, ...], dtype: Any, is_plain: bool
) -> None:
    """Make each call once on arrays of a shape and dtype; each goes the way that it should."""
    arrays = [make(rank, shape, dtype) for rank in range(n)]
    results: dict[str, Any] = {}

    def keep(name: str, call: Callable[[], object]) -> None:
        direct = is_direct(lambda: results.update({name: call()}))
        faults.note(direct != is_plain, name, shape, dtype, "way")

    x, root = arrays[me], n - 1
    keep("all_gather_v", lambda: ah.all_gather_v(x))
    keep("gather_v", lambda: ah.gather_v(x, root))
    sent = [make(me + rank, shape, dtype) for rank in range(n)]
    keep("all_to_all_v", lambda: ah.all_to_all_v(sent if me else tuple(sent)))
    check(faults, results["all_gather_v"], arrays, "all_gather_v", shape, dtype)
    if me == root:
        check(faults, results["gather_v"], arrays, "gather_v", shape, dtype)
    else:
        faults.note(results["gather_v"] is not None, "gather_v", shape, dtype)
    received = [make(me + rank, shape, dtype) for rank in range(n)]
    check(faults, results["all_to_all_v"], received, "all_to_all_v", shape, dtype)
    own = results["all_gather_v"][me]
    faults.note(own.nbytes and np.shares_memory(own, x), "own memory", shape, dtype)


def call_all(options: dict[str, Any]) -> None:
    """Make calls on arrays of every kind; groups of other options have another way."""
    ah.init_process_group(timeout=30, **options)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for dtype in (*PLAIN, *OTHER):
        for shape in SHAPES if dtype == "float32" else SHAPES[:6]:
            call_each(faults, me, n, shape, dtype, not options and dtype in PLAIN)
    half = ah.new_group([0, n - 1]) if n > 1 and not options else None
    if isinstance(half, ah.Group):
        ah.barrier(half)
        found: list[Array] | None = None

        def gather() -> None:
            nonlocal found
            found = ah.gather_v(np.full(me + 1, me), n - 1, half)

        faults.note(not is_direct(gather), "subgroup", "way")
        faults.note((found is None) == (me == n - 1), "subgroup")
        if found is not None:
            check(faults, found, [np.full(r + 1, r) for r in (0, n - 1)], "subgroup")
    tell("done", faults=faults)
    ah.destroy_process_group()


def mix_ways() -> None:
    """Let one rank's calls be checked, or begun and waited for, and the others' not."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for odd in range(n):
        for length in (1, 6, 9_000):
            x = np.arange(2.0 * (length + me))[:: 2 if me == odd else 1]
            wanted = [np.arange(2.0 * (length + r))[:: 2 if r == odd else 1] for r in range(n)]
            check(faults, ah.all_gather_v(x), wanted, odd, length)
            begun = ah.all_gather_v(x, async_op=True) if me == odd else None
            found = ah.all_gather_v(x) if begun is None else begun.result()
            check(faults, found, wanted, odd, length, "begun")
            objects = [None] * n
            if me == odd:
                ah.all_gather_object(objects, x, timeout=20)
            else:
                ah.all_gather_object(objects, x)
            check(faults, [np.asarray(one) for one in objects], wanted, odd, length, "objects")
    with ah.coalescing(async_ops=True) as manager:
        work = ah.all_gather_v(np.full(me, 1), async_op=True)
        said = failure(lambda: ah.all_gather_v(np.full(me, 2)))
        faults.note("at the end of the block" not in said["text"], "collected", said)
    manager.wait()
    check(faults, work.result(), [np.full(r, 1) for r in range(n)], "collected")
    tell("done", faults=faults)
    ah.destroy_process_group()


def exchange_objects(options: dict[str, Any]) -> None:
    """Send objects of several kinds and sizes, from every root."""
    ah.init_process_group(timeout=30, **options)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator

    def value(rank: int, length: int) -> dict[str, Any]:
        return {"rank": rank, "items": list(range(rank)), "array": np.full(length, rank)}

    def same(got: Any, want: dict[str, Any]) -> bool:
        array = got["array"]
        return {**got, "array": 0} == {**want, "array": 0} and (array == want["array"]).all()

    for length in (0, 3, 9_000):
        found: list[Any] = [None] * n
        direct = is_direct(lambda: ah.all_gather_object(found, value(me, length)))
        faults.note(direct != (not options), "all_gather_object", "way")
        right = [same(one, value(rank, length)) for rank, one in enumerate(found)]
        faults.note(not all(right), "all_gather_object", length, right)
        for root in range(n):
            values: list[Any] = [value(root, length), root] if me == root else [None, None]
            direct = is_direct(lambda: ah.broadcast_object_list(values, root))
            faults.note(direct != (not options), "broadcast_object_list", "way")
            faults.note(not same(values[0], value(root, length)), "broadcast", length, root)
            faults.note(values[1] != root, "broadcast", length, root)
    tell("done", faults=faults)
    ah.destroy_process_group()


def differ() -> None:
    """Make calls that do not fit, which are refused on all ranks; later ones succeed."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    x = np.ones(3)
    objects: list[Any] = [None] * n
    ah.gather_v(x, 0)  # the core keeps the root of a call for the next
    calls: dict[str, Callable[[], object]] = {
        "dtype": lambda: ah.all_gather_v(x.astype("f4" if me else "f8")),
        "root": lambda: ah.gather_v(x, min(me, 1)),
        "call": lambda: ah.all_gather_v(x) if me else ah.all_to_all_v([x] * n),
        "object": lambda: ah.all_gather_object(objects, me) if me else ah.all_gather_v(x),
        "count": lambda: ah.broadcast_object_list([1] * (1 + min(me, 1))),
    }
    for name, call in calls.items():
        said = failure(call)
        again = [one.tolist() for one in ah.all_gather_v(np.full(me, 7))]
        right = again == [[7] * rank for rank in range(n)]
        tell("refused", name=name, right=right, error=said["error"], text=said["text"])
    tell("done", faults=[])
    ah.destroy_process_group()


def refuse_arguments() -> None:
    """Tell the errors of wrong arguments, before the first call of a group and after it."""
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    x = np.ones(3)
    calls: dict[str, Callable[[], object]] = {
        "no array": lambda: ah.all_gather_v(None),  # type: ignore[call-overload]
        "root": lambda: ah.gather_v(x, n),
        "too few": lambda: ah.all_to_all_v([x] * (n - 1)),
        "dtypes": lambda: ah.all_to_all_v([x] * (n - 1) + [x.astype("f4")]),
        "no list": lambda: ah.all_to_all_v(x),  # type: ignore[call-overload]
        "no object": lambda: ah.all_gather_object([None] * n, object()),
        "no places": lambda: ah.all_gather_object([], 1),
        "no items": lambda: ah.broadcast_object_list([]),
        "no list of objects": lambda: ah.broadcast_object_list((1,)),  # type: ignore[arg-type]
        "no such root": lambda: ah.broadcast_object_list([1], n),
    }
    for phase in ("checked", "direct"):
        for name, call in calls.items():
            said = failure(call)
            tell("said", phase=phase, name=name, error=said["error"], text=said["text"])
        ah.barrier()  # from here on there is a communicator
    tell("done", sequence=ah.default_group().sequence)
    ah.destroy_process_group()


def send_what_is_no_array() -> None:
    """Send bytes that are no arrays to a rank that takes arrays."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    comm = ah.default_group().order.comm
    assert comm is not None
    signed = sign_call("all_gather_v", "float64")
    x = np.arange(3.0)
    good = np.array([48, 1, 0, 1, 3, 0], np.int64)  # bytes, arrays, name, dimensions, dimension

    def change(at: int, number: int) -> Array:
        changed = good.copy()
        changed[at] = number
        return changed

    heads = {
        "short": good[:3],
        "bytes": change(0, 64),
        "arrays": change(1, 2),
        "name": change(2, 1),
        "dimensions": change(3, 1 << 40),
        "negative dimensions": change(3, -1),
        "length": change(4, 4),
        "negative length": change(4, -3),
        "overflow": change(4, (1 << 61) + 3),
        "good": good,
    }
    for name, head in heads.items():
        if me == 0:
            data = b"" if name == "short" else x.tobytes()
            comm.exchange_now(
                (head.tobytes(), data), signed.call, signed.call.operation, signed.signature
            )
        else:
            said = failure(lambda: ah.all_gather_v(x))
            tell("refused", name=name, error=said["error"], text=said["text"])
        ah.barrier()
    tell("done", faults=[])
    ah.destroy_process_group()
