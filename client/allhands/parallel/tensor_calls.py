"""Functional collectives whose results have another shape than their inputs."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from allhands.api import collectives
from allhands.collectives.arguments import AnyArray, check_functional_input, check_splits
from allhands.collectives.reduction import ReduceOp, parse_op
from allhands.data.array_kinds import restore_kind
from allhands.engine.work.derived import give_result
from allhands.options import CallOptions
from allhands.parallel.dims import join_rows, normalize_dim, split_rows
from allhands.parallel.expand import GroupLike, resolve


def all_gather_tensor(
    x: AnyArray,
    gather_dim: int = 0,
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return a new array: every rank's `x`, concatenated along dimension `gather_dim`.

    `x` is only read; the same shape and dtype on all ranks.
    """
    given = np.atleast_1d(check_functional_input(x, "x"))
    dim = normalize_dim(gather_dim, given, "gather_dim")
    found = resolve(group, tag, "all_gather_tensor", options)
    rows = np.empty((found.size, *given.shape), given.dtype)
    work = collectives.all_gather_into_tensor(rows, given, found, async_op, **options)
    return give_result([work], lambda: restore_kind(join_rows(rows, dim), x))


def reduce_scatter_tensor(
    x: AnyArray,
    op: ReduceOp | str = ReduceOp.SUM,
    scatter_dim: int = 0,
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Return a new array: this rank's block of the reduction of `x`, along `scatter_dim`.

    `x` is only read; the same shape and dtype on all ranks.

    Raises:
        ValueError: the length of that dimension is no multiple of the group's size.
    """
    found = resolve(group, tag, "reduce_scatter_tensor", options)
    rows = split_rows(check_functional_input(x, "x"), scatter_dim, "scatter_dim", found.size)
    out = np.empty(rows.shape[1:], rows.dtype)
    work = collectives.reduce_scatter_tensor(out, rows, parse_op(op), found, async_op, **options)
    return give_result([work], lambda: restore_kind(out, x))


def all_to_all_single(
    x: AnyArray,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Send each rank its rows (dimension 0) of `x`; return the rows received.

    Args:
        output_split_sizes: rows from each rank, in rank order; None, as for `input_split_sizes`:
            equal shares.
        input_split_sizes: rows for each rank.
    """
    if (output_split_sizes is None) != (input_split_sizes is None):
        raise ValueError(
            "output_split_sizes and input_split_sizes must either be specified together or both "
            "set to None"
        )
    given = np.ascontiguousarray(check_functional_input(x, "x"))  # it makes one dimension of none
    found = resolve(group, tag, "all_to_all_single", options)
    rows = len(given) if output_split_sizes is None else sum(map(int, output_split_sizes))
    if output_split_sizes is not None:  # before memory of that size is asked for
        check_splits(output_split_sizes, "output_split_sizes", rows, found.size)
    out = np.empty((rows, *given.shape[1:]), given.dtype)
    sizes = output_split_sizes, input_split_sizes
    work = collectives.all_to_all_single(out, given, *sizes, found, async_op, **options)
    return give_result([work], lambda: restore_kind(out, x))


def permute_tensor(
    x: AnyArray,
    src_dst: Sequence[int],
    group: GroupLike = None,
    tag: str = "",
    async_op: bool = False,
    **options: Unpack[CallOptions],
) -> Any:
    """Send `x` to rank `src_dst[this rank]`; return the array received, a new one.

    `x` is only read; the same shape and dtype on all ranks.

    Raises:
        ValueError: `src_dst` is no permutation of the group's ranks.
    """
    given, found = check_functional_input(x, "x"), resolve(group, tag, "permute_tensor", options)
    goals = [int(rank) for rank in src_dst]
    if sorted(goals) != list(range(found.size)):
        raise ValueError(
            f"src_dst must name each rank of the group once, from 0 to {found.size - 1}: {goals}"
        )
    outgoing, incoming = [0] * found.size, [0] * found.size
    outgoing[goals[found.rank]] = incoming[goals.index(found.rank)] = given.size
    flat, out = np.ascontiguousarray(given).reshape(-1), np.empty(given.shape, given.dtype)
    arrays = out.reshape(-1), flat
    work = collectives.all_to_all_single(*arrays, incoming, outgoing, found, async_op, **options)
    return give_result([work], lambda: restore_kind(out, x))
