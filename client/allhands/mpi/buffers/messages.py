"""Messages: what programs say of the data of a call, read before anything else happens.

A message is a buffer, or a list of a buffer with counts, displacements and a datatype; the count
and the datatype are found out where they are left out.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from allhands.mpi import errors
from allhands.mpi.constants import ERR_TYPE
from allhands.mpi.datatypes.copying import Bytes
from allhands.mpi.datatypes.datatype import Datatype
from allhands.mpi.datatypes.predefined import BYTE, by_dtype, typedict
from allhands.mpi.memory.foreign import view_address
from allhands.mpi.memory.special import is_bottom
from allhands.mpi.memory.views import strip_order, view_with_format

_EMPTY: Bytes = np.empty(0, np.uint8)
_ARRAY = np.ndarray


class SimpleMessage:
    """Elements of a buffer, from a byte on."""

    __slots__ = ("_data", "_offset", "count", "datatype", "nbytes")

    def __init__(self, datatype: Datatype, count: int, data: Any, offset: int = 0) -> None:
        self.datatype = datatype
        self.count = count
        self.nbytes = datatype.size * count
        self._data = data
        self._offset = offset

    def pack(self) -> Bytes:
        """Return the data, packed: a view of the buffer if the elements lie end to end."""
        datatype = self.datatype
        if datatype.is_contiguous:
            start = self._offset
            data = self._data
            if start == 0 and data.size == self.nbytes:
                return data  # type: ignore[no-any-return]
            return data[start : start + self.nbytes]  # type: ignore[no-any-return]
        return datatype.pack(self._data, self._offset, self.count)

    def target(self) -> Bytes | None:
        """Return memory for the packed data, None: it has to be unpacked."""
        return self.pack() if self.datatype.is_contiguous else None

    def unpack(self, data: Bytes) -> None:
        """Store packed data, which may be shorter than the message."""
        if data.size:
            self.datatype.unpack(data, self._data, self._offset, self.count)

    def array(self) -> Any:
        """Return a view of the elements as numbers; None: they are none, or do not lie so."""
        base = self.datatype.base
        return None if base is None or not self.datatype.is_contiguous else self.pack().view(base)

    def resize(self, count: int) -> "SimpleMessage":
        """Return the message with another number of elements."""
        return SimpleMessage(self.datatype, count, self._data, self._offset)

    def part(self, first: int, count: int) -> "SimpleMessage":
        """Return the message of some of the elements."""
        offset = self._offset + first * self.datatype.extent
        return SimpleMessage(self.datatype, count, self._data, offset)


class BlocksMessage:
    """A buffer with a block of elements for each rank."""

    __slots__ = ("_blocks", "_whole")

    def __init__(self, blocks: list[SimpleMessage], whole: SimpleMessage | None = None) -> None:
        """`whole`: the message of all blocks, if they lie end to end and are equal."""
        self._blocks = blocks
        self._whole = whole

    def __len__(self) -> int:
        return len(self._blocks)

    def block(self, place: int) -> SimpleMessage:
        """Return the block of a rank."""
        return self._blocks[place]

    def nbytes_of(self, place: int) -> int:
        """Return the bytes of data in the block of a rank."""
        return self._blocks[place].nbytes

    def whole(self) -> SimpleMessage | None:
        """Return the message of all blocks; None: they do not lie end to end, or differ."""
        return self._whole


def view_bytes(buf: Any, *, writeable: bool) -> Bytes | None:
    """Return the bytes of a plain array that is a message; None: it is to be read with care."""
    if type(buf) is _ARRAY and buf.dtype in by_dtype:
        flags = buf.flags
        if flags.c_contiguous and (flags.writeable or not writeable):
            return buf.view(np.uint8) if buf.ndim == 1 else buf.reshape(-1).view(np.uint8)
    return None


def parse_send(spec: Any) -> SimpleMessage:
    """Read the message of a send; see the module."""
    data = view_bytes(spec, writeable=False)
    if data is not None:
        return SimpleMessage(by_dtype[spec.dtype], spec.size, data)
    return _parse_simple(spec, 0, writeable=False)


def parse_receive(spec: Any) -> SimpleMessage:
    """Read the message of a receive, whose buffer must be writable."""
    data = view_bytes(spec, writeable=True)
    if data is not None:
        return SimpleMessage(by_dtype[spec.dtype], spec.size, data)
    return _parse_simple(spec, 0, writeable=True)


def parse_blocks(spec: Any, blocks: int, writeable: bool) -> BlocksMessage:
    """Read a message with an equal block for each rank; a count is that of one block."""
    message = _parse_simple(spec, blocks, writeable, holds_blocks=True)
    count = message.count
    each = [message.part(at * count, count) for at in range(blocks)]
    return BlocksMessage(each, message.resize(count * blocks))


def parse_vector(spec: Any, blocks: int, writeable: bool) -> BlocksMessage:
    """Read a message with a block of its own size for each rank."""
    o_buf, o_counts, o_displs, o_type = _split(spec, (tuple,))
    datatype, data, base = _read_buffer(o_buf, o_type, writeable)
    if o_counts is None:
        length = 0 if data is None else data.size
        total = _infer_count(datatype, length) if length else 0
        counts = [total // blocks + (total % blocks > at) for at in range(blocks)] if blocks else []
    elif _is_integral(o_counts):
        counts = [operator.index(o_counts)] * blocks
    else:
        counts = parse_counts(o_counts, blocks)
    if o_displs is None:
        displs = [sum(counts[:at]) for at in range(blocks)]
    elif _is_integral(o_displs):
        displs = [operator.index(o_displs) * at for at in range(blocks)]
    else:
        displs = parse_counts(o_displs, blocks)
    extent = datatype.extent if datatype else 0
    each = [
        _make(datatype, count, data, base, displ * extent, o_buf)
        for count, displ in zip(counts, displs, strict=True)
    ]
    return BlocksMessage(each)


def parse_vector_w(spec: Any, blocks: int, writeable: bool) -> BlocksMessage:
    """Read a message with a block of its own size and datatype for each rank."""
    items: list[Any] = list(spec)
    o_counts: Any
    o_displs: Any
    match len(items):
        case 2:
            o_buf, o_types = items
            o_counts = o_displs = None
        case 3:
            o_buf, (o_counts, o_displs), o_types = items
        case 4:
            o_buf, o_counts, o_displs, o_types = items
        case _:
            raise ValueError("message: expecting 2 to 4 items")
    if is_bottom(o_buf):
        if o_counts is None:
            raise ValueError("message: BOTTOM requires counts")
        if o_displs is None:
            raise ValueError("message: BOTTOM requires displs")
        data, base = None, 0
    else:
        data, base = view_with_format(o_buf, writeable=writeable)[0], 0
    counts = [1] * blocks if o_counts is None else parse_counts(o_counts, blocks)
    displs = [0] * blocks if o_displs is None else parse_counts(o_displs, blocks)
    types = list(o_types)
    if len(types) != blocks:
        raise ValueError(f"expecting {blocks} items, got {len(types)}")
    each = [
        _make(as_datatype(one), count, data, base, displ, o_buf)
        for one, count, displ in zip(types, counts, displs, strict=True)
    ]
    return BlocksMessage(each)


def parse_counts(counts: Any, blocks: int) -> list[int]:
    """Read a number for each rank.

    Raises:
        ValueError: there are more or fewer.
    """
    if counts is None:
        raise TypeError("expecting a sequence of counts, not None")
    found = [operator.index(one) for one in counts]
    if len(found) != blocks:
        raise ValueError(f"expecting {blocks} items, got {len(found)}")
    return found


def is_alike(one: Datatype, other: Datatype) -> bool:
    """Say whether two datatypes are the same, or the same numbers by two names."""
    return one == other or (
        one.base is not None
        and one.base == other.base
        and one.is_predefined
        and other.is_predefined
    )


def check_alike(message: SimpleMessage, output: SimpleMessage) -> None:
    if not is_alike(message.datatype, output.datatype):
        raise ValueError(
            f"sendbuf has elements of {message.datatype.name}, and recvbuf of "
            f"{output.datatype.name}"
        )
    if message.count != output.count:
        raise ValueError(f"sendbuf has {message.count} elements, and recvbuf {output.count}")


def _parse_simple(
    spec: Any, blocks: int, writeable: bool, holds_blocks: bool = False
) -> SimpleMessage:
    o_buf, o_count, o_displ, o_type = _split(spec, (tuple, list))
    datatype, data, base = _read_buffer(o_buf, o_type, writeable)
    length = 0 if data is None else data.size
    offset = 0
    if o_displ is not None:
        displ = operator.index(o_displ)
        if displ < 0:
            raise ValueError(f"message: negative displacement {displ}")
        if displ > 0:
            extent = _check_extent(datatype, "handle displacement")
            if displ * extent > length:
                raise ValueError(
                    f"message: displacement {displ} out of bounds, the buffer has "
                    f"{length // extent} elements"
                )
            offset = displ * extent
    count = 0
    if o_count is not None:
        count = operator.index(o_count)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
        if count > 0 and o_buf is None:
            raise ValueError(f"message: buffer is None but count is {count}")
    elif length - offset > 0:
        count = _infer_count(datatype, length - offset)
        if blocks > 1:
            if count % blocks:
                raise ValueError(
                    f"message: cannot infer count, {count} elements are not a multiple of "
                    f"{blocks} blocks"
                )
            count //= blocks
    wanted = count * blocks if holds_blocks else count
    made = _make(datatype, wanted, data, base, offset, o_buf)
    return made.resize(count) if holds_blocks else made


def _split(spec: Any, pairs: tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Return buffer, counts, displacements and datatype of a message."""
    if isinstance(spec, list | tuple):
        match len(spec):
            case 2:
                o_buf, o_counts = spec
                if isinstance(o_counts, Datatype | str):
                    return o_buf, None, None, o_counts
                return o_buf, *_split_counts(o_counts, pairs), None
            case 3:
                o_buf, o_counts, o_type = spec
                return o_buf, *_split_counts(o_counts, pairs), o_type
            case 4:
                o_buf, o_counts, o_displs, o_type = spec
                return o_buf, o_counts, o_displs, o_type
        raise ValueError("message: expecting 2 to 4 items")
    if (
        isinstance(spec, np.ndarray)
        or _is_buffer(spec)
        or hasattr(spec, "__dlpack__")
        or hasattr(spec, "__cuda_array_interface__")
    ):
        return spec, None, None, None
    raise TypeError("message: expecting buffer or list/tuple")


def _split_counts(o_counts: Any, pairs: tuple[type, ...]) -> tuple[Any, Any]:
    if not isinstance(o_counts, pairs):
        return o_counts, None
    both: Any = o_counts
    first, second = both
    return first, second


def _is_buffer(obj: Any) -> bool:
    try:
        memoryview(obj).release()
    except TypeError:
        return False
    except (BufferError, ValueError):
        return True
    return True


def _read_buffer(o_buf: Any, o_type: Any, writeable: bool) -> tuple[Datatype, Any, int]:
    """Return the datatype, the bytes and the address that displacements count from.

    The bytes of BOTTOM are None: where they are, the datatype says.
    """
    if is_bottom(o_buf):
        return as_datatype(o_type), _EMPTY if o_buf is None else None, 0
    data, form = view_with_format(o_buf, writeable=writeable)
    if o_type is not None:
        return as_datatype(o_type), data, 0
    if form == "B":
        return BYTE, data, 0
    return as_datatype(strip_order(form)), data, 0


def as_datatype(given: Any) -> Datatype:
    if isinstance(given, Datatype):
        return given
    try:
        return typedict[given]
    except (KeyError, TypeError):
        raise KeyError(f"cannot map {given!r} to a datatype") from None


def _check_extent(datatype: Datatype, doing: str) -> int:
    if not datatype:
        raise ValueError(f"message: cannot {doing}, datatype is null")
    if datatype.extent <= 0:
        raise ValueError(f"message: cannot {doing}, the extent is {datatype.extent}")
    return datatype.extent


def _infer_count(datatype: Datatype, length: int) -> int:
    extent = _check_extent(datatype, "infer count")
    if length % extent:
        raise ValueError(
            f"message: cannot infer count, {length} bytes are not a multiple of the extent {extent}"
        )
    return length // extent


def _make(
    datatype: Datatype, count: int, data: Any, base: int, offset: int, o_buf: Any
) -> SimpleMessage:
    """Return a message, whose elements lie within its buffer."""
    if not datatype:
        if count:
            raise errors.make_error(ERR_TYPE, "the datatype is null")
        return SimpleMessage(BYTE, 0, _EMPTY)
    span = max(count - 1, 0) * datatype.extent
    low = offset + datatype.true_lb + min(span, 0)
    high = offset + datatype.true_lb + datatype.true_extent + max(span, 0)
    if data is None:
        if not count or not datatype.size:
            return SimpleMessage(datatype, count, _EMPTY)
        return SimpleMessage(datatype, count, view_address(low, high - low), offset - low)
    if count and datatype.size and (low < 0 or high > data.size):
        raise ValueError(
            f"message: {count} elements of {datatype.Get_name() or 'the datatype'} reach from byte "
            f"{low} to byte {high} of a buffer of {data.size} bytes",
        )
    return SimpleMessage(datatype, count, data, offset)


def _is_integral(obj: Any) -> bool:
    try:
        operator.index(obj)
    except TypeError:
        return False
    return not isinstance(obj, Sequence)
