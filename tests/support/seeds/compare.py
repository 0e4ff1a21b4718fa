"""The tests of the listings over Gloo and over allhands: a program for the record.

    python -m support.seeds.compare [--again TEST ...]

With `--again` only those are run; of the others stays what the record says.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from support.parity import rows
from support.pytorch_suite.record import BACKENDS
from support.pytorch_suite.suite_process import Outcome, SuiteProcess
from support.seeds import listing, record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", nargs="*", default=[], metavar="TEST")
    given = parser.parse_args()
    if not listing.is_there():
        raise SystemExit(listing.ABSENT)
    tests = listing.all_tests()
    asked = given.again or list(tests)
    with ThreadPoolExecutor() as both:
        gloo, ours = both.map(partial(_outcomes, asked), BACKENDS)
    found = record.read() if given.again else {}
    for test in asked:
        found[test] = record.ended(gloo[test], ours[test], rests_on_ours=tests[test])
    record.DOCUMENT.write_text(record.text(found[test] for test in tests))
    rows.refresh()


def _outcomes(tests: list[str], backend: str) -> dict[str, Outcome]:
    found = {}
    with closing(SuiteProcess(listing.program(backend))) as process:
        for test in tests:
            found[test] = ended = process.run_test(test)
            print(f"{backend}: {test}: {ended.outcome}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
