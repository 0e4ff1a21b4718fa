"""`--watch`: a view shown again every second, in place on a terminal, else in sequence."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from allhands.cli.render import Color, Output, print_document, print_names, show

if TYPE_CHECKING:
    from allhands.coordinator.sections import Section

_REFRESH_SECONDS = 1.0


class View:
    """What a command shows: sections for people, a document for programs, names for scripts."""

    def __init__(
        self,
        kind: str,
        make_fields: Callable[[], Mapping[str, object]],
        describe: "Callable[[], Sequence[Section]]",
        list_names: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.kind = kind
        self.make_fields = make_fields
        self.describe = describe
        self.list_names = list_names

    def show(self, output: Output, color: Color = Color.AUTO, *, in_stream: bool = False) -> None:
        """Write it to standard output once."""
        match output:
            case Output.JSON | Output.YAML:
                print_document(self.kind, self.make_fields(), output, in_stream=in_stream)
            case Output.NAME:
                print_names(self.list_names())
            case Output.TABLE:
                show(self.describe(), color)
            case Output.WIDE:
                show(self.describe(), color, is_wide=True, is_fitted=False)


def show_again(look: Callable[[], View], output: Output, color: Color) -> None:
    """Show the views that `look` returns, until Ctrl-C; documents come as a stream."""
    with contextlib.suppress(KeyboardInterrupt):
        if output in (Output.TABLE, Output.WIDE) and sys.stdout.isatty():
            _refresh(look, color, is_wide=output is Output.WIDE)
        while True:
            look().show(output, color, in_stream=True)
            sys.stdout.flush()
            time.sleep(_REFRESH_SECONDS)


def _refresh(look: Callable[[], View], color: Color, *, is_wide: bool) -> None:
    """Show the views in place; what does not fit on the screen is counted."""
    from rich.live import Live

    from allhands.coordinator.tables import crop, draw, make_console

    console = make_console(sys.stdout, color.value, os.environ)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            drawn = draw(look().describe(), is_wide=is_wide)
            live.update(crop(console, drawn), refresh=True)
            time.sleep(_REFRESH_SECONDS)
