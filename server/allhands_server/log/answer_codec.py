"""Answers in the log: values of a closed set of kinds, as MessagePack.

A dataclass is a map of its kind's name and its fields; a tuple is an array.
"""

from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import msgpack

from allhands_proto import kv_results
from allhands_server.log.errors import LogDamaged, LogTooNew
from allhands_server.machine import changes
from allhands_server.machine.store import key_results, leases, transactions, watches
from allhands_server.machine.values import BarrierResult, BarrierView

Plain: TypeAlias = Any  # numbers, text, bytes, lists, maps

_KIND = "kind"
_KINDS: dict[str, type] = {
    name: kind
    for module in (kv_results, changes, key_results, leases, transactions, watches)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind)
} | {kind.__name__: kind for kind in (BarrierResult, BarrierView)}


def encode_answer(answer: Any) -> bytes:
    """Return an answer as bytes.

    Raises:
        TypeError: it has a value of another kind.
    """
    data: bytes = msgpack.packb(_simplify(answer))
    return data


def decode_answer(data: bytes, slot: int) -> Any:
    """Return the answer in the bytes.

    Raises:
        LogDamaged: they are none.
        LogTooNew: it is of a kind that this version does not know.
    """
    try:
        return _restore(msgpack.unpackb(data), slot)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise LogDamaged(slot, f"the bytes are no answer ({error})") from error


def _simplify(value: Any) -> Plain:
    if isinstance(value, tuple):
        return [_simplify(one) for one in value]
    if (name := type(value).__name__) in _KINDS:
        parts = {one.name: _simplify(getattr(value, one.name)) for one in fields(value)}
        return {_KIND: name, **parts}
    return value


def _restore(value: Plain, slot: int) -> Any:
    if isinstance(value, list):
        return tuple(_restore(one, slot) for one in value)
    if not isinstance(value, dict):
        return value
    name = value.pop(_KIND)
    if name not in _KINDS:
        raise LogTooNew(slot, f"an answer of kind {name!r}, which this version does not know")
    return _KINDS[name](**{field: _restore(one, slot) for field, one in value.items()})
