"""`allhands diagnose`: where every rank of a job is, for whom it waits, who is behind, who is late.

The JSON form is stable: names are added, none is removed or given another meaning.

    {"job": str, "state": str,
     "ranks": [{"rank": int, "host": str, "pid": int,
                "absence": str (why it did not report; empty: it did),
                "waits": [{"group": str, "sequence": int (0: point to point), "operation": str,
                           "signature": str, "seconds": seconds, "waits_for": [rank],
                           "label": str, "source": "file:line in function"}],
                "idle": seconds in no operation, "last": str (the call before), "stack": str}],
     "groups": [{"group": str, "behind": [rank],
                 "positions": [{"sequence": int, "operation": str (empty: in none),
                                "ranks": [rank]}]}],
     "stragglers": [{"rank": int, "group": str, "calls": int, "median": seconds,
                     "worst": seconds, "last": int}]}
"""

from typing import TYPE_CHECKING, Annotated

import typer

from allhands.cli.coordinator import CoordinatorOption, InsecureOption, reach
from allhands.cli.render import Output, show

if TYPE_CHECKING:
    from allhands.control import Control


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
    """Ask every rank of a job where it is: who waits for whom, who is behind, who is late."""
    with reach(coordinator, job, insecure=insecure) as control:
        found = control.diagnose(chosen(control))
    if output is Output.JSON:
        import json
        from dataclasses import asdict

        told = asdict(found)
        for group, one in zip(told["groups"], found.groups, strict=True):
            group["behind"] = one.behind
        typer.echo(json.dumps(told, indent=2))
        return
    from allhands.tables import diagnosis_table

    show(diagnosis_table(found))


def chosen(control: "Control") -> str:
    """Return the job that was named, or the only one with members.

    Raises:
        NotFound: none was named, and there is not one.
    """
    from allhands.errors import NotFound

    if control.job_name is not None:
        return control.job_name
    live = [one.job for one in control.jobs() if one.state not in ("empty", "ended")]
    if len(live) != 1:
        raise NotFound(f"name a job: at this coordinator there are {', '.join(live) or 'none'}")
    return live[0]
