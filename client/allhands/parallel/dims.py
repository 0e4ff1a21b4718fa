"""Arrays copied, cut and joined along any dimension, for collectives along dimension 0."""

import numpy as np

from allhands.collectives.arguments import AnyArray, check_functional_input


def copy_array(x: AnyArray) -> AnyArray:
    """Return a new contiguous array with the elements of `x`."""
    made: AnyArray = np.array(check_functional_input(x, "x"), order="C")
    return made


def normalize_dim(dim: int, array: AnyArray, name: str) -> int:
    """Return a dimension counted from the front.

    Raises:
        ValueError: the array has no such dimension.
    """
    if not -array.ndim <= dim < array.ndim:
        raise ValueError(f"{name}={dim} is none of the {array.ndim} dimensions of the array")
    return dim % array.ndim


def split_rows(array: AnyArray, dim: int, name: str, size: int) -> AnyArray:
    """Return `size` equal shares along a dimension as rows of a contiguous array.

    Raises:
        ValueError: there is no such dimension, or its length is no multiple of `size`.
    """
    at = normalize_dim(dim, array, name)
    length = array.shape[at]
    if length % size:
        raise ValueError(
            f"input dimension {at} ({length}) must be a multiple of group_size {size}: "
            "its ranks get equal shares"
        )
    shape = (*array.shape[:at], size, length // size, *array.shape[at + 1 :])
    rows: AnyArray = np.ascontiguousarray(np.moveaxis(array.reshape(shape), at, 0))
    return rows


def join_rows(rows: AnyArray, dim: int) -> AnyArray:
    """Return the rows of an array, concatenated along a dimension."""
    _, *shape = rows.shape
    shape[dim] *= len(rows)
    whole: AnyArray = np.moveaxis(rows, 0, dim).reshape(shape)
    return whole
