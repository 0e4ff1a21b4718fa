"""The comparison of allhands with Gloo, test by test: a program that writes the record.

    python -m parity.pytorch.compare [--only TEST ...]

Both backends have their turn at the same time, in a process each.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import repeat

from parity.pytorch.court import RUNS, Court, Outcome, Run, all_tests
from parity.pytorch.record import BACKENDS, DOCUMENT, Record, text

_TRIES = 3
"""A machine that does other things makes tests fail that have deadlines."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", metavar="TEST", help="these, and write nothing")
    given = parser.parse_args()
    record = compare(given.only or all_tests())
    if given.only is None:
        DOCUMENT.write_text(text(record))
    else:
        print(text(record))


def compare(tests: list[str]) -> Record:
    """Run tests in all ways over all backends."""
    record = Record({backend: {one: [] for one in tests} for backend in BACKENDS})
    for run in RUNS:
        with ThreadPoolExecutor() as both:
            for backend, (ended, again) in zip(
                BACKENDS, both.map(_judged, BACKENDS, repeat(run), repeat(tests)), strict=True
            ):
                for one in ended:
                    record.outcomes[backend][one.test].append(one)
                record.tried_again += [f"{one} ({backend}, {run})" for one in again]
    return record


def _judged(backend: str, run: Run, tests: list[str]) -> tuple[list[Outcome], list[str]]:
    ended, again = [], []
    with closing(Court(backend, run)) as court:
        for test in tests:
            tries = 1
            while (one := court.judge(test)).outcome == "fail" and tries < _TRIES:
                tries += 1
            if tries > 1 and one.outcome == "pass":
                again.append(test)
            ended.append(one)
            print(f"{backend}, {run}: {test}: {one.outcome}", file=sys.stderr, flush=True)
    return ended, again


if __name__ == "__main__":
    main()
