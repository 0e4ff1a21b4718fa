"""Reports of the ranks of a job, as a client collects them."""

from collections.abc import Iterable, Mapping

from allhands.coordinator import report_decoder
from allhands.coordinator.analysis import RankReport
from allhands.coordinator.job_codec import read_job
from allhands.coordinator.status import JobStatus
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.status_codec import decode_waits
from allhands_proto.statuses import GroupWaits
from allhands_proto.v1 import coordinator_pb2 as wire


@dataclass(frozen=True, slots=True)
class JobReports:
    """Reports of the ranks of a job, and the reasons for missing ones.

    A lost or departed rank's report is the last one, made at its failure or departure.
    """

    job: JobStatus
    reports: Mapping[int, RankReport]
    missing: Mapping[int, str]
    """Of ranks of which there is no report."""
    waits: tuple[GroupWaits, ...] = ()
    """By group; empty: nothing was measured, or the daemon is older."""


def read_reports(replies: Iterable[wire.CollectReportsReply], operations: int) -> JobReports:
    """Read the replies of one request, with `operations` of each group."""
    job: JobStatus | None = None
    reports: dict[int, RankReport] = {}
    absences: dict[int, str] = {}
    waits: tuple[GroupWaits, ...] = ()
    for reply in replies:
        rank = reply.report.rank
        if reply.HasField("job"):
            job = read_job(reply.job)
            waits = tuple(map(decode_waits, reply.job.waits))
        elif reply.report.missing_reason and not reply.report.report:
            absences[rank] = reply.report.missing_reason
        elif (report := report_decoder.decode(reply.report.report, operations)) is None:
            absences[rank] = "its report makes no sense here"
        else:
            reports[rank] = report
    assert job is not None  # it comes first
    return JobReports(job, reports, absences, waits)
