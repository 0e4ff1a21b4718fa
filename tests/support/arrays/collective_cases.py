"""Collective calls with results known to the last bit, for the scripts of ranks."""

import functools
from collections.abc import Callable, Iterator, Sequence
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
    """A call: the arguments, and the expected contents after the call."""

    name: str
    arguments: tuple[Any, ...]
    written: list[Array]
    expected: list[Array]
    unchanged: list[Array]

    def __post_init__(self) -> None:
        self._before = [array.copy() for array in self.unchanged]

    def run(self, face: Any, **more: Any) -> Any:
        """Make the call by a face's method or function of the same name."""
        return getattr(face, self.name)(*self.arguments, **more)

    def wrong(self) -> str:
        """Return the differences from the expected contents; "" for none."""
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
    """Return a rank's array: small whole numbers with exact sums."""
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


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a rank's call: arrays and their memory."""

    name: str
    rank: int
    size: int
    length: int
    dtype: "np.dtype[Any]"
    op: ah.ReduceOp
    root: int
    seed: int
    make: Make

    @property
    def ranks(self) -> range:
        return range(self.size)

    def own(self, of: int, more: int = 0) -> Array:
        return values(of, self.length, self.dtype, self.seed + more)

    def everyones(self, more: int = 0) -> list[Array]:
        return [self.own(of, more) for of in self.ranks]

    def joined(self) -> Array:
        """Return a block of this rank for each."""
        return self.placed(np.concatenate([self.own(self.rank, to) for to in self.ranks]))

    def placed(self, array: Array) -> Array:
        place = self.make(array.size, self.dtype)
        place[...] = array
        return place

    def blank(self, count: int | None = None) -> Array:
        return self.placed(np.zeros(self.length if count is None else count, self.dtype))

    def case(
        self,
        *arguments: Any,
        written: list[Array],
        expected: list[Array],
        unchanged: Sequence[Array] = (),
    ) -> Case:
        return Case(self.name, arguments, written, expected, list(unchanged))


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
    given = _Inputs(name, rank, size, length, np.dtype(dtype), op, root, seed, make)
    if name == "barrier":
        return given.case(written=[], expected=[])
    for build in (_rooted, _reduction, _movement):
        if (made := build(given)) is not None:
            return made
    raise ValueError(name)


def _rooted(given: _Inputs) -> Case | None:
    rank, root, ranks = given.rank, given.root, given.ranks
    is_root = rank == root
    match given.name:
        case "broadcast":
            x = given.placed(given.own(rank))
            return given.case(x, root, written=[x], expected=[given.own(root)])
        case "reduce":
            x = given.placed(given.own(rank))
            if not is_root:
                return given.case(x, root, given.op, written=[], expected=[], unchanged=[x])
            total = folded(given.op, given.everyones())
            return given.case(x, root, given.op, written=[x], expected=[total])
        case "gather":
            x = given.placed(given.own(rank))
            if not is_root:
                return given.case(x, None, root, written=[], expected=[], unchanged=[x])
            outs, expected = [given.blank() for _ in ranks], given.everyones()
            return given.case(x, outs, root, written=outs, expected=expected, unchanged=[x])
        case "scatter":
            x, expected = given.blank(), [given.own(root, rank)]
            if not is_root:
                return given.case(x, None, root, written=[x], expected=expected)
            ins = [given.placed(given.own(root, to)) for to in ranks]
            return given.case(x, ins, root, written=[x], expected=expected, unchanged=ins)
    return None


def _reduction(given: _Inputs) -> Case | None:
    rank, op = given.rank, given.op
    match given.name:
        case "all_reduce":
            x = given.placed(given.own(rank))
            return given.case(x, op, written=[x], expected=[folded(op, given.everyones())])
        case "reduce_scatter":
            out, ins = given.blank(), [given.placed(given.own(rank, to)) for to in given.ranks]
            total = folded(op, given.everyones(rank))
            return given.case(out, ins, op, written=[out], expected=[total], unchanged=ins)
        case "reduce_scatter_tensor":
            out, x = given.blank(), given.joined()
            total = folded(op, given.everyones(rank))
            return given.case(out, x, op, written=[out], expected=[total], unchanged=[x])
    return None


def _movement(given: _Inputs) -> Case | None:
    rank, ranks, length = given.rank, given.ranks, given.length
    match given.name:
        case "all_gather":
            x, outs = given.placed(given.own(rank)), [given.blank() for _ in ranks]
            expected = given.everyones()
            return given.case(outs, x, written=outs, expected=expected, unchanged=[x])
        case "all_gather_into_tensor":
            x, out = given.placed(given.own(rank)), given.blank(given.size * length)
            expected = [np.concatenate(given.everyones())]
            return given.case(out, x, written=[out], expected=expected, unchanged=[x])
        case "all_to_all":
            # Rank i gives rank j a bit more, the larger i + j: each pair has a size of its own.
            seed, dtype = given.seed, given.dtype
            sizes = [length + rank + peer for peer in ranks]
            ins = [given.placed(values(rank, sizes[to], dtype, seed + to)) for to in ranks]
            outs = [given.blank(size) for size in sizes]
            expected = [values(of, sizes[of], dtype, seed + rank) for of in ranks]
            return given.case(outs, ins, written=outs, expected=expected, unchanged=ins)
        case "all_to_all_single":
            out, x = given.blank(given.size * length), given.joined()
            expected = [np.concatenate(given.everyones(rank))]
            return given.case(out, x, written=[out], expected=expected, unchanged=[x])
    return None


def allowed(dtype: npt.DTypeLike) -> Iterator[ah.ReduceOp]:
    """Yield the reductions defined for a dtype."""
    for op in ah.ReduceOp:
        try:
            check(op, dtype)
        except TypeError:
            continue
        yield op


def called(error: ah.CollectiveMismatch) -> dict[int, str]:
    """Return each rank's call from the table of a mismatch, without call sites."""
    rows = {rank: row.partition(" at test_") for rank, row in error.table.items()}
    assert all(place for _, _, place in rows.values()), error.table
    return {rank: call for rank, (call, _, _) in rows.items()}


def ranks_total(group: Any) -> float:
    """Return the sum of the world ranks in a group, by an all_reduce."""
    x = np.full(3, float(ah.get_rank()))
    ah.all_reduce(x, group=group)
    assert (x == x[0]).all()
    return float(x[0])
