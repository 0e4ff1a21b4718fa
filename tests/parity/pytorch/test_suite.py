"""PyTorch's own tests of its collectives pass over allhands wherever Gloo passes."""

from collections.abc import Iterator

import pytest

from support.pytorch_suite import record
from support.pytorch_suite.suite_process import RUNS, Run, SuiteProcess, start_process

JUDGED = (RUNS[0], RUNS[-1])
"""Each test is in the last; the first is as PyTorch runs them."""
CASES = [
    (run, test)
    for run in JUDGED
    for test, verdicts in record.read().items()
    if verdicts["allhands"][RUNS.index(run)] == "pass"
]


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[Run, SuiteProcess]]:
    """Return the processes of the tests, started on demand."""
    made: dict[Run, SuiteProcess] = {}
    yield made
    for one in made.values():
        one.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("run", "test"), CASES, ids=[f"{run.gates}-{run.world_size}-{test}" for run, test in CASES]
)
def test_what_passed_passes_again(run: Run, test: str, processes: dict[Run, SuiteProcess]) -> None:
    if run not in processes:
        processes[run] = start_process("allhands", run)
    ended = processes[run].run_test(test)
    assert ended.outcome == "pass", ended.why
