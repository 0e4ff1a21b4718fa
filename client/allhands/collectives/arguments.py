"""Requirements on arrays of a collective, checked before any other step.

The result is written to the caller's memory or nowhere: what NumPy sees as a copy is refused as an
output. The checks of targets take C-contiguous arrays; `staging` has those of other layouts. Inputs
that are not contiguous, or that share memory with an output, are copied: they are only read.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.buffer import Array
from allhands.data import foreign_arrays
from allhands.errors import InvalidArgument

AnyArray = NDArray[Any]

_REAL_PARTS: Final[Mapping[np.dtype[Any], np.dtype[Any]]] = MappingProxyType(
    {np.dtype(whole): np.dtype(part) for whole, part in (("c8", "f4"), ("c16", "f8"))}
)
"""What complex numbers consist of."""


def to_input(x: object, name: str) -> AnyArray:
    """Return what a call reads as a NumPy array: memory of `x`, or a copy; see `foreign_arrays`."""
    return x if isinstance(x, np.ndarray) else foreign_arrays.read_array(x, name)


def check_input(x: object, name: str) -> AnyArray:
    """Return what a call reads as a NumPy array of plain data; raises as both do."""
    return check_array(to_input(x, name), name)


def check_functional_input(x: object, name: str) -> AnyArray:
    """Return what a call reads that returns a new array, as `check_input`; raises as that."""
    outcome = ", and take the new array that the call returns"
    found = x if isinstance(x, np.ndarray) else foreign_arrays.read_array(x, name, outcome)
    return check_array(found, name)


def to_output(x: object, name: str) -> AnyArray:
    """Return what a call writes as a NumPy array over the memory of `x`; see `foreign_arrays`."""
    return x if isinstance(x, np.ndarray) else foreign_arrays.find_memory(x, name)


def to_inputs(arrays: object, name: str, size: int) -> list[AnyArray]:
    """Return each of a list of `size` arrays as `to_input` does; raises as `check_list`."""
    return [to_input(one, f"{name}[{at}]") for at, one in enumerate(check_list(arrays, name, size))]


def to_outputs(arrays: object, name: str, size: int) -> list[AnyArray]:
    """Return each of a list of `size` arrays as `to_output` does; raises as `check_list`."""
    return [
        to_output(one, f"{name}[{at}]") for at, one in enumerate(check_list(arrays, name, size))
    ]


def check_array(array: object, name: str) -> AnyArray:
    """Return the array if its elements can be moved as bytes.

    Raises:
        TypeError: not an array, or an array of Python objects or with a mask.
        InvalidType: an array of another library, in the memory of another device.
    """
    if not isinstance(array, np.ndarray):
        if (device := foreign_arrays.find_device(array)) is not None:
            raise foreign_arrays.build_device_error(name, device)
        raise TypeError(
            f"{name} must be a numpy.ndarray, not {type(array).__name__}; "
            "wrap it: np.asarray(...), and read the result from that array"
        )
    # Asked of subclasses alone: `np.ma` is a megabyte that few programs import.
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array: its mask would be lost; pass .data or .filled()"
        )
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds Python objects ({array.dtype}): only plain data travels")
    if array.dtype.itemsize == 0:
        raise TypeError(f"{name} has elements of no bytes ({array.dtype!r})")
    return np.asarray(array)  # subclasses such as np.matrix would stay 2-D when made flat


def check_target(array: object, name: str) -> Array:
    """Return a 1-D view of an array that a collective writes.

    Raises:
        TypeError: as `check_array`.
        ValueError: the array is not C-contiguous, so that a copy would take the result; or
            read-only.
    """
    found = check_array(array, name)
    if not found.flags.c_contiguous:
        raise ValueError(
            f"{name} must be C-contiguous, this one has shape {found.shape} and strides "
            f"{found.strides}: use a copy (np.ascontiguousarray) and assign it back afterwards"
        )
    check_writeable(found, name)
    return found.reshape(-1)


def check_writeable(array: AnyArray, name: str) -> None:
    """Raise ValueError if an array is read-only."""
    if not array.flags.writeable:
        raise ValueError(
            f"{name} is read-only: give an array that can be written, or call ah.functional, which "
            "returns a new array"
        )


def check_targets(arrays: object, name: str, size: int, *, in_place: bool = False) -> list[Array]:
    """Return 1-D views of a list of arrays to write, one for each of `size` ranks.

    With `in_place` each is read before any is written, and may be there several times: then equal
    elements take the place of equal ones.

    Raises:
        TypeError, ValueError: as `target`; a wrong number of them.
        InvalidArgument: two share memory, and would hold different elements.
    """
    views = [
        check_target(one, f"{name}[{at}]") for at, one in enumerate(check_list(arrays, name, size))
    ]
    spans = sorted((*get_span(view), str(view.dtype) * in_place) for view in views if view.nbytes)
    for before, after in pairwise(spans):
        if before[1] > after[0] and not (in_place and before == after):
            text = "one would overwrite the other"
            if in_place:
                text = "the same array may be there several times, but not parts that overlap"
            raise InvalidArgument(f"two arrays of {name} share memory: {text}")
    return views


def check_source(array: object, name: str, written: Sequence[Array] = ()) -> Array:
    """Return 1-D contiguous data of an array that a collective only reads.

    It is a copy if the array is not contiguous or shares memory with an array of `written`.

    Raises:
        TypeError: as `check_array`.
    """
    found = check_array(array, name)
    flat: Array = np.ascontiguousarray(found).reshape(-1)
    if any(np.may_share_memory(flat, other) for other in written):
        flat = flat.copy()
    return flat


def check_sources(
    arrays: object, name: str, size: int, written: Sequence[Array] = ()
) -> list[Array]:
    """Return 1-D contiguous data of a list of arrays to read, one for each of `size` ranks."""
    return [
        check_source(one, f"{name}[{at}]", written)
        for at, one in enumerate(check_list(arrays, name, size))
    ]


def check_list(arrays: object, name: str, size: int) -> list[object]:
    """Return a list or tuple of exactly `size` items.

    Raises:
        TypeError: neither a list nor a tuple.
        ValueError: another number of items.
    """
    if not isinstance(arrays, list | tuple):
        raise TypeError(
            f"{name} must be a list of {size} arrays, one for each rank, "
            f"not {type(arrays).__name__}"
        )
    if len(arrays) != size:
        raise ValueError(f"{name} has {len(arrays)} arrays, the group has {size} ranks")
    return list(arrays)


def check_alike(arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Check that 1-D arrays agree in dtype and length.

    Raises:
        ValueError: two arrays differ; the text names the first two.
    """
    for array, name in zip(arrays, names, strict=True):
        check_same_dtype(arrays[0], names[0], array, name)
        if len(array) != len(arrays[0]):
            raise InvalidArgument(
                f"invalid tensor size: {name} has {len(array)} elements, {names[0]} has "
                f"{len(arrays[0])}: they must be equal"
            )


def unify_dtypes(arrays: Sequence[Array]) -> list[Array]:
    """Return 1-D arrays as they are or, where real numbers are among complex ones, all as real.

    A complex number is two real ones of half its size, one after the other. Other dtypes that
    differ are left for `check_same_dtype` to find.
    """
    real = [_REAL_PARTS.get(array.dtype, array.dtype) for array in arrays]
    if len({array.dtype for array in arrays}) == 1 or len(set(real)) > 1:
        return list(arrays)
    return [array.view(dtype) for array, dtype in zip(arrays, real, strict=True)]


def check_same_dtype(first: Array, first_name: str, second: Array, second_name: str) -> None:
    """Raise ValueError if the dtypes differ."""
    if first.dtype != second.dtype:
        raise InvalidArgument(
            f"tensors with different dtypes: {first_name} is {first.dtype}, "
            f"{second_name} is {second.dtype}"
        )


def check_splits(sizes: Sequence[int] | None, name: str, rows: int, size: int) -> list[int]:
    """Return how many rows go to or come from each rank.

    Raises:
        ValueError: not one for each rank, negative, or not all rows.
    """
    if sizes is None:
        if rows % size:
            raise InvalidArgument(
                f"dimension 0 has {rows} rows, which {size} ranks cannot share equally: pass {name}"
            )
        return [rows // size] * size
    numbers = [int(number) for number in sizes]
    if len(numbers) != size:
        raise InvalidArgument(
            f"Number of tensor splits not equal to group size: {name} has {len(numbers)}, "
            f"the group {size} ranks"
        )
    if any(number < 0 for number in numbers) or sum(numbers) != rows:
        raise InvalidArgument(
            f"Split sizes doesn't match total dim 0 size: {name} is {numbers}, "
            f"dimension 0 has {rows} rows"
        )
    return numbers


def count_elements(
    array: AnyArray, splits: Sequence[int] | None, name: str, group_size: int
) -> list[int]:
    """Turn split sizes in rows of `array` into counts of elements; None: equal shares."""
    if array.ndim == 0:
        raise ValueError("all_to_all_single splits dimension 0: a 0-d array has none")
    rows = check_splits(splits, name, array.shape[0], group_size)
    width = array.size // array.shape[0] if array.shape[0] else 0
    return [count * width for count in rows]


def get_span(array: Array) -> tuple[int, int]:
    """Return where the memory of a contiguous array begins and ends."""
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes
