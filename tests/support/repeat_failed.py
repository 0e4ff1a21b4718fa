"""Repetition of the failed tests of the last run, each alone: `python -m support.repeat_failed`.

A test that fails beside others and passes three times alone depends on the host's load. That is a
fault of the test or of the code, to be mended, and printed as such; it says little about the change
under test. More than `MOST` failures are no accident, and are not repeated.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 8
TIMES = 3
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Repeat what failed last; return 0 if every repetition passed."""
    failed: list[str] = list(json.loads(_LAST_FAILED.read_text())) if _LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MOST:
        print(f"{len(failed)} tests failed: none is repeated (1 to {MOST} would be)")
        return 1
    for name in failed:
        for _ in range(TIMES):
            command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--exitfirst", name]
            if subprocess.run(command, check=False).returncode != 0:
                print(f"FAILED beside other tests, and alone: {name}")
                return 1
        print(f"UNSTABLE: failed beside other tests, passed {TIMES} times alone: {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
