"""Collectives on objects.

The native core exchanges their bytes in one call; over links the sizes travel first.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from allhands.collectives import vector
from allhands.collectives.composite_call import CompositeCall, StepBuilder, StepGenerator
from allhands.collectives.core_call import Exchange, Received, SignedCall, sign_call
from allhands.collectives.signature import Result
from allhands.data.serializer import (
    MAX_BYTES,
    ObjectSerializer,
    Parts,
    UInt8Array,
    check_size,
    count_bytes,
    join_parts,
)

if TYPE_CHECKING:
    from allhands._native import ShmComm


def all_gather(parts: Parts, objects: ObjectSerializer) -> CompositeCall:
    """Give every rank the objects of all, of which this rank's has the given parts."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        return (yield from vector.all_gather(join_parts(parts)).generate_steps(builder))

    def read(received: Received) -> list[Any]:
        return _decode_all(objects, received, parts)

    exchange = Exchange(sign_call("all_gather_object"), parts, read, most=MAX_BYTES)
    return _make_composite(exchange, generate_steps, count_bytes(parts), read)


def all_gather_now(comm: "ShmComm", value: object, objects: ObjectSerializer) -> list[Any] | None:
    """Run `all_gather` by the core at once, as the plain call does; None: nothing has happened."""
    parts = objects.encode_parts(value)
    call, signature = sign_call("all_gather_object")
    received = comm.exchange_now(parts, call, call.operation, signature)
    return None if received is False else _decode_all(objects, received, parts)


def gather_now(
    comm: "ShmComm", value: object, root: int, objects: ObjectSerializer
) -> tuple[list[Any] | None] | None:
    """Run `gather` by the core at once, as the plain call does; None: nothing has happened."""
    parts = objects.encode_parts(value)
    call, signature = sign_call("gather_object", root=root)
    received = comm.exchange_now({root: parts}, call, call.operation, signature, root, True)
    return None if received is False else (_decode_gathered(objects, received, parts, root),)


def gather(parts: Parts, root: int, objects: ObjectSerializer) -> CompositeCall:
    """Send the objects of all ranks to the root, whose result is their list; None elsewhere."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        return (yield from vector.gather(join_parts(parts), root).generate_steps(builder))

    def read_found(found: Sequence[UInt8Array] | None) -> list[Any] | None:
        return None if found is None else _decode_all(objects, found, parts)

    def read(received: Received) -> list[Any] | None:
        return _decode_gathered(objects, received, parts, root)

    signed = sign_call("gather_object", root=root)
    exchange = Exchange(signed, {root: parts}, read, root, to_root=True, most=MAX_BYTES)
    return _make_composite(exchange, generate_steps, count_bytes(parts), read_found)


def scatter_now(
    comm: "ShmComm", values: Sequence[object] | None, root: int, objects: ObjectSerializer
) -> tuple[Any] | None:
    """Run `scatter` by the core at once, as the plain call does; None: nothing has happened."""
    parts = None if values is None else [objects.encode_parts(one) for one in values]
    call, signature = sign_call("scatter_object", root=root)
    received = comm.exchange_now(parts or (), call, call.operation, signature, root)
    return None if received is False else (_decode_scattered(objects, received, parts, root),)


def scatter(parts: Sequence[Parts] | None, root: int, objects: ObjectSerializer) -> CompositeCall:
    """Send each rank its object of the root's list, of which each has its parts."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        data = None if parts is None else [join_parts(one) for one in parts]
        return (yield from vector.scatter(data, root).generate_steps(builder))

    def read(received: Received) -> Any:
        return _decode_scattered(objects, received, parts, root)

    messages = () if parts is None else list(parts)
    signed = sign_call("scatter_object", root=root)
    exchange = Exchange(signed, messages, read, root, most=MAX_BYTES)
    nbytes = sum(map(count_bytes, parts or ()))
    return _make_composite(exchange, generate_steps, nbytes, objects.decode, has_blocks=True)


def broadcast_now(
    comm: "ShmComm", values: list[Any], root: int, objects: ObjectSerializer, *, is_root: bool
) -> bool:
    """Run `broadcast` by the core at once, as the plain call does; False: nothing has happened."""
    parts = objects.encode_parts(values) if is_root else ()
    call, signature = _sign_broadcast(root, values)
    received = comm.exchange_now(parts, call, call.operation, signature, root)
    if received is not False:
        _overwrite(values, received[root], objects)
    return received is not False


def broadcast(
    parts: Parts | None, root: int, values: list[Any], objects: ObjectSerializer
) -> CompositeCall:
    """Overwrite the items of a list with those of the root, where the list has these parts."""

    def generate_steps(builder: StepBuilder) -> StepGenerator:
        data = None if parts is None else join_parts(parts)
        size = np.array([0 if data is None else len(data)], np.int64)
        yield builder.broadcast(size, root)
        place = np.empty(check_size(int(size[0])), np.uint8) if data is None else data
        yield builder.broadcast(place, root)
        return place if data is None else None

    def read_found(found: UInt8Array | None) -> list[Any]:
        _overwrite(values, found, objects)
        return values

    def read(received: Received) -> list[Any]:
        return read_found(received[root])

    exchange = Exchange(_sign_broadcast(root, values), parts or (), read, root, most=MAX_BYTES)
    return _make_composite(exchange, generate_steps, count_bytes(parts or ()), read_found)


def _sign_broadcast(root: int, values: list[Any]) -> SignedCall:
    return sign_call("broadcast_object_list", "", root, len(values))


def _overwrite(values: list[Any], received: UInt8Array | None, objects: ObjectSerializer) -> None:
    """Overwrite a list with what has come, if that is not this rank's own."""
    if received is not None:
        values[:] = objects.decode(received)


def _make_composite(
    exchange: Exchange,
    generate_steps: Callable[[StepBuilder], StepGenerator],
    nbytes: int,
    read: Callable[[Any], Result],
    has_blocks: bool = False,
) -> CompositeCall:
    """Return a call on objects of so many bytes; `read` makes its result of what the steps give."""
    return CompositeCall(
        exchange.signed.call,
        generate_steps,
        has_blocks=has_blocks,
        core_call=exchange,
        object_bytes=nbytes,
        read=read,
        pack=lambda: exchange,
    )


def _decode(objects: ObjectSerializer, received: UInt8Array | None, own: Parts) -> Any:
    """Decode an object that has come, or this rank's own, which is as new as the others."""
    return objects.decode_parts(own) if received is None else objects.decode(received)


def _decode_all(objects: ObjectSerializer, received: Received, own: Parts) -> list[Any]:
    return [objects.decode_parts(own) if one is None else objects.decode(one) for one in received]


def _decode_gathered(
    objects: ObjectSerializer, received: Received, own: Parts, root: int
) -> list[Any] | None:
    """Decode what the root has received; None elsewhere."""
    return _decode_all(objects, received, own) if received[root] is None else None


def _decode_scattered(
    objects: ObjectSerializer, received: Received, parts: Sequence[Parts] | None, root: int
) -> Any:
    """Decode this rank's object, on the root one of those that it has sent."""
    return _decode(objects, received[root], () if parts is None else parts[root])
