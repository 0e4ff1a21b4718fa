"""Hosts of a launch and how many ranks each gets, as options and host files name them. Pure."""

import re
from collections.abc import Iterable

from allhands_proto.quick_dataclass import dataclass

# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_NAME = r"[^\s,:\[\]=#-][^\s,:\[\]=#]*"
_MOST_RANKS = 1 << 16
_COUNTS = ("slots", "max_slots", "max-slots")
"""Words of Open MPI's host files; the first says how many ranks a host gets."""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """A host by its name for ssh, and the number of its ranks."""

    name: str
    count: int


def parse_hosts(text: str, count: int | None) -> tuple[HostRanks, ...]:
    """Read `a,b:4,user@c,[fd00::1]:2`; `count` is for hosts that name no number.

    Raises:
        ValueError: a name is malformed, or there is no number of ranks for it.
    """
    return _merge(_parse_entry(entry.strip(), count) for entry in text.split(","))


def parse_hostfile(text: str, count: int | None) -> tuple[HostRanks, ...]:
    """Read a host file: lines as `a`, `b:4` or Open MPI's `c slots=4`, comments after `#`.

    Raises:
        ValueError: as `parse_hosts`, with the number of the line; or there is no host.
    """
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.partition("#")[0].replace("=", " = ").split()):
            continue
        try:
            slots = _parse_words(words[1:])
            entries.append(_parse_entry(words[0], slots if slots is not None else count))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    if not entries:
        raise ValueError("it names no host")
    return _merge(entries)


def _parse_words(words: list[str]) -> int | None:
    """Return the number after `slots =`; None: it is not said."""
    found = None
    while words:
        match words:
            case [name, "=", value, *rest] if name in _COUNTS:
                if name == _COUNTS[0]:
                    found = _parse_count(value)
                words = rest
            case _:
                raise ValueError(f"{''.join(words)!r} is not known; write: NAME slots=N")
    return found


def _parse_entry(entry: str, count: int | None) -> HostRanks:
    bracketed = re.fullmatch(r"((?:[^@\s]+@)?)\[([0-9A-Fa-f:.%]+)\](?::(.*))?", entry)
    if bracketed is not None:
        user, address, number = bracketed.groups()
        name = f"{user}{address}"
    else:
        name, colon, number = entry.partition(":")
        number = number if colon else None
        # A name that begins with a hyphen would be an option of ssh.
        if not re.fullmatch(_NAME, name):
            raise ValueError(f"{entry!r} is no host; write NAME or NAME:RANKS, as in a,b:4")
    found = count if number is None else _parse_count(number)
    if found is None:
        raise ValueError(f"say how many ranks {name} gets: {name}:N, or -n N for all hosts")
    return HostRanks(name, found)


def _parse_count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= _MOST_RANKS):
        raise ValueError(f"{text!r} is no number of ranks")
    return int(text)


def _merge(entries: Iterable[HostRanks]) -> tuple[HostRanks, ...]:
    """Add up the ranks of a host that comes more than once, in its first place."""
    counts: dict[str, int] = {}
    for one in entries:
        counts[one.name] = counts.get(one.name, 0) + one.count
    return tuple(HostRanks(name, count) for name, count in counts.items())
