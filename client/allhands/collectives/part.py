"""Parts of a call over links: schedules with their buffers."""

from collections.abc import Callable

from allhands.collectives.buffer import Buffer
from allhands.collectives.schedule import Area, Schedule
from allhands_proto.quick_dataclass import dataclass


@dataclass(slots=True)
class Part:
    """A slice of a call: a schedule and the buffers of its spans."""

    schedule: Schedule
    input: Buffer
    output: Buffer
    name: str = ""
    """Of the algorithm, for people."""

    @property
    def has_whole_spans(self) -> bool:
        """Whether each span lies in one array."""
        buffers = {Area.INPUT: self.input, Area.OUTPUT: self.output}
        return all(
            len(buffers[span.area].view_pieces(span.start, span.stop)) <= 1
            for step in self.schedule.rounds
            for span in step.list_spans()
            if span.area in buffers
        )


@dataclass(slots=True)
class Assembly:
    """The exchange of arrivals of a call; no output is touched before its end."""

    part: Part
    conclude: Callable[[], int | None] | None = None
    """Called at its end: returns a rank of the group that does not fit the others, or puts into the
    outputs what has come already, and returns None."""
