"""Encoding of a rank's report, in parts, for diagnoses of a job."""

import time
from collections.abc import Sequence

from allhands.coordinator.section_codec import encode_sections, write_section
from allhands.recorder.record import OperationRecord
from allhands.runtime.sections import SectionReader
from allhands_proto.v1 import coordinator_pb2 as wire

PART_BYTES = 64 << 10
"""Of one message: heartbeats go between them."""
_OVERHEAD_BYTES = 64
"""Bytes of what comes around the operations but for the stack and the progress."""

_SECTIONS_SHARE = 4
"""Part of the room, as a divisor, that sections may take."""


def encode(
    records: Sequence[OperationRecord],
    progress: Sequence[wire.Progress],
    stack: str,
    nbytes: int,
    sections: SectionReader | None = None,
) -> bytes:
    """Serialise a report into so many bytes at most; where it is too long the oldest are left out.

    Even the stack, where there is no room for it. Sections take a quarter of the room at most.
    """
    report = wire.FlightReport(now=time.monotonic(), progress=progress, stack=stack)
    if sections is not None:
        write_section(report, sections.find_current())
        room = (nbytes - report.ByteSize()) // _SECTIONS_SHARE
        report.sections.extend(encode_sections(sections.list_records(), room))
    room = nbytes - report.ByteSize() - _OVERHEAD_BYTES
    if room < 0:
        report.ClearField("stack")
        report.is_cut = True
        room = nbytes - report.ByteSize() - _OVERHEAD_BYTES
    told: list[wire.FlightRecord] = []
    for one in reversed(records):
        message = _encode_record(one)
        size = message.ByteSize()
        room -= size + 1 + (1 if size < 128 else 3)
        if room < 0:
            report.is_cut = True
            break
        told.append(message)
    report.operations.extend(reversed(told))
    return report.SerializeToString()


def split_report(number: int, report: bytes) -> list[wire.ReportPart]:
    """Cut a serialised report into messages."""
    starts = range(0, len(report), PART_BYTES) if report else [0]
    return [
        wire.ReportPart(
            id=number,
            data=report[start : start + PART_BYTES],
            is_last=start + PART_BYTES >= len(report),
        )
        for start in starts
    ]


def _encode_record(record: OperationRecord) -> wire.FlightRecord:
    return wire.FlightRecord(
        group=record.group,
        sequence=record.sequence,
        operation=record.operation,
        nbytes=record.nbytes,
        signature=record.signature,
        created=record.created,
        started=record.started,
        finished=record.finished,
        outcome=record.outcome,
        label=record.label,
        file=record.file,
        line=record.line,
        function=record.function,
        how=record.how,
        waits_for=record.waits_for,
    )
