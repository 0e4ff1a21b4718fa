"""Packing of elements into buffers of the program, natively or as external32 (MPI 4.1, 14.5.2)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_ARG, ERR_TRUNCATE
from allhands.mpi.datatypes import copying
from allhands.mpi.datatypes.basics import BY_NAME, Basic
from allhands.mpi.datatypes.copying import Bytes
from allhands.mpi.datatypes.layouts import Basics
from allhands.mpi.memory.views import view_bytes

_SHORTER = {"LONG": 4, "UNSIGNED_LONG": 4, "WCHAR": 2}
"""Bytes in external32 of what is longer here."""


class Packing:
    """Packing and unpacking; mixin of `Datatype`."""

    size: int
    extent: int
    layout: Any

    def pack(self, data: Bytes, offset: int, count: int) -> Bytes:
        """Return elements from a byte on, packed; a view if they lie end to end."""
        return copying.pack(self.layout, data, offset, count)

    def unpack(self, source: Bytes, data: Bytes, offset: int, count: int) -> None:
        """Store packed elements from a byte on; there may be fewer than `count`."""
        copying.unpack(self.layout, source, data, offset, count)

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Pack all elements of a buffer into another from a byte on; return the byte behind."""
        packed = self._pack_all(inbuf)
        return _put(packed, outbuf, position)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Unpack elements from a byte on into all of a buffer; return the byte behind."""
        source, target = _view(inbuf), _view(outbuf, writeable=True)
        count = target.size // self.extent if self.extent else 0
        end = position + count * self.size
        _check_room(end, source.size)
        self.unpack(source[position:end], target, 0, count)
        return end

    def Pack_size(self, count: int, comm: Any) -> int:
        """Return the bytes of so many elements, packed."""
        return self.size * count

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Pack all elements of a buffer as external32; return the byte behind."""
        _check_datarep(datarep)
        packed = self._pack_all(inbuf)
        count = packed.size // self.size if self.size else 0
        return _put(to_external(packed, self.layout.basics, count), outbuf, position)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Unpack elements of external32 into all of a buffer; return the byte behind."""
        _check_datarep(datarep)
        source, target = _view(inbuf), _view(outbuf, writeable=True)
        count = target.size // self.extent if self.extent else 0
        end = position + external_size(self.layout.basics) * count
        _check_room(end, source.size)
        packed = from_external(source[position:end], self.layout.basics, count)
        self.unpack(packed, target, 0, count)
        return end

    def Pack_external_size(self, datarep: str, count: int) -> int:
        """Return the bytes of so many elements as external32."""
        _check_datarep(datarep)
        return external_size(self.layout.basics) * count

    def _pack_all(self, inbuf: Any) -> Bytes:
        source = _view(inbuf)
        return self.pack(source, 0, source.size // self.extent if self.extent else 0)


def external_size(basics: Basics) -> int:
    """Return the bytes of an element as external32."""
    return sum(_external_bytes(BY_NAME[code]) * count for code, count in basics)


def to_external(packed: Bytes, basics: Basics, count: int) -> Bytes:
    """Return packed elements as external32."""
    parts = []
    at = 0
    for basic, number in _walk(basics, count):
        native, external = _numbers(basic)
        nbytes = basic.size * number
        numbers = packed[at : at + nbytes].view(native)
        parts.append(numbers.astype(external).view(np.uint8))
        at += nbytes
    return np.concatenate(parts) if parts else packed[:0]


def from_external(data: Bytes, basics: Basics, count: int) -> Bytes:
    """Return packed elements of external32."""
    parts = []
    at = 0
    for basic, number in _walk(basics, count):
        native, external = _numbers(basic)
        nbytes = external.itemsize * number
        numbers = data[at : at + nbytes].copy().view(external)
        parts.append(numbers.astype(native).view(np.uint8))
        at += nbytes
    return np.concatenate(parts) if parts else data[:0]


def _walk(basics: Basics, count: int) -> Iterator[tuple[Basic, int]]:
    if len(basics) == 1:
        ((code, number),) = basics
        yield BY_NAME[code], number * count
        return
    for _ in range(count):
        for code, number in basics:
            yield BY_NAME[code], number


def _external_bytes(basic: Basic) -> int:
    return _SHORTER.get(basic.name, basic.size)


def _numbers(basic: Basic) -> "tuple[np.dtype[Any], np.dtype[Any]]":
    """Return the elements as they are here, and in external32."""
    native = basic.dtype if basic.dtype is not None else np.dtype(f"u{basic.size}")
    if native.itemsize == 1:
        return native, native
    return native, np.dtype(f">{native.kind}{_external_bytes(basic)}")


def _put(packed: Bytes, outbuf: Any, position: int) -> int:
    target = _view(outbuf, writeable=True)
    end = position + packed.size
    _check_room(end, target.size)
    target[position:end] = packed
    return end


def _check_room(end: int, size: int) -> None:
    if end > size:
        raise errors.make_error(
            ERR_TRUNCATE, f"the packed buffer has {size} bytes, and {end} are needed"
        )


def _check_datarep(datarep: str) -> None:
    if datarep != "external32":
        raise errors.make_error(ERR_ARG, f"{datarep!r} is no data representation: external32 is")


def _view(buf: Any, writeable: bool = False) -> Bytes:
    return view_bytes(buf, writeable=writeable)
