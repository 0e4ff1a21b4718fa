"""`allhands status`: the jobs of a coordinator, with their members and operations.

The JSON form is stable: names are added, none is removed or given another meaning.

    {"jobs": [{"job": str, "state": "empty|forming|running|degraded|ended",
               "epoch": int, "world_size": int (0: not agreed yet),
               "members": [{"rank": int, "member_id": str, "host": str, "pid": int,
                            "address": "host:port", "label": str,
                            "state": "joined|lost|left", "reason": str,
                            "last_heartbeat": seconds ago,
                            "operations": [{"group": str, "operation": str (empty: in none),
                                            "sequence": int, "completed": int,
                                            "elapsed": seconds}],
                            "clock_offset": seconds or null (unknown),
                            "lateness": [{"group": str, "calls": int, "median": seconds,
                                          "worst": seconds, "last": int}],
                            "gone": seconds ago or null (it is there),
                            "condition": "stalled|paused|unreachable" (silent though it lives)
                                         or "", "condition_text": str}],
               "groups": [{"group": str, "ranks": [int]}],
               "heartbeat_window": seconds, "keys": int, "incarnation": str,
               "failures": [{"rank": rank or -1 (aborted from outside), "state": str, "text": str,
                             "seconds": seconds ago, "traceback": str}] (the first failure first),
               "ended": seconds ago or null (it has not)}]}

With --limits it is another object:

    {"limits": [{"name": str, "most": int (0: not limited),
                 "used": int (by the job that uses most) or null (not counted),
                 "job": str (that job) or ""}],
     "resident_bytes": int}
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.render import Output, format_jobs_json, show

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.status import JobStatus

_REFRESH_SECONDS = 1.0


def status_command(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Show only this one.")] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to show it.")
    ] = Output.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every second, until Ctrl-C.")
    ] = False,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits", help="Show the coordinator's limits, and how much is used of each."
        ),
    ] = False,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Show jobs: members, their heartbeats, and the operation each is in."""
    with open_client(coordinator, job, insecure=insecure) as control:
        if limits:
            _show_limits(control, output)
        elif not watch:
            _show(_select_jobs(control), output)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(lambda: _select_jobs(control), output)


def _select_jobs(control: "Control") -> "Sequence[JobStatus]":
    """Return the client's job, or all jobs."""
    from allhands.errors import NotFound

    jobs = control.jobs()
    if control.job_name is None:
        return jobs
    chosen = [one for one in jobs if one.job == control.job_name]
    if not chosen:
        existing = ", ".join(one.job for one in jobs) or "none"
        raise NotFound(f"no job {control.job_name!r} at this coordinator; there are: {existing}")
    return chosen


def _show(jobs: "Sequence[JobStatus]", output: Output) -> None:
    from allhands.coordinator.status import describe_jobs

    match output:
        case Output.JSON:
            typer.echo(format_jobs_json(jobs, indent=2))
        case Output.TABLE:
            show(describe_jobs(jobs))


def _show_limits(control: "Control", output: Output) -> None:
    import json
    from dataclasses import asdict

    from allhands.coordinator.limit_calls import describe_limits

    found = control.limits()
    match output:
        case Output.JSON:
            typer.echo(json.dumps(asdict(found), indent=2))
        case Output.TABLE:
            show(describe_limits(found))


def _watch(read_jobs: "Callable[[], Sequence[JobStatus]]", output: Output) -> None:
    """Show the jobs until interrupted: in place on a terminal, else in sequence.

    JSON then comes as one line each time.
    """
    from rich.live import Live

    from allhands.coordinator.status import describe_jobs
    from allhands.coordinator.tables import draw

    if output is Output.JSON:
        while True:
            typer.echo(format_jobs_json(read_jobs()))
            time.sleep(_REFRESH_SECONDS)
    if not sys.stdout.isatty():
        while True:
            show(describe_jobs(read_jobs()))
            time.sleep(_REFRESH_SECONDS)
    with Live(draw(describe_jobs(read_jobs())), auto_refresh=False) as live:
        while True:
            live.update(draw(describe_jobs(read_jobs())), refresh=True)
            time.sleep(_REFRESH_SECONDS)
