"""Sections of texts for people: lines, tables, with times and ranks as people read them."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Literal, Self, TypeAlias

_MAX_LISTED = 8

Mark: TypeAlias = Literal["bad", "late"]
"""Red: lost or failed; yellow: late or silent."""

Column: TypeAlias = tuple[str, Literal["left", "right"]]
"""The heading of a column, and the side to which its cells are aligned."""


class Marked(str):
    """A text that a terminal shows in the colour of its mark."""

    __slots__ = ("mark",)
    mark: Mark

    def __new__(cls, text: str, mark: Mark) -> Self:
        made = super().__new__(cls, text)
        made.mark = mark
        return made


class Table:
    """A table of texts; its columns have a heading and the side to which they are aligned.

    Columns on the left may be narrowed where a terminal is narrow; those on the right never are.
    """

    def __init__(self, *columns: Column, wide: Collection[str] = ()) -> None:
        """Make an empty table; the columns named by `wide` are shown by `-o wide` alone."""
        self.columns = columns
        self.wide = frozenset(wide)
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)

    def narrow(self) -> "Table":
        """Return the table without the columns of `-o wide`."""
        kept = [at for at, (name, _) in enumerate(self.columns) if name not in self.wide]
        table = Table(*(self.columns[at] for at in kept))
        table.rows = [tuple(row[at] for at in kept) for row in self.rows]
        return table


Section: TypeAlias = "str | Table"
"""A line or a table."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks, or count them if there are many."""
    listed = f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"
    return f"{len(ranks)} ranks ({format_ranks(ranks)})" if len(ranks) > _MAX_LISTED else listed


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks compactly: 0, 1, 2, 5 as "0-2,5"."""
    runs = [
        [rank for _, rank in run]
        for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def format_ago(elapsed: float) -> str:
    return f"{format_duration(elapsed)} ago"


def format_duration(elapsed: float) -> str:
    """Write a length of time as people read it: 0.4 s, 12.0 s, 3 m 05 s, 2 h 07 m."""
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def format_short(elapsed: float) -> str:
    """Format a short time for people: 12 us, 3.4 ms, 1.2 s."""
    if elapsed < 0.0009995:
        return f"{elapsed * 1e6:.0f} us"
    if elapsed < 0.9995:
        return f"{elapsed * 1e3:.1f} ms"
    return format_duration(elapsed)
