"""Traces of a job's recorded operations, in the format of Perfetto and Chrome."""

from collections.abc import Iterable, Mapping
from typing import Any

from allhands.recorder.record import OperationRecord

_MESSAGES = "messages"
"""The row of a group for what is point to point, whose operations overlap."""


def make_trace(
    ranks: Mapping[int, tuple[float, float, Iterable[OperationRecord]]],
    names: Mapping[int, str],
) -> dict[str, Any]:
    """Return a document of the trace event format, which is JSON.

    Args:
        ranks: for each rank, what to add to its clock to get one for all, when it told of its
            operations by its own clock, both in seconds, and the operations.
        names: how to call each rank.
    """
    events: list[dict[str, Any]] = []
    begin = min(
        (
            one.started / 1e9 + offset
            for offset, _, records in ranks.values()
            for one in records
            if one.started
        ),
        default=0.0,
    )
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
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _make_metadata(what: str, rank: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}


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
