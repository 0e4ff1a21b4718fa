"""Ranges of keys: from a first key on, up to another or to the end."""

from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.formatting import quote
from allhands_server.machine.limits import check_key
from allhands_server.machine.refusals import Refused, Status

TO_THE_END = "\0"
"""In the place of a range's end: all keys from the first on."""

_LAST = 0x10FFFF
_BEFORE_SURROGATES, _BEHIND_SURROGATES = 0xD7FF, 0xE000


@fast_dataclass
class KeyRange:
    """The keys from `first` on that are less than `end`; with `end` None all from `first` on."""

    first: str
    end: str | None

    def __contains__(self, key: str) -> bool:
        return self.first <= key and (self.end is None or key < self.end)

    @property
    def is_one_key(self) -> bool:
        return self.end == f"{self.first}\0"

    def overlaps(self, other: "KeyRange") -> bool:
        """Return whether a key can be in both."""
        return (self.end is None or other.first < self.end) and (
            other.end is None or self.first < other.end
        )


def make_range(key: str, range_end: str, prefix: bool) -> KeyRange:
    """Return the range of a request; see RangeRequest in coordinator.proto.

    Raises:
        Refused: an empty or too long key, an end and a prefix, or an end before the key.
    """
    if prefix:
        if range_end:
            text = f"a range is given by its end or by its prefix, not both: {quote(range_end)}"
            raise Refused(Status.INVALID_ARGUMENT, text)
        if key:
            check_key(key)
        return KeyRange(key, find_end(key))
    if range_end == TO_THE_END:
        if key:
            check_key(key)
        return KeyRange(key, None)
    check_key(key)
    if not range_end:
        return KeyRange(key, f"{key}\0")
    check_key(range_end)
    if range_end <= key:
        text = f"a range ends behind its first key: {quote(range_end)} is not behind {quote(key)}"
        raise Refused(Status.INVALID_ARGUMENT, text)
    return KeyRange(key, range_end)


def find_end(prefix: str) -> str | None:
    """Return the least key behind all keys with a prefix; None: there is none."""
    for length in range(len(prefix), 0, -1):
        last = ord(prefix[length - 1])
        if last < _LAST:
            following = _BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1
            return prefix[: length - 1] + chr(following)
    return None
