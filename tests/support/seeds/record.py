"""The record of runs of the listings' tests: docs/seeds.md, which is written and read."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from support.pytorch_suite.failure_causes import cause
from support.pytorch_suite.record import MARKS
from support.pytorch_suite.suite_process import ROOT, Outcome
from support.seeds.listing import LISTINGS
from support.seeds.rows import by_row

DOCUMENT: Final = ROOT / "docs" / "seeds.md"
LOST: Final = "†"
_WORDS: Final = {mark: outcome for outcome, mark in MARKS.items()}


@dataclass(frozen=True)
class Ended:
    """How a test ended over each backend."""

    test: str
    rests_on_ours: bool
    """Whether it calls helpers that its listing lacks."""
    gloo: str
    allhands: str
    note: str
    """Why it does not pass over allhands, or over Gloo alone; empty: it passes."""

    def __str__(self) -> str:
        letter, _, name = self.test.split(".")
        mark = MARKS[self.allhands] + LOST * self.rests_on_ours
        why = f": {self.note}" if self.allhands != "pass" else ""
        return f"{mark} {letter} `{name}`{why}"


def read() -> dict[str, Ended]:
    """Return the outcomes of all tests from the document."""
    found = {}
    lines = re.findall(
        r"^\| `([GTJFK]\.\S+)`( †)? \| (.) \| (.) \| (.*) \|$",
        DOCUMENT.read_text(),
        re.MULTILINE,
    )
    for test, lost, gloo, ours, note in lines:
        found[test] = Ended(test, bool(lost), _WORDS[gloo], _WORDS[ours], note)
    return found


def cells() -> dict[int, str]:
    """Return the cell of the parity table of each row in the listings."""
    record = read()
    return {
        row: "<br>".join(str(record[test]) for test in tests)
        for row, tests in by_row(record).items()
    }


def counts() -> str:
    """Return in a sentence how many tests pass, are skipped and fail."""
    record = read().values()
    told = []
    for name, backend in (("allhands", "allhands"), ("Gloo", "gloo")):
        count = Counter(getattr(one, backend) for one in record)
        told.append(
            f"over {name} {count['pass']} pass, {count['skip']} are skipped, {count['fail']} fail"
        )
    return f"Of {len(record)} tests of the seeds, {'; '.join(told)}."


def unexplained() -> list[str]:
    """Return the failing tests without a known cause."""
    return [one.test for one in read().values() if one.note.startswith("? ")]


def text(tests: Iterable[Ended]) -> str:
    """Return the document."""
    lines = defaultdict(list)
    for one in tests:
        lost = f" {LOST}" if one.rests_on_ours else ""
        lines[one.test[0]].append(
            f"| `{one.test}`{lost} | {MARKS[one.gloo]} | {MARKS[one.allhands]} | {one.note} |"
        )
    parts = [*_HEAD]
    for letter, name in LISTINGS.items():
        parts += ["", f"## {letter}: {name}", "", "| test | Gloo | allhands | why not |"]
        parts += ["|---|---|---|---|", *lines[letter]]
    return "\n".join(parts) + "\n"


def ended(gloo: Outcome, ours: Outcome, *, rests_on_ours: bool) -> Ended:
    """Return how a test ended over both backends."""
    if ours.outcome != "pass":
        note = _why(ours)
    elif gloo.outcome != "pass":
        note = f"over Gloo: {_why(gloo)}"
    else:
        note = ""
    return Ended(ours.test, rests_on_ours, gloo.outcome, ours.outcome, note)


def _why(one: Outcome) -> str:
    return one.why if one.outcome == "skip" else cause(one.why)


_HEAD: Final = [
    "# PyTorch's tests of process groups, from the seeds",
    "",
    "The seeds are listings: five modules of PyTorch's tests of process groups, as text in",
    "documents. They are no part of this project and do not come with it. Where they are missing,",
    "`make test-torch` skips their tests, and this record of the last run over Gloo and allhands",
    "stands; where they are, `make table-seeds` writes it anew. [parity.md](parity.md) has the",
    "tests by row.",
    "",
    "The bodies of the tests run as they stand (`tests/parity/pytorch/seeds`). In front of them,",
    "`tests/support/seeds` names the backend instead of Gloo, the threaded or the fake one",
    "(`listing.py`), and restores what a listing has lost (`repairs.py`): heads of functions,",
    "indentation, decorators.",
    "",
    "✓ passed, ✗ failed, · skipped. † calls a helper that the listing lacks; a helper of this",
    "project stands in (`missing_helpers.py`).",
    "",
]
