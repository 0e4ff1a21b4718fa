"""Sections as tables and lines of a terminal; when they are refreshed is up to the caller."""

import io
from collections.abc import Iterable, Mapping
from typing import IO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import SegmentLines
from rich.table import Table as RichTable
from rich.text import Text

from allhands.coordinator.sections import Marked, Section, Table
from allhands.escapes import escape_line

_UNWRAPPED_WIDTH = 2000  # columns: text that goes to a file or a pipe is not wrapped
_UNUSED_HEIGHT = 25
"""With TERM=dumb, rich takes 80 columns for the width unless the height is given too."""
_GAP = 2
_STYLES = {"bad": "red", "late": "yellow"}


def draw(sections: Iterable[Section], *, is_wide: bool = False) -> RenderableType:
    """Draw sections one below the other; with all columns if `is_wide`."""
    return Group(
        *(
            _FittedTable(one if is_wide else one.narrow(), is_wide=is_wide)
            if isinstance(one, Table)
            else _make_cell(one)
            for one in sections
        )
    )


def render_plain(
    sections: Iterable[Section], *, is_wide: bool = False, has_color: bool = False
) -> str:
    """Draw as wide as need be, without spaces or newlines at the ends; in colour if asked."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=_UNWRAPPED_WIDTH,
        height=_UNUSED_HEIGHT,
        force_terminal=has_color,
        no_color=not has_color,
        color_system="standard" if has_color else None,
    )
    console.print(draw(sections, is_wide=is_wide))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def make_console(file: IO[str], color: str, environ: Mapping[str, str]) -> Console:
    """Return a console on a terminal; `color` is `auto`, `always` or `never`.

    auto: colours on a terminal, unless NO_COLOR is set or the terminal has none.
    """
    if color == "always":
        return Console(file=file, no_color=False, color_system="standard")
    return Console(file=file, no_color=color == "never" or bool(environ.get("NO_COLOR")))


def shows_color(console: Console) -> bool:
    """Say whether a console shows colours."""
    return console.color_system is not None and not console.no_color


def crop(console: Console, drawn: RenderableType) -> RenderableType:
    """Return what fits on the console's screen, and how many lines are left out."""
    lines = console.render_lines(drawn, pad=False)
    # A line is left for the cursor.
    if len(lines) < console.height:
        return drawn
    kept = max(console.height - 2, 1)
    more = Text(f"... and {len(lines) - kept} lines more")
    return Group(SegmentLines(lines[:kept], new_lines=True), more)


class _FittedTable:
    """A table that is narrowed to the width of the console, but never within a word of a heading.

    rich narrows the widest columns too, but does not go on with others at the least width of one.
    """

    def __init__(self, table: Table, *, is_wide: bool) -> None:
        self._table = table
        self._is_wide = is_wide

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        widths = fit_columns(self._table, options.max_width)
        for (name, side), width in zip(self._table.columns, widths, strict=True):
            drawn.add_column(
                name, justify=side, width=width, overflow="fold" if self._is_wide else "ellipsis"
            )
        for row in self._table.rows:
            drawn.add_row(*map(_make_cell, row))
        yield drawn


def fit_columns(table: Table, width: int) -> list[int]:
    """Return widths of columns that fit, if they can: columns on the left give way, widest first.

    Headings are broken between their words, cells on the right are not.
    """
    widths, least = [], []
    for at, (name, side) in enumerate(table.columns):
        cells = max((cell_len(escape_line(row[at])) for row in table.rows), default=0)
        longest_word = max(map(len, name.split()))
        widths.append(max(cells, len(name)))
        least.append(longest_word if side == "left" else max(cells, longest_word))
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0 and widths != least:
        widest = max(
            (at for at in range(len(widths)) if widths[at] > least[at]), key=widths.__getitem__
        )
        widths[widest] -= 1
        excess -= 1
    return widths


def _make_cell(text: str) -> Text:
    """Make a cell of literal text, without terminal escapes from the network.

    `Text` keeps rich from taking brackets for markup.
    """
    style = _STYLES[text.mark] if isinstance(text, Marked) else ""
    return Text(escape_line(text), style)
