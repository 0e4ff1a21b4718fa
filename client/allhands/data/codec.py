"""Python values as bytes, and back: values of known types, never code.

MessagePack's own types are used where they exist; each other type has an extension.
Decoding can make this process import, call or build nothing but the types listed here and the
dataclasses registered in a `DataclassRegistry`. A decoded value can hardly be larger than its
bytes, since lengths are checked against them first.
"""

import dataclasses
import datetime
import math
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgpack
import numpy as np

from allhands.data.dtypes import get_dtype_name, parse_dtype

_MAX_DEPTH: Final = 64
"""How deep values may lie in each other."""
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_LONG: Final = 32
"""Items of a container whose types are looked at all together, which is faster from here on."""
_PACKER_BYTES: Final = 1024
"""Of the buffer that a packer begins with."""

# The codes are part of what travels: they are never given to another type.
_TUPLE, _SET, _FROZENSET, _INTEGER, _COMPLEX = 1, 2, 3, 4, 5
_DATETIME, _DATE, _TIME, _TIMEDELTA = 6, 7, 8, 9
_ARRAY, _SCALAR, _DATACLASS, _BYTEARRAY, _RANGE, _DICT = 10, 11, 12, 13, 14, 15
_BUFFER = 16

BUFFER_BYTES: Final = 4096
"""Of an array that lies beside the packed value."""
ALIGNMENT: Final = 16
"""Of the buffers of such arrays, in bytes from the beginning of the first."""


class DataclassRegistry:
    """The dataclasses that objects may be made of here, by name; all ranks must know the same."""

    def __init__(self) -> None:
        self._by_name: dict[str, type] = {}
        self.decode_extension = _Decoder(self._by_name, None, 0).decode_extension
        """Decodes what MessagePack has no type for where no array lies beside; on any thread."""

    def add(self, kind: type, name: str | None = None) -> None:
        """Let instances of a dataclass travel, under a `name` that is by default the class's own.

        They are made by calling the class with its fields by name, so that `__post_init__` runs.

        Raises:
            TypeError: no dataclass, or one with fields that cannot be given to it.
            ValueError: another one has that name.
        """
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise TypeError(f"{kind!r} is no dataclass: decorate it with dataclasses.dataclass")
        if odd := [field.name for field in dataclasses.fields(kind) if not field.init]:
            raise TypeError(f"{kind.__qualname__} has fields that cannot be given to it: {odd}")
        name = name or kind.__qualname__
        if self._by_name.setdefault(name, kind) is not kind:
            raise ValueError(f"another dataclass is registered as {name!r}: give this one a name")

    def find_name(self, kind: type) -> str | None:
        """Return the registered name of a dataclass; None if unregistered."""
        return next((name for name, known in self._by_name.items() if known is kind), None)

    def make_decoder(self, buffers: "np.ndarray[Any, np.dtype[np.uint8]]") -> "_Decoder":
        """Return the decoder of one value, the large arrays of which lie in `buffers`."""
        return _Decoder(self._by_name, _ArrayReader(buffers), 0)


def encode(value: object, types: DataclassRegistry) -> "tuple[bytes, list[np.ndarray[Any, Any]]]":
    """Return a value as bytes without its large arrays, and those, in order and C-contiguous.

    The arrays are the value's own where they are contiguous. Each is to begin at a multiple of
    ALIGNMENT behind the one before.

    Raises:
        TypeError: it is, or holds, something of a type that does not travel; the text says where.
        ValueError: it lies too deep in itself.
    """
    if _is_plain(value, 1):
        try:
            return _make_packer().pack(value), []
        except OverflowError:  # an integer that MessagePack has no type for
            pass
    encoder = _Encoder(types)
    return encoder.encode(value, ""), encoder.beside


def align(nbytes: int) -> int:
    """Return a number of bytes rounded up to the alignment of buffers."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def decode(
    data: bytes | memoryview,
    types: DataclassRegistry,
    buffers: "np.ndarray[Any, np.dtype[np.uint8]] | None" = None,
) -> Any:
    """Decode a value from bytes; large arrays are views of `buffers`, in which they lie.

    Raises:
        ValueError: they stand for none; or for a dataclass that is not known here.
    """
    hook = (types if buffers is None else types.make_decoder(buffers)).decode_extension
    try:
        return msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, ext_hook=hook)
    except (msgpack.exceptions.UnpackException, struct.error, KeyError, TypeError) as error:
        raise ValueError(f"what came stands for no value: {error}") from error


def _is_plain(value: Any, depth: int) -> bool:
    """Say whether MessagePack has types for a value and all in it, but perhaps for integers."""
    # By loops: to set up anything else takes longer than the check of a small value.
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind is not list:
        return kind in _SCALARS
    if depth > _MAX_DEPTH:
        return False
    if len(value) >= _LONG and set(map(type, value)) <= _SCALARS:
        return True
    for one in value:  # noqa: SIM110  # as above
        if type(one) not in _SCALARS and not _is_plain(one, depth + 1):
            return False
    return True


def _make_packer() -> msgpack.Packer:
    """Return a packer whose buffer grows with its value; the default takes a mebibyte at once."""
    return msgpack.Packer(use_bin_type=True, buf_size=_PACKER_BYTES)


class _Encoder:
    __slots__ = ("_beside_nbytes", "_depth", "_pack", "_types", "beside")

    def __init__(self, types: DataclassRegistry) -> None:
        self._types = types
        self._pack = _make_packer().pack
        self._depth = 0
        self.beside: list[np.ndarray[Any, Any]] = []
        """Large arrays, which are not packed."""
        self._beside_nbytes = 0

    def encode(self, value: object, where: str) -> bytes:
        """Encode a value at the path `where` of the message, such as "[3]['name']"."""
        packed: bytes = self._pack(self._to_packable(value, where))
        return packed

    def _to_packable(self, value: Any, where: str) -> Any:
        """Return a value for which MessagePack has types, or extensions."""
        self._depth += 1  # an error ends the encoding
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"the object lies more than {_MAX_DEPTH} deep in itself")
        # By exact type: what a subclass adds would be lost.
        convert = _ENCODERS.get(type(value))
        packable = (
            self._convert_other(value, where) if convert is None else convert(self, value, where)
        )
        self._depth -= 1
        return packable

    def _convert_other(self, value: Any, where: str) -> Any:
        """Return a value of a type without an encoder as an extension."""
        if isinstance(value, np.generic):
            return self._make_extension(
                _SCALAR, [self._encode_dtype(value.dtype, where), np.asarray(value).tobytes()]
            )
        name = self._types.find_name(type(value))
        if name is None:
            raise _make_type_error(value, where)
        fields = [
            [field.name, self._to_packable(getattr(value, field.name), f"{where}.{field.name}")]
            for field in dataclasses.fields(value)
        ]
        return self._make_extension(_DATACLASS, [name, fields])

    def convert_items(self, values: Any, where: str) -> list[Any]:
        """Return a list of what MessagePack has types for."""
        return [self._to_packable(one, f"{where}[{at}]") for at, one in enumerate(values)]

    def encode_items(self, code: int, values: Any, where: str) -> msgpack.ExtType:
        """Encode a container as a list, of an extension."""
        return self._make_extension(code, self.convert_items(values, where))

    def encode_integer(self, value: int, _: str) -> int | msgpack.ExtType:
        """Encode an integer of any size."""
        if -(1 << 63) <= value < 1 << 64:
            return value
        nbytes = value.bit_length() // 8 + 1
        return msgpack.ExtType(_INTEGER, value.to_bytes(nbytes, "little", signed=True))

    def encode_dict(self, value: dict[Any, Any], where: str) -> msgpack.ExtType:
        """Encode a dict as two lists: keys may be of any type, and keep their order."""
        keys = [self._to_packable(key, f"{where} key {key!r}") for key in value]
        held = [self._to_packable(one, f"{where}[{key!r}]") for key, one in value.items()]
        return self._make_extension(_DICT, [keys, held])

    def encode_range(self, value: range, _: str) -> msgpack.ExtType:
        """Encode a range by its bounds and its step."""
        return self._make_extension(_RANGE, [value.start, value.stop, value.step])

    def encode_datetime(self, value: datetime.datetime, where: str) -> msgpack.ExtType:
        """Encode a point in time, with its offset or without."""
        return self._encode_time(_DATETIME, value, value.tzinfo, value.fold, where)

    def encode_time(self, value: datetime.time, where: str) -> msgpack.ExtType:
        """Encode a time of any day."""
        return self._encode_time(_TIME, value, value.tzinfo, value.fold, where)

    def encode_timedelta(self, value: datetime.timedelta, _: str) -> msgpack.ExtType:
        """Encode a duration."""
        parts = (value.days, value.seconds, value.microseconds)
        return msgpack.ExtType(_TIMEDELTA, struct.pack("<iii", *parts))

    def _make_extension(self, code: int, plain: object) -> msgpack.ExtType:
        return msgpack.ExtType(code, self._pack(plain))

    def _encode_time(
        self,
        code: int,
        value: datetime.datetime | datetime.time,
        zone: datetime.tzinfo | None,
        fold: int,
        where: str,
    ) -> msgpack.ExtType:
        if zone is not None and type(zone) is not datetime.timezone:
            raise TypeError(
                f"the object{where} has time zone {zone!r}, of which only the offset would travel: "
                "use .astimezone(datetime.timezone.utc)"
            )
        return self._make_extension(code, [value.isoformat(), fold])

    def encode_array(self, array: "np.ndarray[Any, Any]", where: str) -> msgpack.ExtType:
        """Encode an array; one of BUFFER_BYTES and more goes beside."""
        name = self._encode_dtype(array.dtype, where)
        if array.nbytes >= BUFFER_BYTES:
            at, self._beside_nbytes = self._beside_nbytes, self._beside_nbytes + align(array.nbytes)
            self.beside.append(np.ascontiguousarray(array))
            return self._make_extension(_BUFFER, [name, list(array.shape), at])
        return self._make_extension(_ARRAY, [name, list(array.shape), array.tobytes()])

    def _encode_dtype(self, dtype: "np.dtype[Any]", where: str) -> str:
        try:
            return get_dtype_name(dtype)
        except TypeError as error:
            raise TypeError(f"the object{where} cannot travel: {error}") from error


def _return_unchanged(_: _Encoder, value: object, __: str) -> object:
    return value


_ENCODERS: Final[Mapping[type, Callable[[_Encoder, Any, str], Any]]] = MappingProxyType(
    {
        **dict.fromkeys((type(None), bool, float, str, bytes), _return_unchanged),
        int: _Encoder.encode_integer,
        complex: lambda _, value, __: msgpack.ExtType(
            _COMPLEX, struct.pack("<dd", value.real, value.imag)
        ),
        list: _Encoder.convert_items,
        tuple: lambda encoder, value, where: encoder.encode_items(_TUPLE, value, where),
        set: lambda encoder, value, where: encoder.encode_items(_SET, value, where),
        frozenset: lambda encoder, value, where: encoder.encode_items(_FROZENSET, value, where),
        dict: _Encoder.encode_dict,
        bytearray: lambda _, value, __: msgpack.ExtType(_BYTEARRAY, bytes(value)),
        range: _Encoder.encode_range,
        datetime.datetime: _Encoder.encode_datetime,
        datetime.date: lambda _, value, __: msgpack.ExtType(_DATE, value.isoformat().encode()),
        datetime.time: _Encoder.encode_time,
        datetime.timedelta: _Encoder.encode_timedelta,
        np.ndarray: _Encoder.encode_array,
    }
)
"""Encoders of values by their types."""


class _ArrayReader:
    """The large arrays of one value, one behind the other in its buffers."""

    __slots__ = ("_buffers", "_read_nbytes")

    def __init__(self, buffers: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
        self._buffers = buffers
        self._read_nbytes = 0

    def read(self, shape: list[int], dtype: "np.dtype[Any]", at: int) -> Any:
        """Return the array that lies `at` so many bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        # One behind the other, so that no two arrays have memory in common.
        if not self._read_nbytes <= at <= self._buffers.size - nbytes:
            raise _make_place_error()
        self._read_nbytes = at + nbytes
        return np.ndarray(shape, dtype, self._buffers, at)


class _Decoder:
    """Decoder of extensions at one depth; without arrays it never changes, and serves all values.

    To make one for each value takes as long as to decode a small one by half.
    """

    __slots__ = ("_arrays", "_classes", "_depth", "_inner")

    def __init__(
        self, classes: Mapping[str, type], arrays: _ArrayReader | None, depth: int
    ) -> None:
        self._classes = classes
        self._arrays = arrays
        self._depth = depth
        self._inner: Callable[[int, bytes], Any] | None = None
        """Decodes the extensions in one of these; two threads may make it, both alike."""

    def _decode(self, data: bytes) -> Any:
        if (inner := self._inner) is None:
            if self._depth == _MAX_DEPTH:
                raise ValueError(f"what came lies more than {_MAX_DEPTH} deep in itself")
            decoder = _Decoder(self._classes, self._arrays, self._depth + 1)
            self._inner = inner = decoder.decode_extension
        return msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True, ext_hook=inner)

    def decode_extension(self, code: int, data: bytes) -> Any:
        """Decode what MessagePack has no type for."""
        decode_content = _DECODERS.get(code)
        if decode_content is None:
            raise ValueError(f"what came has a value of type {code}, which is not known here")
        return decode_content(self, data)

    def decode_list(self, data: bytes) -> list[Any]:
        found = self._decode(data)
        if not isinstance(found, list):
            raise ValueError("what came stands for no value: a list was expected")
        return found

    def decode_datetime(self, data: bytes) -> datetime.datetime:
        text, fold = self.decode_list(data)
        return datetime.datetime.fromisoformat(text).replace(fold=fold)

    def decode_time(self, data: bytes) -> datetime.time:
        text, fold = self.decode_list(data)
        return datetime.time.fromisoformat(text).replace(fold=fold)

    def decode_timedelta(self, data: bytes) -> datetime.timedelta:
        return datetime.timedelta(*struct.unpack("<iii", data))

    def decode_array(self, data: bytes) -> Any:
        name, shape, content = self.decode_list(data)
        return np.frombuffer(content, parse_dtype(name)).reshape(shape).copy()

    def decode_buffer(self, data: bytes) -> Any:
        name, shape, at = self.decode_list(data)
        dtype = parse_dtype(name)
        if self._arrays is None:
            raise _make_place_error()
        return self._arrays.read(shape, dtype, at)

    def decode_scalar(self, data: bytes) -> Any:
        name, content = self.decode_list(data)
        return np.frombuffer(content, parse_dtype(name))[0]

    def decode_dataclass(self, data: bytes) -> Any:
        name, fields = self.decode_list(data)
        kind = self._classes.get(name)
        if kind is None:
            raise ValueError(
                f"what came is a {name!r}, which is not registered here: every rank must call "
                "ah.register_dataclass"
            )
        return kind(**dict(fields))


_DECODERS: Final[Mapping[int, Callable[[_Decoder, bytes], Any]]] = MappingProxyType(
    {
        _TUPLE: lambda decoder, data: tuple(decoder.decode_list(data)),
        _SET: lambda decoder, data: set(decoder.decode_list(data)),
        _FROZENSET: lambda decoder, data: frozenset(decoder.decode_list(data)),
        _INTEGER: lambda _, data: int.from_bytes(data, "little", signed=True),
        _COMPLEX: lambda _, data: complex(*struct.unpack("<dd", data)),
        _DATETIME: _Decoder.decode_datetime,
        _DATE: lambda _, data: datetime.date.fromisoformat(bytes(data).decode()),
        _TIME: _Decoder.decode_time,
        _TIMEDELTA: _Decoder.decode_timedelta,
        _ARRAY: _Decoder.decode_array,
        _BUFFER: _Decoder.decode_buffer,
        _SCALAR: _Decoder.decode_scalar,
        _DATACLASS: _Decoder.decode_dataclass,
        _BYTEARRAY: lambda _, data: bytearray(data),
        _RANGE: lambda decoder, data: range(*decoder.decode_list(data)),
        _DICT: lambda decoder, data: dict(zip(*decoder.decode_list(data), strict=True)),
    }
)
"""Decoders of extensions by their codes."""


def _make_place_error() -> ValueError:
    return ValueError("what came has an array that lies in no bytes")


def _make_type_error(value: object, where: str) -> TypeError:
    kind = type(value)
    named = f"{kind.__module__}.{kind.__qualname__}"
    if dataclasses.is_dataclass(kind):
        return TypeError(
            f"the object{where} is of the dataclass {named}, which is not registered: call "
            f"ah.register_dataclass({kind.__name__}) on every rank"
        )
    return TypeError(
        f"the object{where} is of type {named}, which does not travel: None, bool, int, float, "
        "complex, str, bytes, list, tuple, dict, set, datetime, NumPy arrays and scalars, and "
        "registered dataclasses do; groups made with allow_pickle=True send whatever pickle can"
    )
