"""Benchmark cases: an operation on arrays of one size and dtype, among some ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

CONVENTIONS = {
    "all_reduce": "SUM in place; bytes: the array of each rank",
    "all_gather": "bytes: the array that each rank brings; the output has ranks times as many",
    "reduce_scatter": "SUM; bytes: the array that each rank brings; each gets 1/ranks of them",
    "reduce": "SUM in place on rank 0; bytes: the array of each rank",
    "broadcast": "from rank 0; bytes: the array",
    "gather": "to rank 0; bytes: the array that each rank brings",
    "scatter": "from rank 0; bytes: its array, in equal shares for all ranks",
    "all_to_all": "bytes: the array that each rank brings, in equal shares for all ranks",
    "sendrecv": "one way from rank to rank: half a round trip between ranks 0 and 1",
    "barrier": "no array",
    "scan": "SUM of the ranks up to each one, in place; bytes: the array of each rank",
    "exscan": "SUM of the ranks before each one, in place, but on rank 0; bytes: the array of each "
    "rank",
    "all_gather_v": "arrays whose sizes the receivers do not know: of rank r of n (r+1)/n of the "
    "bytes; MPI and Gloo gather the sizes first",
    "all_to_all_v": "arrays whose sizes the receivers do not know: from rank r to rank s of n a "
    "share of the bytes, times ((r+s) mod n + 1)/n; MPI and Gloo exchange the sizes first",
    "gather_v": "to rank 0, arrays as of all_gather_v; MPI gathers the sizes first",
    "scatter_v": "from rank 0, arrays whose sizes the receivers do not know: for rank r of n a "
    "share of the bytes, times (r+1)/n; MPI scatters the sizes first",
    "reduce_scatter_v": "SUM; blocks as of scatter_v, whose sizes all ranks know",
    "all_gather_object": "bytes: an array; below 1 KiB a dict with as many numbers",
    "broadcast_object_list": "one object from rank 0; bytes: an array; below 1 KiB a dict with as "
    "many numbers",
    "coalesced_all_reduce": "100 arrays, SUM in place; bytes: each of them. coalescing: in one "
    "block; one_by_one: a call for each; packed: by hand into one array and out of it",
    "in_flight_all_reduce": "100 arrays, SUM in place, all calls begun and then waited for; bytes: "
    "each of the arrays",
    "overlap_all_reduce": "SUM in place; bytes: the array of each rank. call: begun and then "
    "waited for; matmul: a matrix product that takes as long; overlapped: the call begun, the "
    "product, the call waited for",
    "async_all_reduce": "all_reduce, begun and then waited for",
    "future_all_reduce": "all_reduce, begun and then waited for through a future",
    "exchange": "to the next rank and from the one before in one batch; bytes: the array",
    "ddp_step": "forward and backward of a model in PyTorch's DistributedDataParallel; bytes: its "
    "gradients, of linear layers alone, 16 samples a rank",
}
"""The operations, each with what it does and what its bytes are."""

WHOLE_JOBS = ("start_up", "sessions")
"""What is measured of whole jobs: their start and end, and many sessions at one coordinator."""
ASYNCHRONOUS = ("async_all_reduce", "future_all_reduce", "exchange")
"""Those that are begun first and waited for then, although at once."""
SCANS = ("scan", "exscan")
VARIABLE = ("all_gather_v", "all_to_all_v", "gather_v", "scatter_v", "reduce_scatter_v")
OBJECTS = ("all_gather_object", "broadcast_object_list")
COMPOSITE = (*SCANS, *VARIABLE, *OBJECTS)
"""Those made of several steps."""
FORMS: Mapping[str, tuple[str, ...]] = {
    "coalesced_all_reduce": ("coalescing", "one_by_one", "packed"),
    "overlap_all_reduce": ("overlapped", "call", "matmul"),
}
"""Operations with several forms, measured in turns."""
ALTERNATIVES = ("coalesced_all_reduce",)
"""Operations whose forms do the same: each is compared with the first."""
COLLECTIVES = tuple(
    one
    for one in CONVENTIONS
    if one not in {*ASYNCHRONOUS, *COMPOSITE, *FORMS}
    and one not in ("in_flight_all_reduce", "ddp_step")
)
"""Those that every contender has."""

ARRAYS = 100
"""Arrays of an operation on many."""

TIMES = (
    "seconds of the rank for which the call took longest; below 64 KiB the mean of a batch of "
    "calls in a row, from there on of single calls on arrays that are rewritten before each"
)

REWRITTEN_FROM = 64 << 10
"""From so many bytes on the array is rewritten before every call, as it is in a real program."""

_SHARED = ("reduce_scatter", "all_to_all", "scatter")
_OF_BLOCKS = ("all_to_all_v", "scatter_v", "reduce_scatter_v")
"""Operations whose input is in equal parts for the ranks, and in parts of various sizes."""

_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
}
DTYPES = tuple(_BYTES)

BATCH = 16
"""Samples that each rank brings to a step."""
_WIDTHS = (1024, 256, 64)
_MIN_LAYERS = 4
"""Of all widths but the least."""

MAX_VALUE = 3
MAX_SCALE = 3
_EXACT_UP_TO = {"int8": 127, "uint8": 255, "bfloat16": 256, "float16": 2048}


def max_ranks(dtype: str) -> int:
    """Return of how many ranks the sums are still exact."""
    return _EXACT_UP_TO.get(dtype, 1 << 20) // (MAX_VALUE * MAX_SCALE)


@dataclass(frozen=True, slots=True)
class BenchCase:
    """An operation with size, dtype and number of ranks."""

    operation: str
    ranks: int
    nbytes: int
    """What was asked for; `elements` has at least one element, and equal shares for all ranks.

    Of a step of training: what its gradients take, which are as long as the output."""
    dtype: str = "float32"
    form: str = ""
    """One of the operation's forms; empty: it has none, or all of them."""

    @property
    def forms(self) -> tuple["BenchCase", ...]:
        """This case in each form of its operation."""
        if self.form or self.operation not in FORMS:
            return (self,)
        return tuple(replace(self, form=one) for one in FORMS[self.operation])

    @property
    def arrays(self) -> int:
        """Number of arrays, of `nbytes` each; they lie one after the other in the input."""
        return ARRAYS if self.operation in ("coalesced_all_reduce", "in_flight_all_reduce") else 1

    @property
    def elements(self) -> int:
        """Length of each rank's input array; of v-variants the most that it may be."""
        if self.operation == "barrier":
            return 0
        if self.operation == "ddp_step":
            return BATCH * self.width
        elements = max(self.nbytes // _BYTES[self.dtype], 1) * self.arrays
        if self.operation in (*_SHARED, *_OF_BLOCKS):
            elements = -(-elements // self.ranks) * self.ranks
        return elements

    def count_input(self, rank: int) -> int:
        """Return the length of a rank's input array."""
        if self.operation in ("all_gather_v", "gather_v"):
            return max(self.elements * (rank + 1) // self.ranks, 1)
        if self.operation in _OF_BLOCKS:
            return sum(self.count_block(rank, to) for to in range(self.ranks))
        return self.elements

    def count_block(self, rank: int, to: int) -> int:
        """Return how many elements of a v-variant go from a rank to another."""
        share = self.elements // self.ranks
        if self.operation != "all_to_all_v":
            rank = 0  # all ranks bring the same sizes
        return max(share * ((rank + to) % self.ranks + 1) // self.ranks, 1)

    def list_block_ends(self, rank: int) -> list[int]:
        """Return the ends of a rank's blocks of a v-variant, but the last, in its input."""
        return list(accumulate(self.count_block(rank, to) for to in range(self.ranks - 1)))

    @property
    def output_elements(self) -> int:
        """Length of each rank's output array; 0: the operation is in place."""
        match self.operation:
            case "all_gather" | "gather":
                return self.elements * self.ranks
            case "reduce_scatter" | "scatter":
                return self.elements // self.ranks
            case "all_to_all" | "sendrecv" | "exchange":
                return self.elements
            case "ddp_step":
                return self.layers * self.width**2
        return 0

    @property
    def width(self) -> int:
        """Inputs and outputs of each layer of the trained model."""
        enough = (
            one for one in _WIDTHS if _MIN_LAYERS * self._count_layer_bytes(one) <= self.nbytes
        )
        return next(enough, _WIDTHS[-1])

    @property
    def layers(self) -> int:
        """Number of layers of the trained model: at least 1, whatever `nbytes`."""
        return max(self.nbytes // self._count_layer_bytes(self.width), 1)

    def _count_layer_bytes(self, width: int) -> int:
        return width**2 * _BYTES[self.dtype]

    @property
    def receivers(self) -> range:
        """Ranks with a checked result."""
        if self.operation == "exscan":
            return range(1, self.ranks)  # MPI leaves that of rank 0 undefined
        if self.form == "matmul":
            return range(0)
        is_rooted = self.operation in ("reduce", "gather", "gather_v")
        return range(1) if is_rooted else range(self.ranks)

    @property
    def participants(self) -> range:
        """Participating ranks; the rest sleep."""
        return range(min(2, self.ranks)) if self.operation == "sendrecv" else range(self.ranks)

    @property
    def is_rewritten(self) -> bool:
        """Whether every call is timed by itself, on new data; else many in a row are."""
        return self.nbytes * self.arrays >= REWRITTEN_FROM and self.operation != "barrier"


def list_cases(
    operations: list[str], ranks: int, sizes: list[int], dtypes: list[str]
) -> list[BenchCase]:
    """List the cells of a table; barrier has one of no bytes, whatever the sizes."""
    cells = []
    for operation in operations:
        if operation in ("sendrecv", "exchange", "exscan") and ranks < 2:
            continue
        if operation == "barrier":
            cells.append(BenchCase("barrier", ranks, 0))
            continue
        cells += [BenchCase(operation, ranks, size, dtype) for dtype in dtypes for size in sizes]
    return cells
