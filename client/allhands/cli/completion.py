"""Completion of names that are not known beforehand: jobs of the coordinator, contexts."""

import os
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import typer

from allhands.cli.choice import CoordinatorChoice

_DEADLINE_SECONDS = 1.0
"""A terminal waits for it: no names are better than late ones."""


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of jobs with a prefix; none if the coordinator does not answer in a second.

    It asks the coordinator that the command itself would ask.
    """
    # Imported before: the deadline is that of the coordinator.
    from allhands.cli.endpoints import find_endpoint
    from allhands.coordinator.client import Control
    from allhands.errors import AllhandsError

    given: Mapping[str, Any] = ctx.params
    names = [one.name for one in fields(CoordinatorChoice)]
    choice = CoordinatorChoice(**{name: given[name] for name in names if given.get(name)})
    found: list[str] = []

    def ask() -> None:
        try:
            endpoint = find_endpoint(choice, os.environ)
            with Control(endpoint, job=None, timeout=_DEADLINE_SECONDS) as control:
                found.extend(job.job for job in control.jobs())
        except (AllhandsError, OSError, ValueError, typer.BadParameter):
            return  # an error would land in the middle of what is being typed

    # Also the look-up of a name may take longer than anybody waits at a terminal.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_DEADLINE_SECONDS)
    return [name for name in tuple(found) if name.startswith(incomplete) and name.isprintable()]


def complete_contexts(incomplete: str) -> list[str]:
    """Return the names of contexts with a prefix."""
    from allhands.cli.contexts import load_contexts

    try:
        return [name for name in load_contexts(os.environ).contexts if name.startswith(incomplete)]
    except (OSError, ValueError):
        return []
