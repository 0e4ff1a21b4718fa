"""Arrays of other libraries and of other layouts, over memory that NumPy sees too."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Tensor:
    """An array that has DLPack and nothing else."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self._device = device

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("dl_device") in (None, self._device) and self._device != (1, 0):
            raise BufferError("the memory is on another device")
        return self.array.__dlpack__(**{**options, "dl_device": (1, 0)})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Described:
    """An array that describes its memory by `__array_interface__`, and has nothing else."""

    def __init__(self, array: Array) -> None:
        self._array = array  # whose memory it is
        self.__array_interface__ = array.__array_interface__


class Copied:
    """An array that gives NumPy a new copy by `__array__`."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype)


WRAPPERS: Final[Mapping[str, Callable[[Array], object]]] = {
    "array": lambda array: array,
    "DLPack": Tensor,
    "described": Described,
    "buffer": lambda array: array.data,
}
"""Views of an array's memory by one protocol each."""


def make_every_second(length: int, dtype: "np.dtype[Any]") -> Array:
    return np.zeros(2 * length, dtype)[::2]


def make_backwards(length: int, dtype: "np.dtype[Any]") -> Array:
    return np.zeros(length, dtype)[::-1]


LAYOUTS: Final[Mapping[str, Callable[[int, "np.dtype[Any]"], Array]]] = {
    "plain": np.empty,
    "every second": make_every_second,
    "backwards": make_backwards,
}


def wrap_all(given: Any, wrap: Callable[[Array], object]) -> Any:
    """Wrap each array of a call's arguments."""
    if isinstance(given, list | tuple):
        return type(given)(wrap_all(one, wrap) for one in given)
    return wrap(given) if isinstance(given, np.ndarray) else given
