"""Collection of flight reports from a world's members, within a time limit.

The reports themselves are bytes that pass through; their sizes are limited before they come.
"""

from collections.abc import Mapping
from dataclasses import field

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.effects import Answer, CollectReport, Effect, Push
from allhands_server.machine.member_messages import ReportPart
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import CollectReports
from allhands_server.machine.values import MemberReport
from allhands_server.machine.world.member import Member

COLLECT_SECONDS = 2.0
"""Time limit of a collection."""
LARGEST_REPORT = 1 << 20
LARGEST_COLLECTION = 64 << 20
MOST_AT_ONCE = 4
"""Collections of one world under way."""
MOST_OPERATIONS = 1 << 20

_SILENT = f"it did not answer within {COLLECT_SECONDS:g} s"


@dataclass(slots=True)
class _Collection:
    ticket: int
    nbytes: int
    """Of each report, at most."""
    missing: set[int]
    wanted: frozenset[int]
    """Empty: all ranks."""
    coming: dict[int, bytearray] = field(default_factory=dict)
    reports: dict[int, MemberReport] = field(default_factory=dict)


class ReportCollections:
    """Pending collections of one world."""

    def __init__(
        self, job: str, members: Mapping[int, Member], present: Mapping[int, Member]
    ) -> None:
        """Take the job's name and the world's members by rank: all, and those present."""
        self._job = job
        self._members = members
        self._present = present
        self._numbers = 0
        self._collections: dict[int, _Collection] = {}  # by number

    def submit(self, ticket: int, request: CollectReports) -> list[Effect]:
        """Ask the present members among the wanted; the last report answers, or `expire`.

        Raises:
            Refused: too many ask already.
        """
        if len(self._collections) >= MOST_AT_ONCE:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"{MOST_AT_ONCE} others collect the reports of job {self._job} already: "
                "ask again in some seconds",
            )
        wanted = frozenset(request.ranks)
        asked = [
            one
            for one in self._present.values()
            if one.is_reachable and (not wanted or one.rank in wanted)
        ]
        nbytes = min(LARGEST_REPORT, LARGEST_COLLECTION // max(len(asked), 1))
        collection = _Collection(ticket, nbytes, {one.rank for one in asked}, wanted)
        if not asked:
            return [self._answer(collection)]
        self._numbers += 1
        self._collections[self._numbers] = collection
        operations = max(1, min(request.operations, MOST_OPERATIONS))
        told = CollectReport(self._numbers, operations, nbytes)
        return [Push(one.session, told) for one in asked]

    def add_part(self, member: Member, part: ReportPart) -> list[Effect]:
        """Add a piece of a member's report, if still awaited."""
        rank, collection = member.rank, self._collections.get(part.number)
        if collection is None or rank not in collection.missing:
            return []
        data = collection.coming.setdefault(rank, bytearray())
        if len(data) + len(part.data) > collection.nbytes:
            return self._finish_rank(
                part.number, rank, MemberReport(rank, b"", "its report is too large")
            )
        data += part.data
        if not part.is_last:
            return []
        return self._finish_rank(part.number, rank, MemberReport(rank, bytes(data)))

    def expire(self, ticket: int, now: float) -> Effect:
        """Answer with the reports received so far."""
        number = next(at for at, one in self._collections.items() if one.ticket == ticket)
        return self._answer(self._collections.pop(number))

    def cancel(self, ticket: int) -> None:
        """Drop the collection of a ticket. Idempotent."""
        for number in [at for at, one in self._collections.items() if one.ticket == ticket]:
            del self._collections[number]

    def _finish_rank(self, number: int, rank: int, report: MemberReport) -> list[Effect]:
        collection = self._collections[number]
        collection.missing.discard(rank)
        collection.coming.pop(rank, None)
        collection.reports[rank] = report
        if collection.missing:
            return []
        return [self._answer(self._collections.pop(number))]

    def _answer(self, collection: _Collection) -> Answer:
        reports = [
            collection.reports.get(rank)
            or MemberReport(rank, _get_kept_report(member), _explain_missing(member))
            for rank, member in sorted(self._members.items())
            if not collection.wanted or rank in collection.wanted
        ]
        return Answer(collection.ticket, tuple(reports))


def _get_kept_report(member: Member) -> bytes:
    return b"" if member.is_present else member.report


def _explain_missing(member: Member) -> str:
    if member.is_reachable:
        return _SILENT
    if member.is_present:
        return "its session broke"
    return f"it is {member.presence.value}" + (f": {member.reason}" if member.reason else "")
