"""Arrays of other libraries: DLPack and the CUDA array interface, where the host can read them."""

import ctypes
import os
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class _Version(ctypes.Structure):
    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", _Version),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_MAJOR = 1
_READ_ONLY = 1
_HOST_DEVICES = (1, 3, 11, 13)
"""Of DLPack: CPU, and memory of CUDA and ROCm that the host reads too."""
_is_valid: Any = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)

_DLPACK_FORMATS = {
    (6, 8): "?",
    **{(0, bits): code for bits, code in ((8, "b"), (16, "h"), (32, "i"), (64, "l"))},
    **{(1, bits): code for bits, code in ((8, "B"), (16, "H"), (32, "I"), (64, "L"))},
    **{(2, bits): code for bits, code in ((16, "e"), (32, "f"), (64, "d"), (128, "g"))},
    **{(5, bits): code for bits, code in ((64, "Zf"), (128, "Zd"), (256, "Zg"))},
}
_CUDA_FORMATS = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "l",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "L",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "f16": "g",
    "c8": "Zf",
    "c16": "Zd",
    "c32": "Zg",
}


def view_foreign(obj: Any, writeable: bool) -> "tuple[Bytes, str] | None":
    """Return the bytes and format of an array of another library; None: it is none.

    Raises:
        BufferError: it is not contiguous, read-only, or not readable by the host.
    """
    if hasattr(obj, "__dlpack__"):
        return _view_dlpack(obj, writeable)
    if hasattr(obj, "__cuda_array_interface__"):
        return _view_cuda(obj.__cuda_array_interface__, obj, writeable)
    return None


def view_address(address: int, nbytes: int, owner: Any = None) -> Bytes:
    """Return the bytes at an address, which stay there while they are used."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    memory._owner = owner
    return np.frombuffer(memory, np.uint8)


def _view_dlpack(obj: Any, writeable: bool) -> tuple[Bytes, str]:
    device = obj.__dlpack_device__()
    if not isinstance(device, tuple):
        raise TypeError("__dlpack_device__ must return a tuple")
    device_type, device_id = device
    if not isinstance(device_type, int) or not isinstance(device_id, int):
        raise TypeError("a DLPack device is two whole numbers")
    # -1: no stream has to wait for another.
    stream = {} if device_type == 1 else {"stream": -1}
    try:
        capsule = obj.__dlpack__(max_version=(_MAJOR, 0), copy=False, **stream)
    except TypeError:  # of before version 1
        capsule = obj.__dlpack__(**stream)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.version.major < _MAJOR:
            raise BufferError("dlpack: unexpected version")
        readonly = bool(managed.flags & _READ_ONLY)
        tensor = managed.tensor
    elif _is_valid(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    else:
        raise BufferError("dlpack: invalid capsule object")
    if readonly and writeable:
        raise BufferError("dlpack: buffer is not writable")
    nbytes = _measure(tensor)
    address = (tensor.data or 0) + tensor.byte_offset
    if tensor.device_type not in _HOST_DEVICES:
        _check_readable(address, nbytes)
    data = view_address(address, nbytes, (capsule, obj))
    data.flags.writeable = not readonly
    form = _DLPACK_FORMATS.get((tensor.code, tensor.bits), "B") if tensor.lanes == 1 else "B"
    if tensor.lanes == 2 and tensor.code == 2:
        form = {32: "Zf", 64: "Zd", 128: "Zg"}.get(tensor.bits, "B")
    return data, form


def _measure(tensor: _Tensor) -> int:
    """Return the bytes of a tensor, which is contiguous."""
    if tensor.ndim < 0:
        raise BufferError("dlpack: number of dimensions is negative")
    if tensor.ndim and not tensor.shape:
        raise BufferError("dlpack: shape is NULL")
    shape = [tensor.shape[at] for at in range(tensor.ndim)]
    if any(length < 0 for length in shape):
        raise BufferError("dlpack: shape item is negative")
    if tensor.strides:
        strides = [tensor.strides[at] for at in range(tensor.ndim)]
        if any(stride < 0 for stride in strides):
            raise BufferError("dlpack: strides item is negative")
        if not _is_contiguous(shape, strides, 1):
            raise BufferError("dlpack: buffer is not contiguous")
    size: int = int(np.prod(shape, dtype=np.int64)) if shape else 1
    element: int = (tensor.bits * tensor.lanes + 7) // 8
    return size * element


def _view_cuda(interface: Any, obj: Any, writeable: bool) -> tuple[Bytes, str]:
    if not isinstance(interface, dict):
        raise TypeError("__cuda_array_interface__ must be a dict")
    data, text, shape = interface["data"], interface["typestr"], interface["shape"]
    strides, descr = interface.get("strides"), interface.get("descr")
    kinds: list[tuple[Any, type]] = [(data, tuple), (text, str), (shape, tuple)]
    for value, kind in kinds:
        if not isinstance(value, kind):
            raise TypeError(f"__cuda_array_interface__: expected {kind.__name__}, not {value!r}")
    kinds = [(strides, tuple), (descr, list)]
    for value, kind in kinds:
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"__cuda_array_interface__: expected {kind.__name__}, not {value!r}")
    address, readonly = data
    count = 1
    for length in shape:
        count *= length
    if address is None and count == 0:
        address = 0
    if not isinstance(address, int):
        raise TypeError(f"__cuda_array_interface__: the address is {address!r}")
    order, kind_code, itemsize = text[:1], text[1:2], int(text[2:])
    if order not in "<|":
        what = "non-native" if order == ">" else "unrecognized"
        raise BufferError(f"__cuda_array_interface__: typestr {text!r} with {what} byte order")
    if interface.get("mask") is not None:
        raise BufferError("__cuda_array_interface__: cannot handle masked arrays")
    if count < 0:
        raise BufferError(f"__cuda_array_interface__: buffer with negative size (shape {shape})")
    if strides is not None and not _is_contiguous(shape, strides, itemsize):
        raise BufferError("__cuda_array_interface__: buffer is not contiguous")
    if readonly and writeable:
        raise BufferError("__cuda_array_interface__: buffer is not writable")
    if descr is not None and (len(descr) != 1 or descr[0] != ("", text)):
        warnings.warn(
            "__cuda_array_interface__: ignoring 'descr' key", RuntimeWarning, stacklevel=2
        )
    nbytes = count * itemsize
    _check_readable(address, nbytes)
    view = view_address(address, nbytes, obj)
    view.flags.writeable = not readonly
    return view, _CUDA_FORMATS.get(f"{kind_code}{itemsize}", "B")


def _is_contiguous(shape: Any, strides: Any, itemsize: int) -> bool:
    """Say whether an array is contiguous in C or Fortran order."""
    for places in (range(len(shape) - 1, -1, -1), range(len(shape))):
        expected, fits = itemsize, True
        for at in places:
            if shape[at] > 1 and strides[at] != expected:
                fits = False
                break
            expected *= shape[at]
        if fits:
            return True
    return False


def _check_readable(address: int, nbytes: int) -> None:
    """Refuse memory of a device that the host cannot read.

    The kernel is asked, as reading it would end the process.
    """
    if not nbytes:
        return
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        for at in (address, address + nbytes - 1):
            os.pread(memory, 1, at)
    except (OSError, OverflowError):
        raise BufferError(
            "the array lies in memory of a device that the host cannot read: copy it to the host"
        ) from None
    finally:
        os.close(memory)
