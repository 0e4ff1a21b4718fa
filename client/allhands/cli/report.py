"""`allhands report`: one HTML file on a job: skew, stragglers, slow calls, events, verdicts."""

import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.diagnose import choose_job, explain_not_found
from allhands.cli.options import AnyJobArgument, ClientOptions, takes_client
from allhands.cli.trace import refuse_format, write_file

if TYPE_CHECKING:
    from allhands.cli.report_page import ReportPage

_OPERATIONS = 2048
_DAY_SECONDS = 86400.0


@takes_client
def report_command(
    job: AnyJobArgument = None,
    file: Annotated[
        Path, typer.Option("--file", "-f", "-o", metavar="FILE", help="Where to write it.")
    ] = Path("report.html"),
    *,
    client: ClientOptions,
) -> None:
    """Write a report on a job as one HTML file, which refers to nothing outside of it.

    Of a job that has ended: what the coordinator has kept. Needs allhands[report].
    """
    _check_installed()
    refuse_format(file, "a report is one HTML file")
    with client.open(job) as control, explain_not_found(control):
        name = choose_job(control)
        found = control.reports(name, _OPERATIONS, waits_seconds=_DAY_SECONDS)
        events = control.events(name)
    from allhands.cli.report_page import make_page
    from allhands.coordinator.analysis import diagnose

    diagnosis = diagnose(found.job, found.reports, found.missing, found.waits)
    page = make_page(found.job, diagnosis, found.reports, events, time.time())
    write_file(file, render_page(page))
    typer.echo(f"{file}: {len(found.reports)} ranks, {len(events)} events")


def render_page(page: "ReportPage") -> str:
    """Return the page as HTML; all texts are escaped."""
    import jinja2

    from allhands.cli.report_page import HEIGHT, WIDTH

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    source = files("allhands.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(page=page, width=WIDTH, height=HEIGHT)


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("jinja2") is None:
        raise typer.BadParameter(
            "a report needs Jinja2, which is not installed here: pip install 'allhands[report]'"
        )
