"""Assignment of gradients to buckets by size and dtype. Pure."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np

from allhands_proto.quick_dataclass import dataclass

NO_LIMIT = 1 << 62
"""Of a bucket that holds one gradient and never another."""


class ArraySpec(Protocol):
    """An array, as far as a bucket is concerned."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(slots=True)
class _OpenBucket:
    """A bucket being filled with arrays of one dtype."""

    limit: int
    """Which of the limits it goes by."""
    members: list[int]
    nbytes: int = 0


def compute_bucket_assignment_by_size(
    arrays: Sequence[ArraySpec],
    limits: Sequence[int],
    alone: Collection[int] = (),
) -> tuple[list[list[int]], list[int]]:
    """Cut arrays into buckets, in their order; each bucket is of one dtype.

    A bucket is full once it has as many bytes as its limit, so it may be longer by less than one
    array. Each dtype goes through the limits by itself, and stays with the last of them.

    Args:
        arrays: of which dtypes and sizes count.
        limits: bytes of the first bucket, the second, and so on.
        alone: indices of arrays that share their bucket with no other.

    Returns:
        The indices of the arrays in each bucket, and the limit of each bucket; buckets are in the
        order of their first arrays.

    Raises:
        ValueError: no arrays, no limits, or a limit below 1.
    """
    if not arrays:
        raise ValueError("there are no arrays to put into buckets")
    if not limits or min(limits) < 1:
        raise ValueError(f"limits are positive numbers of bytes, at least one: {list(limits)}")
    filled: list[tuple[list[int], int]] = []
    opened: dict[np.dtype[Any], _OpenBucket] = {}
    for index, array in enumerate(arrays):
        if index in alone:
            filled.append(([index], NO_LIMIT))
            continue
        bucket = opened.setdefault(array.dtype, _OpenBucket(0, []))
        bucket.members.append(index)
        bucket.nbytes += array.nbytes
        if bucket.nbytes >= limits[bucket.limit]:
            filled.append((bucket.members, limits[bucket.limit]))
            opened[array.dtype] = _OpenBucket(min(bucket.limit + 1, len(limits) - 1), [])
    filled += [(one.members, limits[one.limit]) for one in opened.values() if one.members]
    filled.sort(key=lambda one: one[0][0])
    return [bucket for bucket, _ in filled], [limit for _, limit in filled]


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """Offsets of a bucket's gradients in its flat array."""

    parameters: tuple[int, ...]
    dtype: np.dtype[Any]
    spans: tuple[slice, ...]
    """Of each parameter's gradient, in elements."""

    @property
    def count(self) -> int:
        """Number of elements of the bucket."""
        stop: int = self.spans[-1].stop
        return stop


def assign_in_order(
    order: Sequence[int],
    arrays: Sequence[ArraySpec],
    limits: Sequence[int],
    alone: Collection[int] = (),
) -> list[list[int]]:
    """Cut some of the arrays into buckets, in the order given."""
    alone_at = {at for at, index in enumerate(order) if index in alone}
    buckets, _ = compute_bucket_assignment_by_size([arrays[one] for one in order], limits, alone_at)
    return [[order[at] for at in bucket] for bucket in buckets]


def make_layouts(
    buckets: Sequence[Sequence[int]],
    arrays: Sequence[ArraySpec],
    wanted: Collection[int],
    alone: Collection[int] = (),
) -> list[BucketLayout]:
    """Make the layouts of given buckets of the wanted arrays.

    Raises:
        RuntimeError: a bucket that is empty or of several dtypes, or one that an array shares that
            is to be alone.
        ValueError: an array that is wanted and in no bucket, or in two, or one that is not wanted.
    """
    if sorted(itertools.chain.from_iterable(buckets)) != sorted(wanted):
        raise ValueError(
            f"each of the parameters {sorted(wanted)} goes into exactly one bucket, not as in "
            f"{[list(bucket) for bucket in buckets]}"
        )
    for index, bucket in enumerate(buckets):
        if len(bucket) > 1 and (shared := [one for one in bucket if one in alone]):
            raise RuntimeError(
                f"the gradient of parameter {shared[0]} is sparse: it cannot share bucket {index}"
            )
    return [_make_layout(index, bucket, arrays) for index, bucket in enumerate(buckets)]


def _make_layout(index: int, bucket: Sequence[int], arrays: Sequence[ArraySpec]) -> BucketLayout:
    dtypes = {arrays[one].dtype for one in bucket}
    if len(dtypes) != 1:
        found = ", ".join(sorted(map(str, dtypes))) or "none"
        raise RuntimeError(
            f"a bucket holds gradients of one dtype, bucket {index} of several or none ({found}): "
            "give each dtype buckets of its own"
        )
    stops = [0, *itertools.accumulate(arrays[one].size for one in bucket)]
    spans = tuple(slice(start, stop) for start, stop in itertools.pairwise(stops))
    return BucketLayout(tuple(bucket), dtypes.pop(), spans)
