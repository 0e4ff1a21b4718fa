"""Traces of a job's recorded operations, in the format of Perfetto and Chrome."""

from collections.abc import Iterable, Mapping
from typing import Any

from allhands.recorder.record import OperationRecord
from allhands.runtime.sections import SectionRecord

_MESSAGES = "messages"
"""The row of a group for what is point to point, whose operations overlap."""
_SECTIONS = "sections"
"""The rows of a rank's sections, one a thread."""


def make_trace(
    ranks: Mapping[int, tuple[float, float, Iterable[OperationRecord]]],
    names: Mapping[int, str],
    sections: Mapping[int, Iterable[SectionRecord]] | None = None,
) -> dict[str, Any]:
    """Return a document of the trace event format, which is JSON.

    Args:
        ranks: for each rank, what to add to its clock to get one for all, when it told of its
            operations by its own clock, both in seconds, and the operations.
        names: how to call each rank.
        sections: those of each rank's program, by its own clock; None: of none.
    """
    events: list[dict[str, Any]] = []
    sections = sections or {}
    starts = [
        started / 1e9 + offset
        for rank, (offset, _, records) in ranks.items()
        for started in (
            *(one.started for one in records if one.started),
            *(one.started for one in sections.get(rank, ())),
        )
    ]
    begin = min(starts, default=0.0)
    for rank, (offset, now, records) in sorted(ranks.items()):
        events.append(_make_metadata("process_name", rank, 0, names.get(rank, f"rank {rank}")))
        events.append(
            {
                "ph": "M",
                "name": "process_sort_index",
                "pid": rank,
                "tid": 0,
                "args": {"sort_index": rank},
            }
        )
        rows: dict[str, int] = {}
        for one in records:
            if not one.started:
                continue
            row = one.group if one.sequence else f"{one.group} {_MESSAGES}"
            if row not in rows:
                rows[row] = len(rows) + 1
                events.append(_make_metadata("thread_name", rank, rows[row], row))
            events.append(_make_event(one, rank, rows[row], (offset, begin), now))
        for section in sorted(sections.get(rank, ()), key=lambda one: one.started):
            row = f"{_SECTIONS} of {section.thread}"
            if row not in rows:
                rows[row] = len(rows) + 1
                events.append(_make_metadata("thread_name", rank, rows[row], row))
            events.append(_make_section(section, rank, rows[row], (offset, begin), now))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _make_metadata(what: str, rank: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}


def _make_section(
    section: SectionRecord, rank: int, row: int, shift: tuple[float, float], now: float
) -> dict[str, Any]:
    """Return the complete event of a section; one that is not left yet lasts until `now`."""
    offset, begin = shift
    started = section.started / 1e9 + offset - begin
    finished = (section.finished / 1e9 if section.finished else now) + offset - begin
    return {
        "ph": "X",
        "name": section.name,
        "cat": _SECTIONS,
        "pid": rank,
        "tid": row,
        "ts": round(started * 1e6, 3),
        "dur": round(max(finished - started, 0.0) * 1e6, 3),
        "args": {"outcome": "" if section.finished else "running"},
    }


def _make_event(
    record: OperationRecord, rank: int, row: int, shift: tuple[float, float], now: float
) -> dict[str, Any]:
    """Return the complete event of an operation; one still running lasts until `now`."""
    offset, begin = shift
    # Whole microseconds would make calls of less than one vanish.
    started = record.started / 1e9 + offset - begin
    finished = (record.finished / 1e9 if record.finished else now) + offset - begin
    name = f"{record.operation} #{record.sequence}" if record.sequence else record.operation
    return {
        "ph": "X",
        "name": name,
        "cat": record.group,
        "pid": rank,
        "tid": row,
        "ts": round(started * 1e6, 3),
        "dur": round(max(finished - started, 0.0) * 1e6, 3),
        "args": {
            "signature": record.signature,
            "bytes": record.nbytes,
            "label": record.label,
            "source": record.source,
            "file": record.file,
            "outcome": record.outcome,
            "how": record.how,
            "queued_us": round((record.started - record.created) / 1e3, 3),
            "sequence": record.sequence,
        },
    }
