"""Keys and values on their way into a store, the same for each."""

import re
from collections.abc import Iterable, Mapping, Sequence

from allhands.errors import Refused

_INTEGER = re.compile(rb"[+-]?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)


def encode(value: bytes | str) -> bytes:
    """Encode a value in the store's form."""
    return value.encode() if isinstance(value, str) else bytes(value)


def check_key(key: str) -> str:
    """Return the key to be written.

    Raises:
        ValueError: it is empty.
    """
    if not key:
        raise ValueError("a key is not empty")
    return key


def pair_up(keys: Sequence[str], values: Sequence[bytes | str]) -> Mapping[str, bytes]:
    """Put keys and values together; of a key given twice the last value counts.

    Raises:
        ValueError: there are more of one than of the other, or a key is empty.
    """
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys, but {len(values)} values")
    return {check_key(key): encode(value) for key, value in zip(keys, values, strict=True)}


def add_decimal(key: str, held: bytes, amount: int) -> int:
    """Return the sum of the decimal number that the key holds and the amount.

    Raises:
        Refused: it holds something else, or the sum leaves the range of 64 bits.
    """
    if not _INTEGER.fullmatch(held):
        raise Refused(f"key {key!r} holds no integer, but {held[:20]!r}")
    total = int(held) + amount
    if total not in _INT64:
        raise Refused(f"adding {amount} to key {key!r} would leave the range of 64 bits")
    return total


def format_keys(keys: Iterable[str], max_listed: int = 8) -> str:
    """Name the keys in an error's text, the first few of many."""
    listed = [*keys]
    more = f" and {len(listed) - max_listed} more" if len(listed) > max_listed else ""
    return f"key{'' if len(listed) == 1 else 's'} {', '.join(map(repr, listed[:max_listed]))}{more}"
