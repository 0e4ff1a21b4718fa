"""Sections as tables and lines of a terminal; when they are refreshed is up to the caller."""

import io
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from allhands.coordinator.sections import Section, Table
from allhands.escapes import escape_line

_UNWRAPPED_WIDTH = 2000  # columns: text that goes to a file or a pipe is not wrapped


def draw(sections: Iterable[Section]) -> RenderableType:
    """Draw sections one below the other."""
    return Group(
        *(_draw_table(one) if isinstance(one, Table) else _make_cell(one) for one in sections)
    )


def render_plain(sections: Iterable[Section]) -> str:
    """Draw without colour, as wide as need be, without spaces or newlines at the ends."""
    out = io.StringIO()
    Console(file=out, width=_UNWRAPPED_WIDTH, color_system=None).print(draw(sections))
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _draw_table(table: Table) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in table.columns:
        drawn.add_column(name, justify=side, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(_make_cell, row))
    return drawn


def _make_cell(text: str) -> Text:
    """Make a cell of literal text, without terminal escapes from the network.

    `Text` keeps rich from taking brackets for markup.
    """
    return Text(escape_line(text))
