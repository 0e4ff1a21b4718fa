"""The record of runs of PyTorch's own tests: docs/pytorch_suite.md, which is written and read."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.pytorch_suite.failure_causes import cause
from support.pytorch_suite.suite_process import ROOT, RUNS, Outcome

DOCUMENT = ROOT / "docs" / "pytorch_suite.md"
BACKENDS = ("gloo", "allhands")
MARKS = {"pass": "✓", "fail": "✗", "skip": "·"}

Verdicts = dict[str, tuple[str, ...]]
"""Of a test, for each backend: how it ended in each of `RUNS`."""


@dataclass
class Record:
    """The outcome of every test; `tried_again` are tests with a failure at first."""

    outcomes: dict[str, dict[str, list[Outcome]]] = field(default_factory=dict)
    """By backend and test, in the order of `RUNS`."""
    tried_again: list[str] = field(default_factory=list)


def read() -> dict[str, Verdicts]:
    """Return the outcomes of all tests from the document."""
    word = {mark: outcome for outcome, mark in MARKS.items()}
    found: dict[str, Verdicts] = {}
    for name, gloo, ours in re.findall(
        r"^\| `(test_\w+)` \| (.{7}) \| (.{7}) \|$", DOCUMENT.read_text(), re.MULTILINE
    ):
        found[name] = {
            backend: tuple(word[mark] for mark in marks.split())
            for backend, marks in zip(BACKENDS, (gloo, ours), strict=True)
        }
    return found


def unexplained() -> list[str]:
    """Return the document's failed tests without a known cause."""
    return re.findall(r"^\| `(test_\w+)` \|.*\| \? ", DOCUMENT.read_text(), re.MULTILINE)


def text(record: Record) -> str:
    """Return the document."""
    gloo, ours = (record.outcomes[backend] for backend in BACKENDS)
    beyond = [one for one in ours if _passes(ours[one]) - _passes(gloo[one])]
    behind = [one for one in ours if _passes(gloo[one]) - _passes(ours[one])]
    failed = [one for one in ours if any(run.outcome == "fail" for run in ours[one])]
    return "\n".join(
        [
            *_HEAD,
            *_summary(record.outcomes),
            "",
            "## Behind Gloo",
            "",
            *_listed(behind, "No test passes over Gloo and not over allhands."),
            "",
            "## Beyond Gloo",
            "",
            "Tests that pass over allhands and not over Gloo:",
            "",
            "| test | why not over Gloo |",
            "|---|---|",
            *(f"| `{one}` | {_why(gloo[one])} |" for one in beyond),
            "",
            "## What does not pass",
            "",
            "| test | Gloo | allhands | cause |",
            "|---|---|---|---|",
            *(
                f"| `{one}` | {_marks(gloo[one])} | {_marks(ours[one])} | {_why(ours[one])} |"
                for one in failed
            ),
            "",
            "## What is not run",
            "",
            "Also where gates are widened:",
            "",
            *_skipped(ours),
            "",
            "## Passed when tried again",
            "",
            *_listed(record.tried_again, "Every test that passes did so at first."),
            "",
            "## Every test",
            "",
            f"In this order: {'; '.join(map(str, RUNS))}.",
            "",
            "| test | Gloo | allhands |",
            "|---|---|---|",
            *(f"| `{one}` | {_marks(gloo[one])} | {_marks(ours[one])} |" for one in ours),
            "",
        ]
    )


_HEAD = [
    "# PyTorch's own tests, over Gloo and over allhands",
    "",
    "`DistributedTest` of `torch.testing._internal.distributed.distributed_test`, as it is in the",
    "wheel of torch 2.13.0, run by `tests/parity/pytorch`; written by `make table-torch`. Tests",
    "stand behind gates that name backends:",
    "",
    "- **stock**: the gates as they are for Gloo, for which allhands passes.",
    "- **widened**: also those for MPI, NCCL, GPUs and worlds of eight ranks are open. Tensors",
    "  that tests put on a GPU are on the processor; DDP is told of no devices. Tests that PyTorch",
    "  has switched off on Linux are on.",
    "",
    "✓ passed, ✗ failed, · skipped. Both backends were run at the same time, on one machine.",
    "",
]


def _summary(outcomes: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> list[str]:
    lines = ["| run | Gloo ✓ | · | ✗ | seconds | allhands ✓ | · | ✗ | seconds |", "|---" * 9 + "|"]
    for at, run in enumerate(RUNS):
        cells = [str(run)]
        for backend in BACKENDS:
            ended = [runs[at] for runs in outcomes[backend].values()]
            count = Counter(one.outcome for one in ended)
            cells += [str(count[one]) for one in ("pass", "skip", "fail")]
            cells.append(f"{sum(one.seconds for one in ended):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _passes(runs: Sequence[Outcome]) -> set[int]:
    return {at for at, one in enumerate(runs) if one.outcome == "pass"}


def _marks(runs: Sequence[Outcome]) -> str:
    return " ".join(MARKS[one.outcome] for one in runs)


def _why(runs: Sequence[Outcome]) -> str:
    """Return the cause of the last failure, or of not being run."""
    failed = [one for one in runs if one.outcome == "fail"]
    if failed:
        return cause(failed[-1].why)
    return next(f"not run: {one.why}" for one in runs if one.outcome == "skip")


def _skipped(tests: Mapping[str, Sequence[Outcome]]) -> list[str]:
    reasons = defaultdict(list)
    for name, runs in tests.items():
        if all(one.outcome == "skip" for one in runs):
            reasons[runs[-1].why].append(f"`{name}`")
    lines = [f"| {why} | {', '.join(names)} |" for why, names in sorted(reasons.items())]
    return ["| reason given | tests |", "|---|---|", *lines]


def _listed(tests: Sequence[str], none: str) -> list[str]:
    return [f"- `{one}`" for one in tests] or [none]
