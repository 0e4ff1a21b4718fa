"""Sections as tables and lines of a terminal; when they are refreshed is up to the caller."""

import io
from collections.abc import Iterable, Mapping
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.segment import SegmentLines
from rich.table import Table as RichTable
from rich.text import Text

from allhands.coordinator.sections import Marked, Section, Table
from allhands.escapes import escape_line

_UNWRAPPED_WIDTH = 2000  # columns: text that goes to a file or a pipe is not wrapped
_STYLES = {"bad": "red", "late": "yellow"}


def draw(sections: Iterable[Section], *, is_wide: bool = False) -> RenderableType:
    """Draw sections one below the other; with all columns if `is_wide`."""
    return Group(
        *(
            _draw_table(one, is_wide=is_wide) if isinstance(one, Table) else _make_cell(one)
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
        force_terminal=has_color,
        no_color=not has_color,
        color_system="standard" if has_color else None,
    )
    console.print(draw(sections, is_wide=is_wide))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def make_console(file: IO[str], color: str, environ: Mapping[str, str]) -> Console:
    """Return a console on a terminal; `color` is `auto`, `always` or `never`.

    auto: colours, unless NO_COLOR is set or the terminal has none.
    """
    if color == "always":
        return Console(file=file, no_color=False, color_system="standard")
    return Console(file=file, no_color=color == "never" or bool(environ.get("NO_COLOR")))


def crop(console: Console, drawn: RenderableType) -> RenderableType:
    """Return what fits on the console's screen, and how many lines are left out."""
    lines = console.render_lines(drawn, pad=False)
    # A line is left for the cursor.
    if len(lines) < console.height:
        return drawn
    kept = max(console.height - 2, 1)
    more = Text(f"... and {len(lines) - kept} lines more")
    return Group(SegmentLines(lines[:kept], new_lines=True), more)


def _draw_table(table: Table, *, is_wide: bool) -> RichTable:
    shown = table if is_wide else table.narrow()
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in shown.columns:
        drawn.add_column(
            name,
            justify=side,
            no_wrap=side == "right",
            min_width=max(map(len, name.split())),
            overflow="fold" if is_wide else "ellipsis",
        )
    for row in shown.rows:
        drawn.add_row(*map(_make_cell, row))
    return drawn


def _make_cell(text: str) -> Text:
    """Make a cell of literal text, without terminal escapes from the network.

    `Text` keeps rich from taking brackets for markup.
    """
    style = _STYLES[text.mark] if isinstance(text, Marked) else ""
    return Text(escape_line(text), style)
