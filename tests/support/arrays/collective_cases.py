"""Collective calls whose results are known to the last bit; for the scripts of ranks."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands.collectives.reduction import check

Array = npt.NDArray[Any]
Make = Callable[[int, "np.dtype[Any]"], Array]

MOVING = (
    "broadcast",
    "gather",
    "scatter",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all",
    "all_to_all_single",
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
EVERY = (*MOVING, *REDUCING, "barrier")

_UFUNCS = {
    ah.ReduceOp.SUM: np.add,
    ah.ReduceOp.AVG: np.add,
    ah.ReduceOp.PRODUCT: np.multiply,
    ah.ReduceOp.MIN: np.minimum,
    ah.ReduceOp.MAX: np.maximum,
    ah.ReduceOp.BAND: np.bitwise_and,
    ah.ReduceOp.BOR: np.bitwise_or,
    ah.ReduceOp.BXOR: np.bitwise_xor,
    ah.ReduceOp.LAND: np.logical_and,
    ah.ReduceOp.LOR: np.logical_or,
    ah.ReduceOp.LXOR: np.logical_xor,
}


@dataclass
class Case:
    """One call: its arguments, and what they must be afterwards."""

    name: str
    arguments: tuple[Any, ...]
    written: list[Array]
    expected: list[Array]
    unchanged: list[Array]

    def __post_init__(self) -> None:
        self._before = [array.copy() for array in self.unchanged]

    def run(self, face: Any, **more: Any) -> Any:
        """Make the call on a face that has it as a method or function."""
        return getattr(face, self.name)(*self.arguments, **more)

    def wrong(self) -> str:
        """Say what is not as it must be after the call; "": all is."""
        for at, (have, want) in enumerate(zip(self.written, self.expected, strict=True)):
            if not _same(have, want.astype(have.dtype)):
                return f"{self.name}: output {at}: {have.ravel()[:8]} for {want.ravel()[:8]}"
        for at, (have, want) in enumerate(zip(self.unchanged, self._before, strict=True)):
            if not _same(have, want):
                return f"{self.name}: input {at} was changed"
        return ""


def _same(one: Array, other: Array) -> bool:
    if one.dtype.char in "gG":  # with gaps, which nobody need copy
        return bool((one == other).all())
    return one.tobytes() == other.tobytes()


def values(rank: int, length: int, dtype: npt.DTypeLike, seed: int = 0) -> Array:
    """Return what a rank brings: small whole numbers, of which sums are exact."""
    return _pattern((rank + 3) % 7, (5 * rank + seed) % 7, length, np.dtype(dtype))


@functools.lru_cache(256)
def _pattern(factor: int, offset: int, length: int, dtype: "np.dtype[Any]") -> Array:
    if dtype.kind in "biufc":
        numbers = (np.arange(length) * factor + offset) % 7 + 1
        made: Array = (numbers % 2 if dtype.kind == "b" else numbers).astype(dtype)
    else:  # its bytes stand for nothing
        raw = (np.arange(length * dtype.itemsize) * factor + offset) % 120
        made = np.frombuffer(raw.astype(np.uint8).tobytes(), dtype).copy()
    made.flags.writeable = False
    return made


def folded(op: ah.ReduceOp, arrays: list[Array]) -> Array:
    """Combine contributions with NumPy."""
    result = functools.reduce(_UFUNCS[op], arrays)
    if op is not ah.ReduceOp.AVG:
        return result
    return np.fix(result / len(arrays)) if result.dtype.kind in "iu" else result / len(arrays)


def case(
    name: str,
    rank: int,
    size: int,
    length: int,
    dtype: npt.DTypeLike = np.float32,
    *,
    op: ah.ReduceOp = ah.ReduceOp.SUM,
    root: int = 0,
    seed: int = 0,
    make: Make = np.empty,
) -> Case:
    """Make a call of `length` elements for each rank."""
    found = np.dtype(dtype)

    def own(of: int, more: int = 0) -> Array:
        return values(of, length, found, seed + more)

    def placed(array: Array) -> Array:
        place = make(array.size, found)
        place[...] = array
        return place

    def blank(count: int = length) -> Array:
        return placed(np.zeros(count, found))

    ranks = range(size)
    is_root = rank == root
    match name:
        case "barrier":
            return Case(name, (), [], [], [])
        case "broadcast":
            x = placed(own(rank))
            return Case(name, (x, root), [x], [own(root)], [])
        case "all_reduce":
            x = placed(own(rank))
            return Case(name, (x, op), [x], [folded(op, [own(r) for r in ranks])], [])
        case "reduce":
            x = placed(own(rank))
            want = [folded(op, [own(r) for r in ranks])] if is_root else []
            return Case(name, (x, root, op), [x] if is_root else [], want, [] if is_root else [x])
        case "gather":
            x, outs = placed(own(rank)), [blank() for _ in ranks] if is_root else None
            return Case(name, (x, outs, root), outs or [], [own(r) for r in ranks if outs], [x])
        case "scatter":
            x, ins = blank(), [placed(own(root, r)) for r in ranks] if is_root else None
            return Case(name, (x, ins, root), [x], [own(root, rank)], ins or [])
        case "all_gather":
            x, outs = placed(own(rank)), [blank() for _ in ranks]
            return Case(name, (outs, x), outs, [own(r) for r in ranks], [x])
        case "all_gather_into_tensor":
            x, out = placed(own(rank)), blank(size * length)
            return Case(name, (out, x), [out], [np.concatenate([own(r) for r in ranks])], [x])
        case "reduce_scatter":
            out, ins = blank(), [placed(own(rank, r)) for r in ranks]
            total = folded(op, [own(r, rank) for r in ranks])
            return Case(name, (out, ins, op), [out], [total], ins)
        case "reduce_scatter_tensor":
            out, x = blank(), placed(np.concatenate([own(rank, r) for r in ranks]))
            total = folded(op, [own(r, rank) for r in ranks])
            return Case(name, (out, x, op), [out], [total], [x])
        case "all_to_all":
            # Rank i gives rank j a bit more, the larger i + j: each pair has a size of its own.
            ins = [placed(values(rank, length + rank + r, found, seed + r)) for r in ranks]
            outs = [blank(length + rank + r) for r in ranks]
            want = [values(r, length + rank + r, found, seed + rank) for r in ranks]
            return Case(name, (outs, ins), outs, want, ins)
        case "all_to_all_single":
            out, x = blank(size * length), placed(np.concatenate([own(rank, r) for r in ranks]))
            whole = np.concatenate([own(r, rank) for r in ranks])
            return Case(name, (out, x), [out], [whole], [x])
    raise ValueError(name)


def allowed(dtype: npt.DTypeLike) -> Iterator[ah.ReduceOp]:
    """Yield the operations that are defined for a dtype."""
    for op in ah.ReduceOp:
        try:
            check(op, dtype)
        except TypeError:
            continue
        yield op


def called(error: ah.CollectiveMismatch) -> dict[int, str]:
    """Return what each rank called, of rows that also say where in a test that was."""
    rows = {rank: row.partition(" at test_") for rank, row in error.table.items()}
    assert all(place for _, _, place in rows.values()), error.table
    return {rank: call for rank, (call, _, _) in rows.items()}


def ranks_total(group: Any) -> float:
    """Return the sum of the ranks of the world that are in a group, as they say it."""
    x = np.full(3, float(ah.get_rank()))
    ah.all_reduce(x, group=group)
    assert (x == x[0]).all()
    return float(x[0])
