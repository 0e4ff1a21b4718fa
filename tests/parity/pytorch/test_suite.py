"""PyTorch's own tests of its collectives pass over allhands wherever they do over Gloo."""

from collections.abc import Iterator

import pytest

from parity.pytorch import record
from parity.pytorch.court import RUNS, Court, Run, court

JUDGED = (RUNS[0], RUNS[-1])
"""Each test is in the last; the first is as PyTorch runs them."""
CASES = [
    (run, test)
    for run in JUDGED
    for test, verdicts in record.read().items()
    if verdicts["allhands"][RUNS.index(run)] == "pass"
]


@pytest.fixture(scope="module")
def courts() -> Iterator[dict[Run, Court]]:
    """Give the processes of the tests, which are started when they are needed."""
    made: dict[Run, Court] = {}
    yield made
    for one in made.values():
        one.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("run", "test"), CASES, ids=[f"{run.gates}-{run.world_size}-{test}" for run, test in CASES]
)
def test_what_passed_passes_again(run: Run, test: str, courts: dict[Run, Court]) -> None:
    if run not in courts:
        courts[run] = court("allhands", run)
    ended = courts[run].judge(test)
    assert ended.outcome == "pass", ended.why
