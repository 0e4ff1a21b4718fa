"""The pytest plugin: marked tests run on ranks, and fail, skip and are collected like any other."""

import pytest

pytest_plugins = ["pytester"]

# Test files as text: what the plugin makes of a file, also a wrong one, is what is tested.


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs tests in a separate session, with only this plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nfilterwarnings = error\n")

    def run(text: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        plugin = ("-p", "allhands.pytest_plugin", "--strict-markers")
        return pytester.runpytest_inprocess(*plugin, *arguments)

    return run


def test_marked_tests_run_on_so_many_threads_with_the_fixtures_of_all(ran):
    result = ran(
        """
        import threading
        import numpy as np, pytest
        import allhands as ah

        @pytest.fixture
        def seen():
            return {}

        @pytest.mark.ranks(4)
        @pytest.mark.parametrize("factor", [1, 3])
        def test_sum(rank, seen, factor):
            x = np.array([rank * factor])
            ah.all_reduce(x)
            assert x[0] == 6 * factor
            assert (ah.get_rank(), ah.get_world_size()) == (rank, 4)
            seen[rank] = threading.current_thread()
            ah.barrier()
            assert sorted(seen) == [0, 1, 2, 3]
            assert len(set(seen.values())) == 4

        @pytest.mark.ranks(2, init=False)
        def test_joins_by_itself():
            assert not ah.is_initialized()
            ah.init_process_group(backend="threads", timeout=5)
            assert ah.default_group().timeout == 5

        @pytest.mark.ranks(3, timeout=7)
        class TestAll:
            def test_options_are_those_of_joining(self):
                assert ah.default_group().timeout == 7

        def test_others_are_left_alone():
            assert not ah.is_initialized()
            assert threading.current_thread() is threading.main_thread()
        """
    )
    result.assert_outcomes(passed=5)


def test_failures_and_skips_of_a_rank_are_those_of_the_test(ran):
    result = ran(
        """
        import pytest
        import allhands as ah

        @pytest.mark.ranks(3)
        def test_fails(rank):
            assert rank != 1, "not here"
            ah.barrier()

        @pytest.mark.ranks(3)
        def test_skips(rank):
            if rank == 2:
                pytest.skip("not today")
            ah.barrier()

        @pytest.mark.ranks(2)
        def test_is_alone(rank):
            if rank == 1:
                ah.barrier()
        """
    )
    result.assert_outcomes(failed=2, skipped=1)
    result.stdout.fnmatch_lines(["*rank 1 of 3 raised AssertionError: not here*"])
    result.stdout.fnmatch_lines(["*rank 1 of 2 raised PeerFailed: barrier*rank 0*left*"])


def test_wrong_uses_are_errors_that_say_what_to_do(ran):
    result = ran(
        """
        import pytest

        def test_unmarked(rank):
            pass

        @pytest.mark.ranks(2)
        async def test_coroutine():
            pass
        """
    )
    result.assert_outcomes(errors=1, failed=1)
    result.stdout.fnmatch_lines(["*rank is for tests that are marked: @pytest.mark.ranks(4)*"])
    result.stdout.fnmatch_lines(["*ranks is for tests that are no coroutines*"])


def test_local_cluster_runs_functions_of_the_test_module_in_processes(ran):
    result = ran(
        """
        import os
        import allhands as ah

        def where():
            ah.barrier()
            return os.getpid()

        def test_processes(local_cluster):
            pids = local_cluster(2).run(where)
            assert len({os.getpid(), *pids}) == 3
        """
    )
    result.assert_outcomes(passed=1)
