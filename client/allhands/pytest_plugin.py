"""Tests on several ranks, for pytest; there wherever allhands is installed.

    @pytest.mark.ranks(4)                   # on 4 threads as ranks, see `run_threads`
    def test_sum(rank):
        x = np.array([rank])
        ah.all_reduce(x)
        assert x[0] == 6

    def test_train(local_cluster):          # on processes, see `LocalCluster`
        assert local_cluster(2).run(train) == ["done", "done"]

Fixtures are made once, before the threads begin, and all ranks are given the same; but `rank` is
each thread's own. What `ranks` takes by name `run_threads` does: `deadline`, `init` and the options
of `init_process_group`.

It is not in `allhands.testing`, whose modules every session of pytest would then load.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from allhands.testing.local_cluster import LocalCluster

_MARKER = "ranks"


class _RankPlaceholder:
    """Placeholder for the rank, filled in by the thread of the test."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(size, *, init=True, deadline=60.0, **options): "
        "run the test on so many threads, each a rank of one allhands world",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on thread ranks; leave unmarked tests to pytest."""
    marker = pyfuncitem.get_closest_marker(_MARKER)
    if marker is None:
        return None
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(f"{_MARKER} is for tests that are no coroutines", pytrace=False)
    # Here, so that sessions which have no such test need not wait for these imports.
    from allhands.testing.threads import run_threads

    body = pyfuncitem.obj
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    def on_rank(rank: int) -> None:
        body(
            **{name: rank if value is _RankPlaceholder else value for name, value in given.items()}
        )

    run_threads(*marker.args, **marker.kwargs)(on_rank)
    return True


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> type[_RankPlaceholder]:
    """Give the rank of the thread on which a test marked with `ranks` runs."""
    if request.node.get_closest_marker(_MARKER) is None:
        pytest.fail(f"rank is for tests that are marked: @pytest.mark.{_MARKER}(4)", pytrace=False)
    return _RankPlaceholder


@pytest.fixture
def local_cluster() -> "Iterator[Callable[..., LocalCluster]]":
    """Give a function that makes a `LocalCluster` of so many ranks, which ends with the test."""
    from allhands.testing.local_cluster import LocalCluster

    with ExitStack() as stack:

        def make(size: int, **options: Any) -> LocalCluster:
            return stack.enter_context(LocalCluster(size, **options))

        yield make
