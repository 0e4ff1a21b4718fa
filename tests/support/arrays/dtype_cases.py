"""Every operation on every dtype: the cells, and each cell's expected result.

A rank goes through all cells in one world, so that thousands of them take seconds.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import allhands as ah

Array = npt.NDArray[Any]
WORKS = "works"


def last(a: Array, b: Array) -> Array:
    """Whatever the highest rank has: of any dtype, and not commutative."""
    return b


NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DTYPES: dict[str, "np.dtype[Any]"] = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2"),
    )
} | {
    "pair": np.dtype([("value", np.float32), ("index", np.int64)]),
    "record": np.dtype([("name", "S3"), ("when", "datetime64[s]"), ("x", np.float64, 2)]),
    "object": np.dtype(object),
}
PLAIN = ("bool", "integer", "float", "complex")

OPS: dict[str, ah.ReduceOp] = {op.name: op for op in ah.ReduceOp} | {
    "PREMUL_SUM": ah.ReduceOp.premul_sum(3),
    "user function": ah.ReduceOp.user(last),
}
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_v",
)
SPARSE = ("all_reduce of sparse arrays",)
SCANNING = ("scan", "exscan")
MOVING = (
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "scatter",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "all_gather_v",
    "gather_v",
    "scatter_v",
    "all_to_all_v",
)
LENGTH = 7
"""Of what each rank brings, or of each block: no number of ranks divides it."""


@dataclass(frozen=True)
class Cell:
    """An operation on a dtype, with a ReduceOp for reductions."""

    operation: str
    op: str
    dtype: str


CELLS = [
    *(
        Cell(one, op, dtype)
        for one in (*REDUCING, *SPARSE, *SCANNING)
        for op in OPS
        for dtype in DTYPES
    ),
    *(Cell(one, "", dtype) for one in MOVING for dtype in DTYPES),
]


# ---------------------------------------------------------------- what ranks bring and get


@functools.lru_cache(4096)
def brought(dtype: str, rank: int, block: int = 0, length: int = LENGTH) -> Array:
    """Return a rank's input: sums are exact, except in narrow dtypes."""
    found, rng = DTYPES[dtype], np.random.default_rng((rank, block))
    whole = rng.integers(1, 5, length)
    match dtype:
        case "bool":
            return np.equal(whole % 2, 0)
        case "pair":
            return np.array(list(zip(whole, rng.integers(0, 9, length), strict=True)), found)
        case "record":
            when = whole.astype("datetime64[s]")
            rows = [(b"abc"[:one], at, (one, rank)) for one, at in zip(whole, when, strict=True)]
            return np.array(rows, found)
        case "object":
            return np.array([str(one) for one in whole], found)
        case "complex64" | "complex128":
            return (whole + 1j * rng.integers(-3, 3, length)).astype(found)
        case _ if dtype in NARROW:
            return (rng.normal(0, 2, length)).astype(found)
    whole[:1] = 0
    return whole.astype(found)


_UFUNCS: dict[str, Callable[[Array, Array], Array]] = {
    "SUM": np.add,
    "AVG": np.add,
    "PREMUL_SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
}


def combined(op: str, dtype: str, arrays: Sequence[Array]) -> Array:
    """Combine contributions with NumPy and ml_dtypes, from the left, rounding once."""
    if op == "user function":
        return arrays[-1]
    if op in ("MINLOC", "MAXLOC"):
        sign = 1 if op == "MINLOC" else -1
        rows = zip(*(array.tolist() for array in arrays), strict=True)
        best = [min(row, key=lambda pair: (sign * pair[0], pair[1])) for row in rows]
        return np.array(best, DTYPES[dtype])
    wide: list[Any] = [x.astype(np.float32) if dtype in NARROW else x for x in arrays]
    if op.startswith("L"):
        wide = [x != 0 for x in wide]
    if op == "PREMUL_SUM":
        wide = [x * x.dtype.type(3) for x in wide]
    made: Any = functools.reduce(_UFUNCS[op], wide)
    if op == "AVG":
        made = quotient(made, len(arrays))
    return np.asarray(made.astype(DTYPES[dtype]))


def quotient(made: Any, divisor: int) -> Any:
    """Divide: integers as C does, towards zero."""
    if made.dtype.kind not in "iu":
        return np.true_divide(made, divisor)
    found = [abs(one) // divisor * (1 if one > 0 else -1) for one in made.tolist()]
    return np.array(found, made.dtype)


@dataclass
class Call:
    """A rank's call: arguments, arrays to be written, and arrays to stay unchanged."""

    arguments: tuple[Any, ...]
    written: list[Array]
    wanted: list[Array]
    returned: list[Array] = field(default_factory=list)
    """What it must give back, of calls that do."""
    holder: ah.SparseArray | None = None
    """What holds that instead, in new arrays."""

    def __post_init__(self) -> None:
        self.buffers = list(_arrays(self.arguments))
        self.before = [_bits(buffer) for buffer in self.buffers]

    def wrong(self, is_refused: bool, result: Any = None) -> str:
        """Return the differences from the expected contents; "" for none."""
        wanted = {} if is_refused else {id(x): y for x, y in zip(self.written, self.wanted)}  # noqa: B905
        if self.returned and not is_refused:
            have = [(x.shape, _bits(x)) for x in _arrays(self.holder or result)]
            if have != [(x.shape, _bits(x)) for x in self.returned]:
                return f"{self.holder or result} for {self.returned}"
        if self.holder is not None and is_refused and self.holder.values is not self.buffers[1]:
            return "it holds other arrays"
        for buffer, before in zip(self.buffers, self.before, strict=True):
            if id(buffer) not in wanted and _bits(buffer) != before:
                return "a buffer was changed that should not be"
            if id(buffer) in wanted and _bits(buffer) != _bits(wanted[id(buffer)]):
                return f"{buffer} for {wanted[id(buffer)]}"
        return ""


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a rank's call."""

    cell: Cell
    rank: int
    size: int
    length: int

    @property
    def ranks(self) -> range:
        return range(self.size)

    @property
    def root(self) -> int:
        return 1 % self.size

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def op(self) -> ah.ReduceOp | None:
        return OPS.get(self.cell.op)

    def own(self, of: int, block: int = 0) -> Array:
        return brought(self.cell.dtype, of, block, self.length)

    def mine(self, block: int = 0) -> Array:
        return self.own(self.rank, block).copy()

    def blank(self, count: int | None = None) -> Array:
        return np.zeros(self.length if count is None else count, DTYPES[self.cell.dtype])

    def result(self, block: int = 0) -> Array:
        cell = self.cell
        if cell.dtype == "object" or not is_defined(cell.operation, cell.op, cell.dtype):
            return self.blank()
        return combined(cell.op, cell.dtype, [self.own(peer, block) for peer in self.ranks])


def call_of(cell: Cell, rank: int, size: int, length: int = LENGTH) -> Call:
    """Make the call of a rank."""
    given = _Inputs(cell, rank, size, length)
    for make in (_reduction, _coalesced, _movement, _exchange, _uneven):
        if (call := make(given)) is not None:
            return call
    raise ValueError(cell)


def _reduction(given: _Inputs) -> Call | None:
    mine, op, rank, is_root = given.mine(), given.op, given.rank, given.is_root
    match given.cell.operation:
        case "all_reduce":
            return Call((mine, op), [mine], [given.result()])
        case "reduce":
            written, wanted = ([mine], [given.result()]) if is_root else ([], [])
            return Call((mine, given.root, op), written, wanted)
        case "reduce_scatter":
            out, ins = given.blank(), [given.mine(block) for block in given.ranks]
            return Call((out, ins, op), [out], [given.result(rank)])
        case "reduce_scatter_tensor":
            out = given.blank()
            x = _joined(given.own(rank, block) for block in given.ranks)
            return Call((out, x, op), [out], [given.result(rank)])
        case "scan" | "exscan" as operation:
            stop = rank + (operation == "scan")
            if not stop or not is_defined(operation, given.cell.op, given.cell.dtype):
                return Call((mine, op), [], [])
            before = [given.own(peer) for peer in range(stop)]
            return Call((mine, op), [mine], [combined(given.cell.op, given.cell.dtype, before)])
        case "all_reduce of sparse arrays":
            return _sparse_call(given)
    return None


def _coalesced(given: _Inputs) -> Call | None:
    rank, size, ranks, op = given.rank, given.size, given.ranks, given.op
    both = [given.mine(), given.mine(1)]
    outs: list[Array]
    match given.cell.operation:
        case "all_reduce_coalesced":
            return Call((both, op), both, [given.result(), given.result(1)])
        case "reduce_scatter_tensor_coalesced":
            outs = [given.blank(), given.blank()]
            xs = [_joined(given.own(rank, block + more) for block in ranks) for more in (0, 9)]
            return Call((outs, xs, op), outs, [given.result(rank), given.result(rank + 9)])
        case "broadcast_coalesced":
            root = given.root
            return Call((both, root), both, [given.own(root), given.own(root, 1)])
        case "all_gather_coalesced":
            lists = [[given.blank(), given.blank()] for _ in ranks]
            wanted = [given.own(peer, block) for peer in ranks for block in range(2)]
            return Call((lists, both), [out for one in lists for out in one], wanted)
        case "all_gather_into_tensor_coalesced":
            outs = [given.blank(size * given.length) for _ in range(2)]
            wanted = [_joined(given.own(peer, block) for peer in ranks) for block in range(2)]
            return Call((outs, both), outs, wanted)
    return None


def _movement(given: _Inputs) -> Call | None:
    mine, rank, ranks, root = given.mine(), given.rank, given.ranks, given.root
    everyone = [given.own(peer) for peer in ranks]
    match given.cell.operation:
        case "broadcast":
            return Call((mine, root), [mine], [given.own(root)])
        case "gather":
            outs = [given.blank() for _ in ranks] if given.is_root else []
            return Call((mine, outs or None, root), outs, everyone if given.is_root else [])
        case "scatter":
            ins = [given.mine(block) for block in ranks] if given.is_root else None
            out = given.blank()
            return Call((out, ins, root), [out], [given.own(root, rank)])
        case "all_gather":
            outs = [given.blank() for _ in ranks]
            return Call((outs, mine), outs, everyone)
        case "all_gather_into_tensor":
            out = given.blank(given.size * given.length)
            return Call((out, mine), [out], [_joined(everyone)])
    return None


def _exchange(given: _Inputs) -> Call | None:
    rank, ranks = given.rank, given.ranks
    match given.cell.operation:
        case "all_to_all":
            # Rank i gives rank j as many as i + j: each pair has a size of its own.
            ins = [given.own(rank, block)[: rank + block].copy() for block in ranks]
            outs = [given.blank(min(rank + peer, given.length)) for peer in ranks]
            wanted = [given.own(peer, rank)[: rank + peer] for peer in ranks]
            return Call((outs, ins), outs, wanted)
        case "all_to_all_single":
            x = _joined(given.own(rank, block) for block in ranks)
            out = given.blank(given.size * given.length)
            return Call((out, x), [out], [_joined(given.own(peer, rank) for peer in ranks)])
    return None


def _uneven(given: _Inputs) -> Call | None:
    """Make a call whose blocks each have a different size."""
    mine, rank, ranks, root = given.mine(), given.rank, given.ranks, given.root
    match given.cell.operation:
        case "reduce_scatter_v":
            # Blocks of as many as their rank and one more.
            ins = [given.own(rank, block)[: block + 1].copy() for block in ranks]
            return Call((ins, given.op), [], [], [given.result(rank)[: rank + 1]])
        case "all_gather_v":
            return Call((mine[:rank],), [], [], [given.own(peer)[:peer] for peer in ranks])
        case "gather_v":
            wanted = [given.own(peer)[:peer] for peer in ranks] if given.is_root else []
            return Call((mine[:rank], root), [], [], wanted)
        case "scatter_v":
            if given.cell.dtype == "object":
                # Who gives nothing has nothing to refuse: each is the root.
                return Call(([given.mine(block) for block in ranks], rank), [], [])
            blocks = [given.own(rank, block)[:block].copy() for block in ranks]
            wanted = [given.own(root, rank)[:rank]]
            return Call((blocks if given.is_root else None, root), [], [], wanted)
        case "all_to_all_v":
            ins = [given.own(rank, block)[: rank + block].copy() for block in ranks]
            wanted = [given.own(peer, rank)[: rank + peer] for peer in ranks]
            return Call((ins,), [], [], wanted)
    return None


def _sparse_call(given: _Inputs) -> Call:
    """Make a call in which each rank stores an element of its own, and the first element."""
    cell, rank, size, own, length = given.cell, given.rank, given.size, given.own, given.length
    places = [sorted({0, one % LENGTH}.intersection(range(length))) for one in range(size)]
    x = ah.SparseArray(np.array([places[rank]], int), own(rank)[places[rank]], (length,))
    wanted: list[Array] = []
    if is_defined(cell.operation, cell.op, cell.dtype):
        dense = [np.zeros(length, DTYPES[cell.dtype]) for _ in range(size)]
        for one, array in enumerate(dense):
            array[places[one]] = own(one)[places[one]]
        stored = sorted({place for one in places for place in one})
        wanted = [np.array([stored], int), combined(cell.op, cell.dtype, dense)[stored]]
    return Call((x, given.op), [], [], wanted, x)


def is_defined(operation: str, op: str, dtype: str) -> bool:
    """Return whether NumPy defines the result, independently of the tested code."""
    is_plain = dtype not in ("pair", "record", "object")
    if operation in SPARSE and op not in ("SUM", "AVG", "MIN", "MAX"):
        return False
    match op:
        case "user function":
            return dtype != "object"
        case "MINLOC" | "MAXLOC":
            return dtype == "pair"
        case "SUM" | "PRODUCT":
            return is_plain
        case "MIN" | "MAX":
            return is_plain and "complex" not in dtype
        case "AVG":
            return is_plain and dtype != "bool" and operation not in SCANNING
        case "PREMUL_SUM":
            return is_plain and dtype != "bool"
        case "":
            return dtype != "object"
    return dtype == "bool" or "int" in dtype


# ---------------------------------------------------------------- on a rank


def outcome(cell: Cell, rank: int, size: int) -> tuple[str, str]:
    """Make a call; return the outcome, and the differences from the expected result."""
    call, group = call_of(cell, rank, size), ah.default_group()
    before = group.sequence
    try:
        result = getattr(ah, named(cell.operation))(*call.arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        moved = "" if group.sequence == before else "it was refused after it had taken its place"
        # Ranks name the argument that they look at first.
        text = re.sub(r"^\w+(\[\d+\])? holds", "an array holds", str(error))
        return f"{type(error).__name__}: {text}", call.wrong(True) or moved
    return WORKS, call.wrong(False, result)


def outcomes(rank: int, size: int) -> list[tuple[str, str]]:
    """Make the calls of all cells, in the same order on all ranks."""
    return [outcome(cell, rank, size) for cell in CELLS]


def named(operation: str) -> str:
    """Return the name of an operation's call."""
    return operation.partition(" ")[0]


# ---------------------------------------------------------------- bits


def _joined(arrays: Iterable[Array]) -> Array:
    return np.concatenate(list(arrays))


def _arrays(given: Any) -> Iterator[Array]:
    if isinstance(given, np.ndarray):
        yield given
    elif isinstance(given, ah.SparseArray):
        yield from (given.indices, given.values)
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _arrays(one)


def _bits(array: Array) -> object:
    return array.tolist() if array.dtype.hasobject else array.tobytes()
