"""Memory as an object: allocated, of another buffer, or at an address."""

import operator
from typing import Any, Self

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_ARG, ERR_NO_MEM
from allhands.mpi.info import INFO_NULL, Info
from allhands.mpi.memory.foreign import view_address
from allhands.mpi.memory.special import is_bottom
from allhands.mpi.memory.views import get_address, view_bytes


class buffer(np.ndarray):
    """Bytes in memory; a buffer for whatever takes one."""

    _obj: Any

    def __new__(cls, *args: Any) -> Self:
        """Return the bytes of a buffer; without one, none."""
        if not args:
            made = cls._over(np.empty(0, np.uint8), None)
            made._is_nowhere = True
            return made
        (given,) = args
        data = view_bytes(given)
        view = data.view()
        view.flags.writeable = data.flags.writeable
        return cls._over(view, given)

    @classmethod
    def _over(cls, data: Any, obj: Any) -> Self:
        made: Self = data.view(cls)
        made._obj = obj
        return made

    def __array_finalize__(self, obj: Any) -> None:
        self._obj = getattr(obj, "_obj", None)

    @staticmethod
    def allocate(nbytes: int, clear: bool = False) -> "buffer":
        """Return new memory, filled with 0 if asked."""
        if nbytes < 0:
            raise ValueError("expecting non-negative size")
        made = (np.zeros if clear else np.empty)(nbytes, np.uint8)
        return buffer._over(made, made)

    @staticmethod
    def frombuffer(obj: Any, readonly: bool = False) -> "buffer":
        """Return the bytes of a buffer, which must be writable unless `readonly`."""
        view = view_bytes(obj, writeable=not readonly).view()
        if readonly:
            view.flags.writeable = False
        return buffer._over(view, obj)

    @staticmethod
    def fromaddress(address: int, nbytes: int, readonly: bool = False) -> "buffer":
        """Return the bytes at an address, which stay there while they are used."""
        if nbytes < 0:
            raise ValueError("expecting non-negative buffer length")
        if nbytes > 0 and not address:
            raise ValueError("expecting non-NULL address")
        data = view_address(address, nbytes)
        if readonly:
            data.flags.writeable = False
        made = buffer._over(data, None)
        if not nbytes:
            made._at = address
            made._is_nowhere = True
        return made

    _at = 0
    _is_nowhere = False

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self._at if self._is_nowhere else get_address(self)

    @property
    def obj(self) -> Any:
        """The object whose memory it is."""
        return self._obj

    @property
    def readonly(self) -> bool:
        """Whether it must not be written."""
        return not self.flags.writeable

    @property
    def format(self) -> str:
        """Format of the elements."""
        return "B"

    def cast(self, format: str, shape: Any = ...) -> memoryview:
        """Return a view with another format and shape."""
        whole: Any = self
        memory: Any = memoryview(whole)
        found: memoryview = memory.cast(format) if shape is ... else memory.cast(format, shape)
        return found

    def tobytes(self, order: str | None = None) -> bytes:
        """Return a copy of the bytes."""
        return super().tobytes()

    def toreadonly(self) -> "buffer":
        """Return the same memory, which must not be written there."""
        view = np.asarray(self).view()
        view.flags.writeable = False
        return buffer._over(view, self._obj if self._obj is not None else self)

    def release(self) -> None:
        """Let the memory go; no bytes are left."""
        state: Any = (1, (0,), np.dtype(np.uint8), False, b"")
        self.__setstate__(state)
        self._obj, self._at, self._is_nowhere = None, 0, True

    def __bool__(self) -> bool:
        return self.size > 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            _check_step(item)
            part: Any = super().__getitem__(item)
            part._obj = self
            return part
        return int(super().__getitem__(_check_index(item)))

    def __setitem__(self, item: Any, value: Any) -> None:
        if self.readonly:
            raise TypeError("buffer is read-only")
        whole = np.asarray(self)
        if not isinstance(item, slice):
            whole[_check_index(item)] = operator.index(value) & 0xFF
            return
        _check_step(item)
        part = whole[item]
        if hasattr(value, "__index__") and not isinstance(value, np.ndarray):
            part[:] = operator.index(value) & 0xFF
            return
        data = view_bytes(value)
        if data.size != part.size:
            raise ValueError("slice length does not match buffer")
        part[:] = data

    def __delitem__(self, item: Any) -> None:
        raise NotImplementedError("bytes in memory cannot be deleted")


memory = buffer


def _check_index(item: Any) -> int:
    if not hasattr(item, "__index__"):
        raise TypeError("index must be integer or slice")
    return operator.index(item)


def _check_step(item: slice) -> None:
    if item.step not in (None, 1):
        raise IndexError("slice with step not supported")


def Alloc_mem(size: int, info: Info = INFO_NULL) -> buffer:
    """Return new memory.

    Raises:
        Exception: the size is negative, or there is not as much.
    """
    if size < 0:
        raise errors.make_error(ERR_ARG, f"no memory has {size} bytes")
    try:
        return buffer.allocate(size)
    except MemoryError:
        raise errors.make_error(ERR_NO_MEM, f"{size} bytes could not be had") from None


def Free_mem(mem: buffer) -> None:
    """Let memory go."""
    mem.release()


def Get_address(location: Any) -> int:
    """Return the address of a buffer; of BOTTOM 0."""
    if is_bottom(location):
        return 0
    if isinstance(location, buffer):
        return location.address
    return get_address(view_bytes(location))


def Aint_add(base: int, disp: int) -> int:
    """Return an address that lies some bytes behind another."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """Return by how many bytes the first address lies behind the second."""
    return addr1 - addr2
