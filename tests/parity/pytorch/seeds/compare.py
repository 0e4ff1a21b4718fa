"""The tests of the listings over Gloo and over allhands: a program that writes the record.

    python -m parity.pytorch.seeds.compare [--again TEST ...]

With `--again` only those are run; of the others stays what the record says.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import parity_rows
from parity.pytorch.court import Court, Outcome
from parity.pytorch.record import BACKENDS
from parity.pytorch.seeds import listing, record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", nargs="*", default=[], metavar="TEST")
    given = parser.parse_args()
    if not listing.is_there():
        raise SystemExit(listing.ABSENT)
    tests = listing.all_tests()
    asked = given.again or list(tests)
    with ThreadPoolExecutor() as both:
        gloo, ours = both.map(partial(_judged, asked), BACKENDS)
    found = record.read() if given.again else {}
    for test in asked:
        found[test] = record.ended(gloo[test], ours[test], rests_on_ours=tests[test])
    record.DOCUMENT.write_text(record.text(found[test] for test in tests))
    parity_rows.refresh()


def _judged(tests: list[str], backend: str) -> dict[str, Outcome]:
    found = {}
    with closing(Court(listing.program(backend))) as judge:
        for test in tests:
            found[test] = ended = judge.judge(test)
            print(f"{backend}: {test}: {ended.outcome}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
