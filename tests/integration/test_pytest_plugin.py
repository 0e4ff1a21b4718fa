"""The pytest plugin: marked tests run on ranks, and fail, skip and are collected as usual."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Return a function to run tests in a separate session, with only this plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nfilterwarnings = error\n")

    def run(program: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile((PROGRAMS / program).read_text())
        plugin = ("-p", "allhands.pytest_plugin", "--strict-markers")
        return pytester.runpytest_inprocess(*plugin, *arguments)

    return run


def test_marked_tests_run_on_so_many_threads_with_the_fixtures_of_all(ran):
    ran("marked_tests.py").assert_outcomes(passed=5)


def test_failures_and_skips_of_a_rank_are_those_of_the_test(ran):
    result = ran("marked_failures.py")
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*rank 1 of 3 raised AssertionError: not here*"])
    result.stdout.fnmatch_lines(["*rank 1 of 2 raised PeerFailed: barrier*rank 0*left*"])


def test_wrong_uses_are_errors_that_say_what_to_do(ran):
    result = ran("marked_wrongly.py")
    result.assert_outcomes(errors=1, failed=1)
    result.stdout.fnmatch_lines(["*rank is for tests that are marked: @pytest.mark.ranks(4)*"])
    result.stdout.fnmatch_lines(["*ranks is for tests that are no coroutines*"])


def test_local_cluster_runs_functions_of_the_test_module_in_processes(ran):
    ran("clustered_tests.py").assert_outcomes(passed=1)
