"""Output of commands: tables for people, JSON for programs."""

import enum
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from allhands.coordinator.sections import Section
    from allhands.coordinator.status import JobStatus


class Output(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


def show(sections: "Sequence[Section]") -> None:
    """Write to standard output: fitted to a terminal, else plain and never wrapped."""
    from rich.console import Console

    from allhands.coordinator.tables import draw, render_plain

    if sys.stdout.isatty():
        Console().print(draw(sections))
    else:
        typer.echo(render_plain(sections))


def format_jobs_json(jobs: "Sequence[JobStatus]", indent: int | None = None) -> str:
    """Format the jobs as one JSON document, in the form documented at `allhands status`."""
    import json
    from dataclasses import asdict

    return json.dumps({"jobs": [asdict(job) for job in jobs]}, indent=indent)
