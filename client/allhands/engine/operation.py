"""Values of one group's engine: a queued operation and the group's progress."""

import time
from dataclasses import field

from allhands.collectives.composite_call import CompositeState
from allhands.collectives.primitive_call import BuildParts
from allhands.collectives.request import CollectiveRequest
from allhands.collectives.signature import CallSignature, Result
from allhands.engine.work.work import Work
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MonitoredBarrierCall:
    """Options of a monitored barrier."""

    names_all: bool
    """Whether the error names every missing rank, not only the first."""


@dataclass(slots=True)
class Operation:
    """A collective call in the queue."""

    work: Work
    call: CallSignature
    request: CollectiveRequest
    """Arrays and options of the call over shared memory."""
    build: BuildParts
    """Builds the schedules of the call over links."""
    result: Result
    timeout: float
    deadline: float
    """On the monotonic clock."""
    is_cancelled: bool = False
    """Whether the call is skipped on its turn."""
    composite_state: CompositeState | None = None
    """Steps of a composite call; once started, `request` and `build` are the first step's."""
    monitored_barrier: MonitoredBarrierCall | None = None
    """Set for a barrier at the coordinator."""
    has_touched: bool = False
    """Whether outputs may have been written over links."""
    read_failure: Exception | None = None
    """Why the result cannot be made here, of a call that has ended well."""
    awaits_finish: bool = False
    """Whether all steps of a composite call have ended on the thread of its caller, which is to
    finish the call's state and to complete its work."""
    signature: int = field(init=False)

    def __post_init__(self) -> None:
        self.signature = self.call.signature


@dataclass(slots=True)
class GroupProgress:
    """Position of this rank in the group's calls, as carried by heartbeats."""

    sequence: int = 0
    last_ended: int = 0
    """Latest call that ended here, with or without an error."""
    last_completed: int = 0
    """Latest call that succeeded here: all data for peers has been sent."""
    operation: str = ""
    since: float = field(default_factory=time.monotonic)
