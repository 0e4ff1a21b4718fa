"""Options of process group methods, as in c10d.

Plain values that programs make and then change: `opts = BroadcastOptions(); opts.rootRank = 1`.
Ranks are ranks of the group. A `timeout` of None is the group's; `asyncOp=False` says that the
caller waits at once, so that the call may run on the caller's thread before the method returns.
"""

from dataclasses import field, replace
from datetime import timedelta
from typing import Any, TypeVar

from allhands import deadlines
from allhands.collectives.reduction import ReduceOp
from allhands.deadlines import Timeout
from allhands_proto.quick_dataclass import dataclass


@dataclass(slots=True)
class Options:
    """Options common to all methods."""

    timeout: Timeout | None = None
    asyncOp: bool = True
    label: str | None = None
    """A name of yours for the call, for people who look."""

    @property
    def seconds(self) -> float | None:
        return None if self.timeout is None else deadlines.to_seconds(self.timeout)


@dataclass(slots=True)
class BroadcastOptions(Options):
    rootRank: int = 0
    rootTensor: int = 0
    """Which of the root's arrays is given to all."""


@dataclass(slots=True)
class AllreduceOptions(Options):
    reduceOp: ReduceOp = ReduceOp.SUM


@dataclass(slots=True)
class AllreduceCoalescedOptions(AllreduceOptions):
    pass


@dataclass(slots=True)
class ReduceOptions(Options):
    reduceOp: ReduceOp = ReduceOp.SUM
    rootRank: int = 0
    rootTensor: int = 0


@dataclass(slots=True)
class AllgatherOptions(Options):
    pass


@dataclass(slots=True)
class GatherOptions(Options):
    rootRank: int = 0


@dataclass(slots=True)
class ScatterOptions(Options):
    rootRank: int = 0


@dataclass(slots=True)
class ReduceScatterOptions(Options):
    reduceOp: ReduceOp = ReduceOp.SUM


@dataclass(slots=True)
class AllToAllOptions(Options):
    pass


@dataclass(slots=True)
class BarrierOptions(Options):
    device_ids: list[int] = field(default_factory=list)
    """c10d's, for devices that need one; not used."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options a process group was made with, as `ProcessGroup.options`."""

    _timeout: timedelta


AnyOptions = TypeVar("AnyOptions", bound=Options)


def merge_options(
    kind: type[AnyOptions], opts: AnyOptions | None, **overrides: object
) -> AnyOptions:
    """Return the options of one call; `overrides` other than None take precedence.

    Raises:
        TypeError: `opts` is not of the class `kind`.
    """
    if opts is not None and not isinstance(opts, kind):
        raise TypeError(f"opts must be {kind.__name__}, not {type(opts).__name__}")
    said: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    if opts is None:
        return kind(**said)
    return replace(opts, **said) if said else opts
