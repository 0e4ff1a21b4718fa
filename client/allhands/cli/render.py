"""Output of commands: tables for people, documents for programs, names for scripts."""

import enum
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from allhands.coordinator.sections import Section

DOCUMENT_VERSION = 1
"""Names are added to it; one that is removed or changes its meaning makes a new version."""


class Output(enum.StrEnum):
    """Values of `-o`; a command takes those that make sense for it."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def is_document(self) -> bool:
        return self in (Output.JSON, Output.YAML)


class Color(enum.StrEnum):
    """Values of `--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def make_output_option(*formats: Output, note: str = "") -> Any:
    """Return the option `-o` of a command that knows these formats; it refuses all others."""
    listed = _join([one.value for one in formats])

    def parse(text: str) -> Output:
        for one in formats:
            if text == one.value:
                return one
        raise typer.BadParameter(f"the output of this command is {listed}, not {text!r}")

    return typer.Option(
        "--output",
        "-o",
        parser=parse,
        metavar="|".join(formats),
        help=f"Form of the output{note}.",
        autocompletion=lambda: [one.value for one in formats],
    )


def show(
    sections: "Sequence[Section]",
    color: Color = Color.AUTO,
    *,
    is_wide: bool = False,
    is_fitted: bool = True,
) -> None:
    """Write to standard output: fitted to a terminal, else plain and never wrapped.

    Args:
        is_wide: all columns, and nothing cut.
        is_fitted: False: not wrapped on a terminal either, which does that by itself.
    """
    from allhands.coordinator.tables import draw, make_console, render_plain, shows_color

    console = make_console(sys.stdout, color.value, os.environ)
    has_color = color is Color.ALWAYS or (sys.stdout.isatty() and shows_color(console))
    if is_fitted and sys.stdout.isatty():
        console.print(draw(sections, is_wide=is_wide))
    else:
        # Off a terminal click takes colours out, unless it is told that they are wanted.
        typer.echo(render_plain(sections, is_wide=is_wide, has_color=has_color), color=has_color)


def print_document(
    kind: str, fields: Mapping[str, object], output: Output, *, in_stream: bool = False
) -> None:
    """Write a document, with its kind, its version and the time first.

    Those of a stream take one line each as JSON, and `---` before each as YAML.
    """
    dated = {"time": format_time(time.time()), **fields}
    sys.stdout.write(format_document(kind, dated, output, in_stream=in_stream))
    sys.stdout.flush()


def format_document(
    kind: str, fields: Mapping[str, object], output: Output, *, in_stream: bool = False
) -> str:
    """Return the text of a document, with the end of its last line."""
    document = {"kind": kind, "version": DOCUMENT_VERSION, **fields}
    if output is not Output.YAML:
        return json.dumps(document, indent=None if in_stream else 2) + "\n"
    import yaml

    # Aliases (&id001) are for what is the same object twice, which means nothing here.
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    return yaml.dump(
        json.loads(json.dumps(document)),
        Dumper=dumper,
        sort_keys=False,
        explicit_start=in_stream,
        width=1000,
    )


def print_names(names: Iterable[str]) -> None:
    """Write names, a line each; control characters are escaped."""
    from allhands.escapes import escape_line

    for name in names:
        sys.stdout.write(f"{escape_line(name)}\n")
    sys.stdout.flush()


def format_time(seconds: float) -> str:
    """Return a time in seconds since 1970 by RFC 3339, in UTC, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _join(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
