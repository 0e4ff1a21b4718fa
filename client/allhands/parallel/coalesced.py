"""Functional collectives of several arrays: a single call per dtype.

Returned arrays of one dtype may be views of one array, which stays alive as long as any view.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from allhands.api import collectives
from allhands.collectives.arguments import AnyArray, check_functional_input
from allhands.collectives.reduction import ReduceOp, check, parse_op
from allhands.data.array_kinds import restore_kind
from allhands.engine.work.derived import give_result
from allhands.options import CallOptions
from allhands.parallel.dims import split_rows
from allhands.parallel.expand import GroupLike, resolve


def all_reduce_coalesced(
    arrays: Sequence[AnyArray],
    op: ReduceOp | str = ReduceOp.SUM,
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the `all_reduce` of each array."""
    given, reduce = _check_arrays(arrays), parse_op(op)
    found = resolve(group, tag, "all_reduce_coalesced", options)
    for one in given:
        check(reduce, one.dtype)
    made, works = list(given), []
    for places in _group_by_dtype(given):
        whole = np.concatenate([given[at].reshape(-1) for at in places])
        works.append(collectives.all_reduce(whole, reduce, found, async_op, **options))
        for at, start, stop in _iterate_spans([given[at].size for at in places], places):
            made[at] = whole[start:stop].reshape(given[at].shape)
    return give_result(works, lambda: _restore_kinds(made, arrays))


def all_gather_into_tensor_coalesced(
    arrays: Sequence[AnyArray],
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return for each array every rank's array, concatenated along dimension 0."""
    given = [np.atleast_1d(one) for one in _check_arrays(arrays)]
    found = resolve(group, tag, "all_gather_into_tensor_coalesced", options)
    works, gathered = [], []
    for places in _group_by_dtype(given):
        whole = np.concatenate([given[at].reshape(-1) for at in places])
        rows = np.empty((found.size, whole.size), whole.dtype)
        works.append(collectives.all_gather_into_tensor(rows, whole, found, async_op, **options))
        gathered.append((places, rows))

    def cut() -> list[Any]:  # a copy, where rows of several arrays alternate
        made = list(given)
        for places, rows in gathered:
            for at, start, stop in _iterate_spans([given[at].size for at in places], places):
                length, *rest = given[at].shape
                made[at] = rows[:, start:stop].reshape(found.size * length, *rest)
        return _restore_kinds(made, arrays)

    return give_result(works, cut)


def reduce_scatter_tensor_coalesced(
    arrays: Sequence[AnyArray],
    op: ReduceOp | str = ReduceOp.SUM,
    scatter_dim: Sequence[int] | int = 0,
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return the `reduce_scatter_tensor` of each array; `scatter_dim`: each, or all.

    Raises:
        ValueError: another number of dimensions, or one that the ranks cannot share equally.
    """
    given, reduce = _check_arrays(arrays), parse_op(op)
    found = resolve(group, tag, "reduce_scatter_tensor_coalesced", options)
    dims = [scatter_dim] * len(given) if isinstance(scatter_dim, int) else list(scatter_dim)
    if len(dims) != len(given):
        raise ValueError(f"scatter_dim has {len(dims)} dimensions for {len(given)} arrays")
    shares = [
        split_rows(one, dim, f"scatter_dim of arrays[{at}]", found.size)
        for at, (one, dim) in enumerate(zip(given, dims, strict=True))
    ]
    for one in given:
        check(reduce, one.dtype)
    made, works = list(given), []
    for places in _group_by_dtype(given):
        rows = [shares[at].reshape(found.size, shares[at][0].size) for at in places]
        whole = np.concatenate(rows, axis=1)
        out = np.empty(whole.shape[1], whole.dtype)
        works.append(
            collectives.reduce_scatter_tensor(out, whole, reduce, found, async_op, **options)
        )
        for at, start, stop in _iterate_spans([one.shape[1] for one in rows], places):
            made[at] = out[start:stop].reshape(shares[at].shape[1:])
    return give_result(works, lambda: _restore_kinds(made, arrays))


def _restore_kinds(made: Sequence[AnyArray], given: Sequence[object]) -> list[Any]:
    return [restore_kind(one, like) for one, like in zip(made, given, strict=True)]


def _check_arrays(arrays: Sequence[AnyArray]) -> list[AnyArray]:
    """Check the arrays.

    Raises:
        TypeError: something else than arrays of plain data, in a list.
        ValueError: there are none.
    """
    if not isinstance(arrays, list | tuple):
        raise TypeError(f"arrays must be a list of them, not {type(arrays).__name__}")
    if not arrays:
        raise ValueError("a coalesced call requires non-empty tensor list")
    return [check_functional_input(one, f"arrays[{at}]") for at, one in enumerate(arrays)]


def _group_by_dtype(arrays: Sequence[AnyArray]) -> list[list[int]]:
    """Return the indices of the arrays of each dtype, in order of first use."""
    found: dict[np.dtype[np.generic], list[int]] = {}
    for at, one in enumerate(arrays):
        found.setdefault(one.dtype, []).append(at)
    return list(found.values())


def _iterate_spans(counts: Sequence[int], indices: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each array's index, and the span of its elements in the flat array."""
    start = 0
    for at, count in zip(indices, counts, strict=True):
        yield at, start, start + count
        start += count
