"""The ways on which the rows of the native face are proven: threads, shared memory and links.

A test of a row that has ranks runs on threads of this process, which talk over queues, and on
processes of one host over the memory that they share; where its module says so by `WAYS`, or by
night, also on processes that talk over sockets.
"""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ranks.forking import ForkServer
from support.ranks.parameters import parametrized, places
from support.ranks.processes import Cluster
from support.ranks.rank_pool import RankPool

BACKENDS = {"shm": "shm", "links": "socket"}
"""What carries the calls of processes, by the way's name."""

WAYS = ("threads", "shm", pytest.param("links", marks=pytest.mark.nightly))

THREADS_ALONE = {
    "test_p043_calls_on_the_callers_thread_give_the_same": "it looks at what links alone do",
    "test_p047_a_monitored_barrier_tells_all_ranks_who_is_missing": "ranks share a barrier",
    "test_p047_a_monitored_barrier_that_may_take_no_time_says_so": "ranks share an event",
    "test_p057_rank_that_has_not_made_the_group_is_named": "ranks share an event",
    "test_p086_failing_hook_ends_the_step_and_leaves_the_gradients": "ranks share an event",
    "test_p090_every_rank_joins_last_with_even_inputs": "ranks share a list",
    "test_p094_keyword_arguments_reach_every_hook_unchanged": "ranks share a list",
    "test_p106_threads_make_a_world_and_groups_know_their_ranks": "it is about threads",
    "test_p106_threads_may_be_given_a_store_as_processes_are": "it is about threads",
    "test_p112_parts_are_split_again": "more ranks than a pool",
    "test_p112_split_by_color_and_key": "more ranks than a pool",
    "test_p113_mesh_has_a_group_along_each_dimension": "more ranks than a pool",
    "test_p113_mesh_is_flattened": "more ranks than a pool",
    "test_p113_mesh_is_sliced_by_name": "more ranks than a pool",
}
"""Tests of rows that need their ranks in one process, and why."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of rows with ranks on every route."""
    if _has_ranks(metafunc):
        ways = getattr(metafunc.module, "WAYS", WAYS)
        metafunc.parametrize("way", ways, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Carry out the test in a pool, unless meant for threads of this process."""
    pool = pyfuncitem.funcargs.get("way")
    if not isinstance(pool, RankPool):
        return None
    at = places(pyfuncitem.module, pyfuncitem.function, pyfuncitem.callspec.params)
    pool.run(pyfuncitem.path, pyfuncitem.originalname, at)
    return True


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest) -> object:
    """Yield the ranks of a test: a pool, or the name of threads."""
    name = getattr(request, "param", "threads")
    return request.getfixturevalue("pool_of")(name) if name in BACKENDS else name


@pytest.fixture(scope="session")
def pool_of(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Callable[[str], RankPool]]:
    """Return a function from routes to pools."""
    runtime = tmp_path_factory.mktemp("pools")
    runtime.chmod(0o700)
    cluster = Cluster(runtime, fork_server)
    url = cluster.daemon()
    pools = {name: RankPool(cluster, url, backend) for name, backend in BACKENDS.items()}
    yield pools.__getitem__
    cluster.close()


def _has_ranks(metafunc: pytest.Metafunc) -> bool:
    """Return whether a test is of a row, fits threads as ranks, and needs no fixture."""
    name, module = metafunc.definition.originalname, metafunc.module
    given = {one for names, _ in parametrized(module, metafunc.function) for one in names}
    return (
        metafunc.definition.path.parent == Path(__file__).parent
        and name.startswith("test_p")
        and name not in THREADS_ALONE
        and (hasattr(module, "on_threads") or hasattr(module, "run_threads"))
        and given >= {*inspect.signature(metafunc.function).parameters}
    )
