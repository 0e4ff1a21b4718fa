"""Findings of an examination, and their form for people and programs."""

import enum
from collections import Counter
from collections.abc import Iterable, Sequence

from allhands.coordinator.sections import Marked, Section, Table
from allhands_proto.quick_dataclass import dataclass


class Level(enum.StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    status: Level
    what: str
    """Name of the check, stable."""
    detail: str
    fix: str = ""
    """What to do; empty: nothing."""


def ok(what: str, detail: str) -> Finding:
    return Finding(Level.OK, what, detail)


def warn(what: str, detail: str, fix: str) -> Finding:
    return Finding(Level.WARN, what, detail, fix)


def fail(what: str, detail: str, fix: str) -> Finding:
    return Finding(Level.FAIL, what, detail, fix)


def skip(what: str, detail: str, fix: str = "") -> Finding:
    return Finding(Level.SKIP, what, detail, fix)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether a finding is a failure; warnings are none."""
    return any(one.status is Level.FAIL for one in findings)


def _mark(status: Level) -> str:
    match status:
        case Level.FAIL:
            return Marked(status.value, "bad")
        case Level.WARN:
            return Marked(status.value, "late")
        case _:
            return status.value


def describe_findings(findings: Sequence[Finding]) -> list[Section]:
    """Describe findings in a table, each fix below its finding, and count them."""
    table = Table(("STATUS", "left"), ("CHECK", "left"), ("DETAIL", "left"))
    for one in findings:
        table.add_row(_mark(one.status), one.what, one.detail)
        if one.fix:
            table.add_row("", "", f"-> {one.fix}")
    counts = Counter(one.status for one in findings)
    return [table, ", ".join(f"{counts[level]} {level.value}" for level in Level)]
