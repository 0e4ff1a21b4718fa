"""The limits of a coordinator, and how much is used of each."""

from collections.abc import Sequence

from allhands.coordinator.request_calls import RequestCalls
from allhands.coordinator.sections import Section, Table
from allhands.deadlines import Timeout
from allhands.escapes import escape_line
from allhands.tracebacks import trims_tracebacks
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit; `memory` and those of sizes are in bytes, those of rates in calls a second."""

    name: str
    """As `allhands serve --limit` takes it."""
    most: int
    """0: not limited."""
    used: int | None
    """By the job that uses most; None: it is of each connection or value, and not counted."""
    job: str
    """That job; empty: no job, or one that the caller may not know of."""


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """All limits of a coordinator."""

    limits: tuple[LimitStatus, ...]
    """Empty: an older coordinator."""
    resident_bytes: int
    """Memory of its process; 0: not known."""


@trims_tracebacks
class LimitCalls(RequestCalls):
    """Calls of a client about limits."""

    def limits(self, *, timeout: Timeout | None = None) -> CoordinatorLimits:
        """Return the coordinator's limits, with how much is used of each.

        Of several daemons those of the one that was asked: a daemon that follows uses nothing.
        """
        request = wire.DescribeCoordinatorRequest(with_limits=True)
        found = self._call(
            self._calls.DescribeCoordinator, request, "list the limits of the coordinator", timeout
        )
        limits = (
            LimitStatus(
                escape_line(one.name),
                one.most,
                one.used if one.HasField("used") else None,
                escape_line(one.job),
            )
            for one in found.limits
        )
        return CoordinatorLimits(tuple(limits), found.resident_bytes)


def describe_limits(found: CoordinatorLimits) -> Sequence[Section]:
    """Return a table of the limits, for people."""
    table = Table(("LIMIT", "left"), ("MOST", "right"), ("USED", "right"), ("BY", "left"))
    for one in found.limits:
        table.add_row(
            one.name,
            f"{one.most:,}" if one.most else "-",
            "" if one.used is None else f"{one.used:,}",
            f"job {one.job}" if one.job else "",
        )
    return table, f"the process has {found.resident_bytes / _MIB:,.0f} MiB of memory"
