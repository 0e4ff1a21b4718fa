"""Arrays of which only some elements are stored: coordinates and values."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Indices = NDArray[np.int64]


class SparseArray:
    """A sparse array in COO form: absent elements are zero, duplicate elements add up.

    `indices` is int64 of shape (d, n): a column for each of n stored elements, a row for each of
    the first d dimensions of `shape`. `values` has shape `(n, *shape[d:])`. For a table with some
    stored rows, `indices` has shape (1, n) and `values` (n, width).
    """

    __slots__ = ("indices", "shape", "values")

    def __init__(
        self,
        indices: ArrayLike,
        values: ArrayLike,
        shape: Sequence[int],
        dtype: DTypeLike | None = None,
    ) -> None:
        """Wrap `indices` and `values`, copied only if their dtype must change.

        Raises:
            ValueError: shapes do not match, or an index is out of bounds.
        """
        self.indices: Indices = np.asarray(indices, np.int64)
        self.values: NDArray[Any] = np.asarray(values, dtype)
        self.shape = tuple(int(length) for length in shape)
        _check(self.indices, self.values, self.shape)

    @classmethod
    def from_dense(cls, array: ArrayLike, sparse_dims: int | None = None) -> "SparseArray":
        """Return the nonzero elements of an array; dimensions past `sparse_dims` stay dense."""
        dense = np.asarray(array)
        dims = dense.ndim if sparse_dims is None else sparse_dims
        stored = dense != 0
        if rest := tuple(range(dims, dense.ndim)):
            stored = stored.any(axis=rest)
        found = np.nonzero(stored)
        return cls(np.stack(found), dense[found], dense.shape)

    @property
    def dtype(self) -> "np.dtype[Any]":
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """Number of stored elements, or of stored rows with dense dimensions."""
        return int(self.indices.shape[1])

    @property
    def sparse_dims(self) -> int:
        return int(self.indices.shape[0])

    def coalesced(self) -> "SparseArray":
        """Return the same array with each element stored once, in the order of their indices."""
        places, values = sum_duplicates(self)
        return SparseArray(unflatten_indices(places, self), values, self.shape)

    def todense(self) -> NDArray[Any]:
        """Return a dense array of the same elements."""
        found = np.zeros(self.shape, self.dtype)
        one = self.coalesced()
        found[tuple(one.indices)] = one.values
        return found

    def become(self, indices: Indices, values: NDArray[Any]) -> Any:
        """Replace the elements, shape unchanged; return the caller's array object."""
        self.indices, self.values = indices, values
        return self

    def __repr__(self) -> str:
        return f"SparseArray(shape={self.shape}, dtype={self.dtype}, nnz={self.nnz})"


def flatten_indices(array: SparseArray) -> Indices:
    """Return the flat (row-major) number of each index."""
    lengths = array.shape[: array.sparse_dims]
    places: Indices = np.ravel_multi_index(tuple(array.indices), lengths).astype(np.int64)
    return places


def unflatten_indices(numbers: Indices, like: SparseArray) -> Indices:
    """Return the indices of flat (row-major) numbers."""
    lengths = like.shape[: like.sparse_dims]
    return np.stack(np.unravel_index(numbers, lengths)).astype(np.int64, copy=False)


def sum_duplicates(array: SparseArray) -> tuple[Indices, NDArray[Any]]:
    """Return the sorted distinct flat indices, and the sum of the values at each."""
    places, inverse = np.unique(flatten_indices(array), return_inverse=True)
    if len(places) == array.nnz:  # each is there once
        values = np.empty_like(array.values)
        values[inverse] = array.values
        return places, values
    values = np.zeros((len(places), *array.values.shape[1:]), array.dtype)
    np.add.at(values, inverse, array.values)
    return places, values


def is_scipy_sparse(array: object) -> bool:
    """Return whether `array` is a sparse array or matrix of SciPy."""
    return type(array).__module__.startswith("scipy.sparse")


class ScipySparseArray(SparseArray):
    """A SparseArray over a SciPy array; the result is written back into that array."""

    __slots__ = ("origin",)

    def __init__(self, origin: Any) -> None:
        """Copy the elements of a SciPy array.

        Raises:
            TypeError: the format is not COO, CSR or CSC, so that a result cannot be written back.
        """
        if origin.format not in ("coo", "csr", "csc"):
            raise TypeError(
                f"a sparse array of format {origin.format!r} cannot take a result: use .tocoo(), "
                ".tocsr() or .tocsc()"
            )
        coo = origin.tocoo()
        super().__init__(np.stack([coo.row, coo.col]), coo.data, coo.shape)
        self.origin = origin

    def become(self, indices: Indices, values: NDArray[Any]) -> Any:
        super().become(indices, values)
        rows, columns = indices
        origin = self.origin
        if origin.format == "coo":
            origin.row, origin.col, origin.data = rows, columns, values
        else:
            made = type(origin)((values, (rows, columns)), shape=self.shape)
            origin.data, origin.indices, origin.indptr = made.data, made.indices, made.indptr
        return origin


def _check(indices: Indices, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if indices.ndim != 2:
        raise ValueError(f"indices must be 2-D, a row for each dimension, not {indices.ndim}-D")
    dims, count = indices.shape
    if not 0 < dims <= len(shape):
        raise ValueError(f"indices have {dims} rows, the shape {shape} has {len(shape)} dimensions")
    if values.shape != (count, *shape[dims:]):
        raise ValueError(
            f"values must have shape {(count, *shape[dims:])} for {count} indices of {shape}, "
            f"not {values.shape}"
        )
    if math.prod(shape[:dims]) >= 1 << 63:
        raise ValueError(f"the indices of {shape} are more than 64 bits can number")
    lengths = np.array(shape[:dims]).reshape(-1, 1)
    if count and ((indices < 0) | (indices >= lengths)).any():
        raise ValueError(f"indices out of the bounds of {shape[:dims]}")
