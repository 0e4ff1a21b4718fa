"""Every algorithm of calls over links, with arrays to run it on and what must come of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allhands.collectives.algorithms import (
    bruck,
    doubling,
    flat,
    halving,
    ordered,
    pairwise,
    ring,
    tree,
    van_de_geijn,
)
from allhands.collectives.buffer import Array
from allhands.collectives.schedule import Schedule

LENGTH = 60
"""Of all blocks together: a multiple of every size here."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm, and the arrays it works on: input and output of a rank, and the result."""

    build: Callable[[int, int], Schedule]
    inputs: Callable[[Sequence[Array], int], list[Array]]
    outputs: Callable[[Sequence[Array], int], list[Array]]
    result: Callable[[Sequence[Array], int], Array]
    sizes: tuple[int, ...] = (2, 3, 4)
    reduces: bool = True


def counts(size: int) -> tuple[int, ...]:
    return (LENGTH // size,) * size


def nothing(values: Sequence[Array], rank: int) -> list[Array]:
    return []


def own(values: Sequence[Array], rank: int) -> list[Array]:
    return [values[rank].copy()]


def own_block(values: Sequence[Array], rank: int) -> list[Array]:
    return [cut(values[rank], rank, len(values)).copy()]


def cut(array: Array, place: int, size: int) -> Array:
    return array[place * LENGTH // size : (place + 1) * LENGTH // size]


def empty(values: Sequence[Array], rank: int) -> list[Array]:
    return [np.zeros_like(values[rank])]


def empty_block(values: Sequence[Array], rank: int) -> list[Array]:
    return [np.zeros_like(cut(values[rank], rank, len(values)))]


def at_root(give: Callable[[Sequence[Array], int], list[Array]]) -> Any:
    return lambda values, rank: give(values, rank) if rank == 1 else []


def total(values: Sequence[Array], rank: int) -> Array:
    """Return the sum, in whatever order: all values are small whole numbers."""
    found: Any = values[0]
    for one in values[1:]:
        found = found + one
    return np.asarray(found)


def total_block(values: Sequence[Array], rank: int) -> Array:
    return cut(total(values, rank), rank, len(values))


def total_at_root(values: Sequence[Array], rank: int) -> Array:
    return total(values, rank) if rank == 1 else values[0][:0]


def gathered(values: Sequence[Array], rank: int) -> Array:
    return np.concatenate([cut(one, place, len(values)) for place, one in enumerate(values)])


def gathered_at_root(values: Sequence[Array], rank: int) -> Array:
    return gathered(values, rank) if rank == 1 else values[0][:0]


def exchanged(values: Sequence[Array], rank: int) -> Array:
    return np.concatenate([cut(one, rank, len(values)) for one in values])


def in_place(build: Callable[[int, int, int], Schedule], *sizes: int) -> Algorithm:
    sizes = sizes or (2, 3, 4)
    return Algorithm(lambda rank, size: build(rank, size, LENGTH), nothing, own, total, sizes)


def of_blocks(build: Callable[..., Schedule], *more: Any) -> Callable[[int, int], Schedule]:
    return lambda rank, size: build(rank, size, counts(size), *more)


def exchange(in_one_round: bool) -> Algorithm:
    return Algorithm(
        lambda rank, size: pairwise.all_to_all(
            rank, size, counts(size), counts(size), in_one_round=in_one_round
        ),
        own,
        empty,
        exchanged,
        reduces=False,
    )


def broadcast(build: Callable[[int, int, int, int], Schedule]) -> Algorithm:
    return Algorithm(
        lambda rank, size: build(rank, size, LENGTH, 1),
        nothing,
        own,
        lambda values, rank: values[1],
        reduces=False,
    )


ALGORITHMS = {
    "doubling": in_place(doubling.all_reduce),
    "halving": in_place(halving.all_reduce, 2, 4),
    "ring": in_place(ring.all_reduce),
    "gathered": in_place(ordered.all_reduce_gathered),
    "ordered": in_place(ordered.all_reduce),
    "reduce by a tree": Algorithm(
        lambda rank, size: tree.reduce(rank, size, LENGTH, 1), own, at_root(empty), total_at_root
    ),
    "reduce in order": Algorithm(
        lambda rank, size: ordered.reduce(rank, size, LENGTH, 1),
        own,
        at_root(empty),
        total_at_root,
    ),
    "reduce_scatter pairwise": Algorithm(
        of_blocks(pairwise.reduce_scatter), own, empty_block, total_block
    ),
    "reduce_scatter by a ring": Algorithm(
        of_blocks(ring.reduce_scatter), own, empty_block, total_block
    ),
    "reduce_scatter in order": Algorithm(
        of_blocks(ordered.reduce_scatter), own, empty_block, total_block
    ),
    "broadcast by a tree": broadcast(tree.broadcast),
    "van de geijn": broadcast(van_de_geijn.broadcast),
    "bruck": Algorithm(of_blocks(bruck.all_gather), own_block, empty, gathered, reduces=False),
    "all_gather by a ring": Algorithm(
        of_blocks(ring.all_gather), own_block, empty, gathered, reduces=False
    ),
    "gather": Algorithm(
        of_blocks(flat.gather, 1), own_block, at_root(empty), gathered_at_root, reduces=False
    ),
    "scatter": Algorithm(
        of_blocks(flat.scatter, 1),
        lambda values, rank: [values[1].copy()] if rank == 1 else [],
        empty_block,
        lambda values, rank: cut(values[1], rank, len(values)),
        reduces=False,
    ),
    "together": exchange(in_one_round=True),
    "pairwise": exchange(in_one_round=False),
}


def make_values(size: int, dtype: Any, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 3, LENGTH).astype(dtype) for _ in range(size)]
