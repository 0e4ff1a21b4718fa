"""joblib over an executor of a world: `Parallel` runs its batches on the other ranks.

joblib pickles what it runs, so the world has to be made with `allow_pickle=True`.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from joblib import parallel_config as _parallel_config
from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from allhands.executor import WorldExecutor

NAME = "allhands"


def register() -> None:
    """Make the backend known by name: `joblib.parallel_config("allhands", executor=executor)`."""
    register_parallel_backend(NAME, WorldBackend)


def parallel_config(executor: Executor, n_jobs: int = -1, **options: Any) -> Any:
    """Return a context manager in which `joblib.Parallel` uses the ranks of an executor.

    Args:
        executor: what `open_executor()` gives its root.
        n_jobs: batches at once; -1: one on each rank.
        options: others of `joblib.parallel_config`.

    Raises:
        TypeError: something else than such an executor, or one that takes named functions only.
    """
    return _parallel_config(backend=WorldBackend(executor=executor), n_jobs=n_jobs, **options)


class WorldBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """Backend of joblib that gives batches to the ranks of an executor."""

    supports_retrieve_callback = True
    supports_timeout = True
    uses_threads = False

    def __init__(self, executor: Executor, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(executor, WorldExecutor):
            raise TypeError(
                "executor must be what open_executor() gives its root on 2 ranks or more, not "
                f"{executor!r}"
            )
        if not executor.takes_any_function:
            raise TypeError(
                "joblib runs functions of its own: open the executor without a list of functions, "
                "in a world made with allow_pickle=True"
            )
        self._executor = executor
        self._futures: set[Future[Any]] = set()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches run at once; None and -1: one on each rank."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        ranks = self._executor.worker_count
        if n_jobs is None:
            return ranks
        return max(ranks + 1 + n_jobs, 1) if n_jobs < 0 else min(n_jobs, ranks)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Take the caller; return how many batches run at once."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], object] | None = None
    ) -> "Future[Any]":
        """Give a batch to a rank; `callback` gets the future once it has ended."""
        future = self._executor.submit(_call, func)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: "Future[Any]") -> Any:
        """Return the result of a batch that has ended, or raise its error."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # joblib's
        """Cancel the batches that have not begun."""
        for future in list(self._futures):
            future.cancel()


def _call(batch: Callable[[], Any]) -> Any:
    return batch()
