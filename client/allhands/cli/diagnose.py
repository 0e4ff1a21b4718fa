"""`allhands diagnose`: the call and the delay of every rank of a job.

The JSON form is stable: names are added, none is removed or given another meaning.

    {"job": str, "state": str,
     "ranks": [{"rank": int, "host": str, "pid": int,
                "absence": str (why it did not report; empty: it did),
                "waits": [{"group": str, "sequence": int (0: point to point), "operation": str,
                           "signature": str, "seconds": seconds, "waits_for": [rank],
                           "label": str, "source": "file:line in function"}],
                "idle": seconds in no operation, "last": str (the call before), "stack": str,
                "gone": "lost|left" or "" (it is there; else all of this is of the time before),
                "stale": seconds from the heartbeat that told this to the loss of the rank}],
     "groups": [{"group": str, "behind": [rank], "unknown": [rank], "is_over": bool,
                 "positions": [{"sequence": int, "operation": str (empty: in none),
                                "ranks": [rank]}]}],
     "stragglers": [{"rank": int, "group": str, "calls": int, "median": seconds,
                     "worst": seconds, "last": int}],
     "failures": [{"rank": rank or -1, "state": str, "text": str, "seconds": seconds ago,
                   "traceback": str}] (the first failure first),
     "ended": seconds ago or null (it has not), "failed": bool}

Exit status: 0, and 1 where the job has ended and failed, or there is none of that name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.options import CoordinatorOption, InsecureOption, open_client
from allhands.cli.render import Output, show

if TYPE_CHECKING:
    from allhands.coordinator.client import Control
    from allhands.coordinator.diagnosis import Diagnosis


def diagnose_command(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Which one, where there are several.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to show it.")
    ] = Output.TABLE,
    coordinator: CoordinatorOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Show the position of every rank of a job: blocked calls, awaited ranks, late ranks.

    Of a job that has ended: the first failure, and the position of each rank then. Exit status 1:
    the job has ended and failed.
    """
    with open_client(coordinator, job, insecure=insecure) as control, explain_not_found(control):
        found = control.diagnose(choose_job(control))
    _show(found, output)
    if found.has_failed:
        raise typer.Exit(1)


def _show(found: "Diagnosis", output: Output) -> None:
    if output is Output.JSON:
        import json
        from dataclasses import asdict

        told = asdict(found)
        for group, one in zip(told["groups"], found.groups, strict=True):
            group["behind"] = one.behind
        told["failed"] = found.has_failed
        typer.echo(json.dumps(told, indent=2))
        return
    from allhands.coordinator.diagnosis import describe_diagnosis

    show(describe_diagnosis(found))


@contextmanager
def explain_not_found(control: "Control") -> Iterator[None]:
    """Return the error for a missing job, with the coordinator's address."""
    from allhands.errors import NotFound

    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"{error} (the coordinator at {control.endpoint.address.target} was asked; the one of "
            "`allhands run` ends with its job: ALLHANDS_DUMP_ON_FAILURE=DIR keeps records of calls)"
        ) from error


def choose_job(control: "Control") -> str:
    """Return the named job, or the only job with members, else the only ended job.

    Raises:
        NotFound: no job was named, and there are none or several.
    """
    from allhands.errors import NotFound

    if control.job_name is not None:
        return control.job_name
    known = [one for one in control.jobs() if one.state != "empty"]
    live = [one.job for one in known if one.state != "ended"]
    ended = [one.job for one in known if one.state == "ended"]
    if len(found := live or ended) == 1:
        return found[0]
    which = "of a job" if live else "of a job that has ended"
    raise NotFound(f"give the name {which}: there are {', '.join(found) or 'none'}")
