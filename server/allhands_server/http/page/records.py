"""Flight reports of ranks as the page shows them: latest calls, current calls, stack."""

from google.protobuf.message import DecodeError

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.http.page.parts import Json
from allhands_server.machine.values import JobView, MemberReport

MOST_RANKS = 64
"""Whose reports one request collects."""
MOST_OPERATIONS = 64
"""Of each group and rank."""


def read_ranks(text: str) -> tuple[int, ...]:
    """Read ranks with commas between them.

    Raises:
        ValueError: it is none of that, or there are too many.
    """
    parts = text.split(",")
    if len(parts) > MOST_RANKS or not all(one.isascii() and one.isdigit() for one in parts):
        raise ValueError(f"give up to {MOST_RANKS} ranks, as in ranks=0,1,2")
    return tuple(sorted({int(one) for one in parts}))


def describe_reports(
    reports: tuple[MemberReport, ...], view: JobView, now: float, clock_offset: float
) -> Json:
    """Return reports with times of the wall clock; `clock_offset` is of the coordinator's clock."""
    offsets = {one.rank: one.clock_offset for one in view.members}
    return [_describe_report(one, offsets.get(one.rank), now, clock_offset) for one in reports]


def _describe_report(
    told: MemberReport, offset: float | None, now: float, clock_offset: float
) -> Json:
    report = wire.FlightReport()
    missing = told.missing_reason
    try:
        report = wire.FlightReport.FromString(told.report)
    except DecodeError:
        missing = "its report makes no sense here"
    # Without an estimate of its clock: as if the report had come at once.
    shift = now - report.now if offset is None else offset + clock_offset
    return {
        "rank": told.rank,
        "missing": missing,
        "isKnown": bool(told.report),
        "stack": report.stack,
        "calls": [_describe_call(one, shift) for one in report.operations],
    }


def _describe_call(record: wire.FlightRecord, shift: float) -> Json:
    where = f"{record.file}:{record.line}" if record.file else ""
    return {
        "group": record.group,
        "sequence": record.sequence,
        "operation": record.operation,
        "signature": record.signature,
        "nbytes": record.nbytes,
        "begun": _find_time(record.started or record.created, shift),
        "ended": _find_time(record.finished, shift),
        "outcome": record.outcome,
        "label": record.label,
        "source": f"{where} in {record.function}" if where and record.function else where,
        "waitsFor": [*record.waits_for],
    }


def _find_time(nanoseconds: int, shift: float) -> float | None:
    return round(nanoseconds / 1e9 + shift, 6) if nanoseconds else None
