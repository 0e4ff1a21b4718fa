"""Arrays of other libraries as NumPy arrays: by DLPack, the buffer protocol or `__array__`.

It knows protocols, not libraries. To read, a copy will do. To write, the array found must be the
caller's own memory, and no protocol may call it read-only.
"""

import contextlib
from collections.abc import Callable, Mapping
from numbers import Number
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allhands.errors import InvalidType

_HOST_DEVICES: Final = (1, 3, 11)
"""Of DLPack: host memory, also where it is pinned for CUDA or ROCm."""
_DEVICE_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda", 14: "oneapi"}
)
_ARRAY_PROTOCOLS: Final = ("__array__", "__array_interface__", "__array_struct__")


def find_device(array: object) -> str | None:
    """Return the device kind of another library's array; None: host memory."""
    if hasattr(array, "__cuda_array_interface__"):
        return "cuda"
    tell = getattr(array, "__dlpack_device__", None)
    if tell is None:
        return None
    try:
        number = int(tell()[0])
    except (BufferError, RuntimeError, TypeError, ValueError):  # it is in nobody's memory
        return None
    return (
        None if number in _HOST_DEVICES else _DEVICE_NAMES.get(number, f"number {number} of DLPack")
    )


def build_device_error(name: str, device: str) -> InvalidType:
    """Return the error of an array in the memory of another device."""
    return InvalidType(
        f"{name}: unsupported device type {device}: copy it to host memory first, such as "
        "cupy.asnumpy(x) or x.cpu().numpy(), and the result back"
    )


def read_array(x: object, name: str, outcome: str = "") -> NDArray[Any]:
    """Return a NumPy array with the elements of `x`: its memory where possible, else a copy.

    An array on another device is asked for a copy in host memory. `outcome`: as of
    `build_type_error`.

    Raises:
        TypeError: `x` is no array, has nulls, or does not give its elements to NumPy.
        InvalidType: `x` is on another device and does not copy itself.
    """
    _refuse_nulls(x, name)
    if (device := find_device(x)) is not None:
        if (copied := _attempt(_copy_from_device, x)) is not None:
            return copied
        raise build_device_error(name, device)
    for view in (_view_by_dlpack, _view_by_buffer):
        if (found := _attempt(view, x)) is not None:
            return found
    return _convert(x, name, outcome)


def find_memory(x: object, name: str) -> NDArray[Any]:
    """Return a writable NumPy array over the memory of `x`.

    Raises:
        TypeError: `x` is no array, has nulls, or does not give its elements to NumPy.
        ValueError: `x` is read-only, or NumPy sees a copy of it alone.
        InvalidType: `x` is on another device.
    """
    _refuse_nulls(x, name)
    if (device := find_device(x)) is not None:
        raise build_device_error(name, device)
    found = _attempt(_view_by_array_protocol, x), _attempt(_view_by_buffer, x)
    views = [one for one in found if one is not None]
    # Asked last: before its version 1 DLPack cannot say that memory may be written.
    if not views and (tensor := _attempt(_view_by_dlpack, x)) is not None:
        views = [tensor]
    if not views:
        views = [_convert(x, name, ", and read the result from x")]
    if not all(one.flags.writeable for one in views):
        raise ValueError(
            f"{name} is read-only (a value of type {type(x).__name__}): give an array that can be "
            "written, or call ah.functional, which returns a new array"
        )
    again = [_attempt(view, x) for view in _VIEWS]
    if not any(one is not None and _locate(one) == _locate(views[0]) for one in again):
        raise ValueError(
            f"{name}, of type {type(x).__name__}, gives NumPy a copy, so that no result could be "
            "written to it: call ah.functional, which returns a new array"
        )
    return views[0]


def _locate(array: NDArray[Any]) -> tuple[int, tuple[int, ...]] | None:
    """Return where the elements of an array are; None: it has none."""
    return (array.__array_interface__["data"][0], array.strides) if array.size else None


def _attempt(view: Callable[[Any], NDArray[Any] | None], x: object) -> NDArray[Any] | None:
    """Return the array of one protocol; None: `x` has not got it, or refuses."""
    # Whatever a library raises where it cannot: another protocol may do.
    with contextlib.suppress(Exception):
        return view(x)
    return None


def _view_by_dlpack(x: Any) -> NDArray[Any] | None:
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else None


def _copy_from_device(x: Any) -> NDArray[Any] | None:
    if not hasattr(x, "__dlpack__"):
        return None
    found: NDArray[Any] = np.from_dlpack(x, device="cpu")
    return found


def _view_by_buffer(x: Any) -> NDArray[Any] | None:
    """Return the memory of bytes and the like, which NumPy would take as a string."""
    return np.asarray(memoryview(x))


def _view_by_array_protocol(x: Any) -> NDArray[Any] | None:
    if not any(hasattr(x, one) for one in _ARRAY_PROTOCOLS):
        return None
    found: NDArray[Any] = np.asanyarray(x)  # a masked array stays one, to be refused
    return found


def _convert(x: object, name: str, outcome: str) -> NDArray[Any]:
    """Return what `x` gives NumPy by `__array__` and the like.

    Raises:
        TypeError: it has none of the protocols, or refuses.
    """
    try:
        found = _view_by_array_protocol(x)
    except Exception as error:
        raise TypeError(
            f"{name}, of type {type(x).__name__}, gives NumPy no array: {error}"
        ) from error
    if found is None:
        raise build_type_error(x, name, outcome)
    return found


def build_type_error(x: object, name: str, outcome: str) -> TypeError:
    """Return the error of an argument that is no array.

    `outcome` ends the advice to wrap it: it says where the result is then.
    """
    advice = ""
    if isinstance(x, list | tuple | Number):
        advice = f"; wrap it: x = np.asarray(...){outcome}"
    return TypeError(
        f"{name} must be a numpy.ndarray, not {type(x).__name__}, which has neither the buffer "
        f"protocol nor DLPack nor __array__{advice}"
    )


def _refuse_nulls(x: object, name: str) -> None:
    """Raise TypeError for an array with missing values, which NumPy would replace."""
    count = getattr(x, "null_count", None)
    with contextlib.suppress(Exception):
        count = count() if callable(count) else count
    if isinstance(count, int) and count:
        raise TypeError(
            f"{name}, of type {type(x).__name__}, has {count} missing "
            f"value{'' if count == 1 else 's'}, for which NumPy arrays have no place: fill them "
            "first (fill_null)"
        )


_VIEWS: Final = (_view_by_array_protocol, _view_by_buffer, _view_by_dlpack)
