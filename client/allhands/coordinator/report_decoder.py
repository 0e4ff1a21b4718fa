"""Decoding of the report of a rank."""

from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from allhands.coordinator.analysis import RankReport
from allhands.coordinator.section_codec import decode_sections, read_section
from allhands.recorder.record import OperationRecord
from allhands_proto.status_codec import decode_operation
from allhands_proto.v1 import coordinator_pb2 as wire


def decode(data: bytes, max_per_group: int | None = None) -> RankReport | None:
    """Decode a report, with `max_per_group` operations of each group; None: malformed."""
    try:
        report = wire.FlightReport.FromString(data)
    except DecodeError:
        return None
    return RankReport(
        now=report.now,
        progress=tuple(map(decode_operation, report.progress)),
        operations=tuple(map(_decode_record, _keep_latest(report.operations, max_per_group))),
        stack=report.stack,
        is_cut=report.is_cut,
        section=read_section(report),
        sections=decode_sections(report.sections),
    )


def _keep_latest(
    operations: Sequence[wire.FlightRecord], max_per_group: int | None
) -> Sequence[wire.FlightRecord]:
    """Leave out all but the latest operations of each group."""
    if max_per_group is None:
        return operations
    seen: Counter[str] = Counter()
    kept = []
    for one in reversed(operations):
        seen[one.group] += 1
        if seen[one.group] <= max_per_group:
            kept.append(one)
    return kept[::-1]


def _decode_record(message: wire.FlightRecord) -> OperationRecord:
    return OperationRecord(
        group=message.group,
        sequence=message.sequence,
        operation=message.operation,
        nbytes=message.nbytes,
        signature=message.signature,
        created=message.created,
        started=message.started,
        finished=message.finished,
        outcome=message.outcome,
        label=message.label,
        file=message.file,
        line=message.line,
        function=message.function,
        how=message.how,
        waits_for=tuple(message.waits_for),
    )
