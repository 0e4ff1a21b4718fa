"""mpi4py's own tests over allhands: a file on so many ranks is a test; run by `make test-mpi`."""

import pytest

from support.mpi_suite.reasons import find_reason
from support.mpi_suite.runs import ALLHANDS, run_file
from support.mpi_suite.source import fetch, list_files

pytestmark = pytest.mark.timeout(600)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("name", list_files(fetch()))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_pass_but_what_is_listed(name: str, ranks: int) -> None:
    run = run_file(fetch(), name, ranks, ALLHANDS)
    failed = {
        test: outcome.error
        for test, outcome in run.outcomes.items()
        if outcome.status in ("failed", "hung") and not find_reason(test)
    }
    assert not failed
