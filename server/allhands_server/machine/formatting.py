"""Formatting of names, ranks and lists in the machine's texts, bounded in length.

A refusal travels in HTTP/2 trailers, of which a peer takes 8 KiB in all by default.
"""

from collections.abc import Collection, Iterable

_LISTED = 8
_LONGEST = 80


def quote(text: str) -> str:
    """Quote a name from the wire: escaped, and cut if long."""
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def escape(text: str) -> str:
    """Escape terminal control characters; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def escape_line(text: str) -> str:
    """Escape newlines as well, for a log of a record per line."""
    return escape(text).replace("\n", "\\n").replace("\t", " ")


def join_names(names: Collection[str], *, quoted: bool = True) -> str:
    """Join the first few names, with the number of the rest."""
    first = [
        quote(name) if quoted else name for _, name in zip(range(_LISTED), names, strict=False)
    ]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")


def format_runs(numbers: Iterable[int]) -> str:
    """Format ranks in order, runs as `3-7`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return join_names([f"{a}" if a == b else f"{a}-{b}" for a, b in runs], quoted=False)


def name_ranks(numbers: Iterable[int]) -> str:
    """Format ranks in order after the word `rank` or `ranks`."""
    found = sorted(numbers)
    return f"rank{'' if len(found) == 1 else 's'} {format_runs(found)}"
