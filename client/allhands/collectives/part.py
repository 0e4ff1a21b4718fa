"""Parts of a call over links: schedules with their buffers."""

from collections.abc import Callable

from allhands.collectives.buffer import Buffer
from allhands.collectives.schedule import Schedule
from allhands_proto.quick_dataclass import dataclass


@dataclass(slots=True)
class Part:
    """A slice of a call: a schedule and the buffers of its spans."""

    schedule: Schedule
    input: Buffer
    output: Buffer
    name: str = ""
    """Of the algorithm, for people."""


@dataclass(slots=True)
class Assembly:
    """The exchange of arrivals of a call; no output is touched before its end."""

    part: Part
    conclude: Callable[[], int | None] | None = None
    """Called at its end: returns a rank of the group that does not fit the others, or puts into the
    outputs what has come already, and returns None."""
