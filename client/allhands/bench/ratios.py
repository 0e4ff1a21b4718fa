"""Ratios between the rows of one case. Pure.

A peer's row is compared with each row of allhands in the same form; where all forms do the same,
with the first form, and so are the other forms of allhands itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allhands.bench.case import ALTERNATIVES, FORMS
from allhands.bench.overlap import compute_hidden
from allhands.bench.systems import ALLHANDS, MPI

Row = dict[str, Any]
"""One result, as it stands in the JSON."""


def name_contender(system: str, form: str) -> str:
    """Return the name of a column."""
    return f"{system} {form}" if form else system


def get_system(contender: str) -> str:
    return contender.partition(" ")[0]


def is_own(contender: str) -> bool:
    return get_system(contender) in ALLHANDS


def add_ratios(rows: Sequence[Row]) -> None:
    """Add to each row of a case by which factor it takes longer than those it is compared with."""
    own = [row for row in rows if is_own(row["contender"]) and "median" in row]
    for row in rows:
        others = [one for one in own if _is_compared(row, one)]
        if "median" in row and others:
            row["ratios"] = {one["contender"]: row["median"] / one["median"] for one in others}


def add_hidden(rows: Sequence[Row]) -> None:
    """Add to each overlapped call which part of it, or of the product beside, was hidden."""
    medians: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["operation"] == "overlap_all_reduce" and "median" in row:
            medians.setdefault(get_system(row["contender"]), {})[row["form"]] = row["median"]
    for row in rows:
        known = medians.get(get_system(row["contender"]), {})
        if row["form"] == "overlapped" and len(known) == len(FORMS["overlap_all_reduce"]):
            row["hidden"] = compute_hidden(known)


def _is_compared(row: Row, own: Row) -> bool:
    operation = row["operation"]
    if operation not in ALTERNATIVES:
        return not is_own(row["contender"]) and row["form"] == own["form"]
    if own["form"] != FORMS[operation][0]:
        return False
    same = get_system(row["contender"]) == get_system(own["contender"])
    return row["form"] != own["form"] if same else not is_own(row["contender"])


def list_comparisons(contenders: Sequence[str], operation: str) -> dict[str, list[str]]:
    """Return the columns of ratios: a title, and the contenders of which the fastest counts.

    All are compared with the first kind of allhands; MPIs share a column.
    """
    if (base := find_base(contenders)) is None:
        return {}
    found: dict[str, list[str]] = {}
    for one in contenders:
        system = get_system(one)
        if one == base or (is_own(one) and operation not in ALTERNATIVES):
            continue
        kind = one if is_own(one) else "MPI" if system in MPI else system
        found.setdefault(kind, []).append(one)
    return {
        f"{kind if len(names) > 1 else names[0]} / {base}": names for kind, names in found.items()
    }


def find_base(contenders: Iterable[str]) -> str | None:
    return next((one for one in contenders if is_own(one)), None)


def find_ratio(cell: Mapping[str, Row], names: Sequence[str], base: str) -> float | None:
    """Return by which factor the fastest of these takes longer than the base; None: unknown."""
    known = [cell.get(name, {}).get("ratios", {}).get(base) for name in names]
    return min((one for one in known if one is not None), default=None)
