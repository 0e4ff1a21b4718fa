"""Calls of a process group with results, for arrays and tensors: one body for both faces.

Results are written down with Python's own arithmetic, so that no library is judged by itself.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol


class Face(Protocol):
    """Process groups of one array library; `reduce_op` and the options are of its c10d."""

    reduce_op: Any

    def get_group(self) -> Any:
        """Return the process group of all ranks."""

    def make_options(self, kind: str, **said: object) -> Any:
        """Return options of that class, built as in programs."""

    def make_array(self, values: Sequence[object], *, is_int32: bool = False) -> Any: ...

    def make_full(self, shape: tuple[int, ...], value: object) -> Any: ...

    def copy(self, array: Any) -> Any: ...

    def wait(self, work: Any) -> Any:
        """Return the result of a call."""

    def compare(self, found: Any, wanted: Any) -> None:
        """Compare arrays, and lists of arrays, by values, shapes and dtypes."""


Make = Callable[[Any], Any]
"""Return an equal array, with another layout perhaps."""


def list_reductions(face: Face, rank: int, size: int) -> list[tuple[Any, Any, Any]]:
    """List operations with a rank's input and the result, as in c10d's own tests."""
    one, total = float(rank + 1), size * (size + 1) / 2
    results = {
        "SUM": total,
        "AVG": total / size,
        "PRODUCT": float(math.factorial(size)),
        "MIN": 1.0,
        "MAX": float(size),
    }
    found = [
        (getattr(face.reduce_op, name), face.make_array([one]), face.make_array([result]))
        for name, result in results.items()
    ]

    def bits(value: int) -> Any:
        return face.make_array([value], is_int32=True)

    for at in range(4):
        common = reduce(operator.and_, [other | 1 << at for other in range(size)])
        found.append((face.reduce_op.BAND, bits(rank | 1 << at), bits(common)))
    for op, combine in (
        (face.reduce_op.BOR, operator.or_),
        (face.reduce_op.BXOR, operator.xor),
    ):
        for width in range(1, 5):
            mine = reduce(combine, range(rank * width, (rank + 1) * width))
            found.append((op, bits(mine), bits(reduce(combine, range(size * width)))))
    return found


def list_twofold_reductions(face: Face, rank: int, size: int) -> list[tuple[Any, list[Any], Any]]:
    """List operations with a rank's two inputs and the result of all ranks' inputs."""
    low, high = 2.0 * rank, 2.0 * rank + 1
    rows = {
        "SUM": (low, high, size * (2.0 * size - 1)),
        "PRODUCT": (low + 1, high + 1, float(math.factorial(2 * size))),
        "MIN": (low + 1, high + 1, 1.0),
        "MAX": (low + 1, high + 1, 2.0 * size),
    }
    return [
        (
            getattr(face.reduce_op, name),
            [face.make_array([first]), face.make_array([second])],
            face.make_array([result]),
        )
        for name, (first, second, result) in rows.items()
    ]


def list_coalesced_reductions(
    face: Face, rank: int, size: int
) -> list[tuple[Any, list[Any], list[Any]]]:
    """List operations with two inputs reduced side by side, the second of another shape."""
    one = rank + 1.0

    def arrays(first: float, second: float) -> list[Any]:
        return [face.make_array([float(first)]), face.make_full((2, 3), float(second))]

    squares = size * (size + 1) * (2 * size + 1) / 6
    many, op = math.factorial(size), face.reduce_op
    return [
        (op.SUM, arrays(one, one**2), arrays(size * (size + 1) / 2, squares)),
        (op.PRODUCT, arrays(one, one + 1), arrays(many, math.factorial(size + 1))),
        (op.MIN, arrays(rank, one), arrays(0, 1)),
        (op.MAX, arrays(one, one + 1), arrays(size, size + 1)),
    ]


# ---------------------------------------------------------------- bodies, called on every rank


def broadcast_from_every_root(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for root in range(size):
        x = face.make_array([rank])
        opts = face.make_options("BroadcastOptions", rootRank=root, rootTensor=0)
        face.compare(face.wait(pg.broadcast([x], opts)), [face.make_array([root])])
        face.compare(x, face.make_array([root]))


def broadcast_from_every_root_tensor(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for root in range(size):
        for index in range(2):
            xs = [face.make_array([rank * 2 + at + 0.0]) for at in range(2)]
            opts = face.make_options("BroadcastOptions", rootRank=root, rootTensor=index)
            wanted = [face.make_array([root * 2 + index + 0.0])] * 2
            face.compare(face.wait(pg.broadcast(xs, opts)), wanted)
            face.compare(xs, wanted)


def allreduce_with_every_operation(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for op, mine, wanted in list_reductions(face, rank, size):
        opts = face.make_options("AllreduceOptions", reduceOp=op)
        face.compare(face.wait(pg.allreduce([mine], opts)), [wanted])
        face.compare(mine, wanted)


def allreduce_of_two_arrays(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for op, mine, wanted in list_twofold_reductions(face, rank, size):
        opts = face.make_options("AllreduceOptions", reduceOp=op)
        face.compare(face.wait(pg.allreduce(mine, opts)), [wanted, wanted])
        face.compare(mine, [wanted, wanted])


def allreduce_coalesced(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for op, mine, wanted in list_coalesced_reductions(face, rank, size):
        opts = face.make_options("AllreduceCoalescedOptions", reduceOp=op)
        face.compare(face.wait(pg.allreduce_coalesced(mine, opts)), wanted)
        face.compare(mine, wanted)


def reduce_to_every_root(face: Face, rank: int, size: int) -> None:
    pg = face.get_group()
    for op, mine, wanted in list_reductions(face, rank, size):
        for root in range(size):
            x = face.copy(mine)
            opts = face.make_options("ReduceOptions", reduceOp=op, rootRank=root, rootTensor=0)
            here = wanted if rank == root else mine
            face.compare(face.wait(pg.reduce([x], opts)), [here])
            face.compare(x, here)


def gather_to_every_root(face: Face, rank: int, size: int, make: Make) -> None:
    """Gather to all roots at once, and wait for each afterwards."""
    pg, mine = face.get_group(), make(face.make_array([rank, -rank]))
    lists = [[face.make_full((2,), -1) for _ in range(size)] for _ in range(size)]
    works = [
        pg.gather(
            [outputs] if rank == root else [],
            [mine],
            face.make_options("GatherOptions", rootRank=root),
        )
        for root, outputs in enumerate(lists)
    ]
    wanted = [face.make_array([one, -one]) for one in range(size)]
    untouched = [face.make_full((2,), -1)] * size
    for root, work in enumerate(works):
        found = face.wait(work)
        face.compare(found, wanted if rank == root else [])
        face.compare(lists[root], wanted if rank == root else untouched)


def scatter_from_every_root(face: Face, rank: int, size: int, make: Make) -> None:
    """Scatter from all roots at once, and wait for each afterwards."""
    pg = face.get_group()
    mine = [make(face.make_array([rank, 10 * to])) for to in range(size)]
    outputs = [face.make_full((2,), -1) for _ in range(size)]
    works = [
        pg.scatter(
            [output],
            [mine] if rank == root else [],
            face.make_options("ScatterOptions", rootRank=root),
        )
        for root, output in enumerate(outputs)
    ]
    for root, work in enumerate(works):
        wanted = face.make_array([root, 10 * rank])
        face.compare(face.wait(work), [wanted])
        face.compare(outputs[root], wanted)


def allgather_of_several_arrays(face: Face, rank: int, size: int, count: int, make: Make) -> None:
    mine = [make(face.make_array([count * rank + at, rank])) for at in range(count)]
    length = count * size
    outputs = [[face.make_full((2,), -1) for _ in range(length)] for _ in range(count)]
    wanted = [[face.make_array([at, at // count]) for at in range(length)]] * count
    found = face.wait(face.get_group().allgather(outputs, mine))
    face.compare(found, wanted[0] if count == 1 else wanted)
    face.compare(outputs, wanted)
