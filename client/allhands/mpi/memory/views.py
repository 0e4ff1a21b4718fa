"""Views of buffers as bytes, with the format of their elements."""

from typing import Any

import numpy as np

from allhands.mpi.memory.foreign import Bytes, view_foreign

_NATIVE_ORDERS = "@=<|"


def view_bytes(buf: Any, *, writeable: bool = False) -> Bytes:
    """Return the bytes of a contiguous buffer.

    Raises:
        TypeError: it is no buffer.
        BufferError: it is not contiguous, or is to be written and must not be.
    """
    return view_with_format(buf, writeable=writeable)[0]


def view_with_format(buf: Any, *, writeable: bool) -> tuple[Bytes, str]:
    """Return the bytes of a contiguous buffer, and the format of its elements."""
    if type(buf) is np.ndarray and not buf.dtype.hasobject and buf.dtype.kind not in "Mm":
        return _view_array(buf, writeable), _format_of(buf)
    try:
        memory = memoryview(buf)
    except (TypeError, ValueError, BufferError) as error:
        found = view_foreign(buf, writeable)
        if found is not None:
            return found
        if isinstance(error, BufferError):
            raise
        raise TypeError(f"a bytes-like object is required, not {type(buf).__name__!r}") from None
    if not memory.contiguous:
        raise BufferError("the buffer is not contiguous")
    if writeable and memory.readonly:
        raise BufferError("Object is not writable.")
    return _view_memory(memory), memory.format or "B"


def get_address(data: Bytes) -> int:
    """Return the address of the first byte."""
    address: int = data.__array_interface__["data"][0]
    return address


def strip_order(form: str) -> str:
    """Return a format without its byte order.

    Raises:
        BufferError: the order is not that of this machine.
    """
    if form[:1] in (">", "!"):
        raise BufferError(f"format string {form!r} with non-native byte order")
    return form[1:] if form[:1] in _NATIVE_ORDERS else form


def _view_array(array: Any, writeable: bool) -> Bytes:
    flags = array.flags
    if writeable and not flags.writeable:
        raise BufferError("the array must not be written")
    if flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)  # type: ignore[no-any-return]
    if flags.f_contiguous:
        return array.T.reshape(-1).view(np.uint8)  # type: ignore[no-any-return]
    raise BufferError("the array is not contiguous")


def _format_of(array: Any) -> str:
    dtype = array.dtype
    if dtype.byteorder == ">":
        return f">{dtype.char}"
    if dtype.kind == "V" or dtype.names:
        return str(memoryview(array).format)
    if dtype.kind in "SU" and dtype.itemsize > (1 if dtype.kind == "S" else 4):
        return str(memoryview(array).format)
    return str(dtype.char)


def _view_memory(memory: memoryview) -> Bytes:
    if memory.nbytes == 0:
        return np.empty(0, np.uint8)
    if memory.c_contiguous:
        return np.frombuffer(memory.cast("B") if memory.ndim == 1 else memory, np.uint8)
    array = np.asarray(memory)
    return array.T.reshape(-1).view(np.uint8)
