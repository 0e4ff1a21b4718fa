"""Ranks as threads of this process, one world over all.

    run_threads(4)(body)        # calls body() or body(rank) on 4 threads; its results, by rank

    @on_threads(4)              # the same, each time that the function is called: for tests
    def test_sum(rank): ...

The module-level calls work on each thread as they do in a process: it has a default world of its
own, a real worker, and a real coordinator, in this process as well. `init_process_group` has been
called there, unless `init=False`; it joins the world of the threads when a function calls it with
`backend="threads"`. A thread that a rank starts is no rank, and can use the groups it is given.
"""

import contextvars
import functools
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from allhands.api import default_world
from allhands.runtime import stack_dump
from allhands.testing.rank_errors import RELEASE_SECONDS, make_stuck_error, raise_first
from allhands.testing.thread_ranks import ThreadRankHandle, ThreadRanks

R = TypeVar("R")

DEADLINE = 60.0
"""Seconds that all ranks together may take."""
_END_SECONDS = 2.0


def run_threads(
    size: int, *, init: bool = True, deadline: float = DEADLINE, **options: Any
) -> Callable[[Callable[..., R]], list[R]]:
    """Return a caller that runs a function on `size` thread ranks and returns their results.

    A function with a parameter that has no default is given its rank. `options` are those of
    `init_process_group` for each rank, but where the world is and who is in it. What has been left
    behind in the world is cleaned up: no rank need call `destroy_process_group`.

    Calling it raises:
        RankError: a rank raised something; the calls of the others were released at once.
        RanksStuck: not all ranks had ended after `deadline` seconds. Their calls are released;
            what is held up elsewhere is left behind, on a daemon thread.
        unittest.SkipTest, or what pytest.skip raises: a rank did, and none failed.
        RuntimeError: this process is in a world.
    """
    if size < 1:
        raise ValueError(f"a world has at least one rank, not {size}")

    def call(body: Callable[..., R]) -> list[R]:
        return _ThreadRun(size, _accept_rank(body), deadline, options if init else None).run()

    return call


def on_threads(
    size: int, *, init: bool = True, deadline: float = DEADLINE, **options: Any
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Decorate a test to run on `size` thread ranks; see `run_threads`.

    All ranks are given the same arguments; a parameter `rank` is this thread's rank, and no part
    of the decorated test's signature, so that pytest finds its fixtures.
    """
    run = run_threads(size, init=init, deadline=deadline, **options)
    return lambda body: make_test_of_ranks(body, run)


def make_test_of_ranks(
    body: Callable[..., object], run: Callable[[Callable[[int], None]], object]
) -> Callable[..., None]:
    """Return a test that calls `body` on each rank; `run` calls a function of the rank there.

    A parameter `rank` of the body is hidden from pytest, which gives the others.
    """
    signature = inspect.signature(body)
    wants_rank = "rank" in signature.parameters

    @functools.wraps(body)
    def test(*arguments: Any, **named: Any) -> None:
        def on_rank(rank: int) -> None:
            body(*arguments, **named, **({"rank": rank} if wants_rank else {}))

        run(on_rank)

    others = [one for name, one in signature.parameters.items() if name != "rank"]
    test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return test


class _ThreadRun:
    """A run of one function on all threads."""

    def __init__(
        self,
        size: int,
        body: Callable[[int], Any],
        deadline: float,
        options: dict[str, Any] | None,
    ) -> None:
        self._body = body
        self._deadline = deadline
        self._options = options
        """Of joining; None: the function sees to that."""
        self._size = size
        self._changed = threading.Condition()
        self._running = set(range(size))
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        """In the order in which they were raised."""
        self._failed_at = 0.0

    def run(self) -> list[Any]:
        self._ranks = ThreadRanks(self._size)
        threads: list[threading.Thread] = []
        try:
            for rank in range(self._size):
                act = functools.partial(contextvars.copy_context().run, self._run_rank, rank)
                thread = threading.Thread(target=act, name=f"rank {rank}", daemon=True)
                threads.append(thread)
                thread.start()
            stuck = self._wait(threads)
        except BaseException:  # Ctrl-C
            self._ranks.abort("who called run_threads was interrupted")
            self._wait_until(time.monotonic() + _END_SECONDS)
            raise
        finally:
            self._ranks.close()
        with self._changed:  # a thread that is left behind may still fail
            errors = dict(self._errors)
        if stuck:
            raise make_stuck_error(stuck, errors, self._size, self._deadline)
        if errors:
            raise_first(errors, self._size)
        return [self._results[rank] for rank in range(self._size)]

    def _run_rank(self, rank: int) -> None:
        try:
            self._run_bound(rank, self._ranks.make_handle(rank))
        except BaseException as error:
            self._record_failure(rank, error)
        finally:
            with self._changed:
                self._running.discard(rank)
                self._changed.notify_all()

    def _run_bound(self, rank: int, handle: ThreadRankHandle) -> None:
        default_world.bind_thread_rank(handle)
        try:
            if self._options is not None:
                default_world.init_process_group(backend="threads", **self._options)
            self._results[rank] = self._body(rank)
        except BaseException as error:
            # First: what the others raise because of it is not the reason.
            self._record_failure(rank, error)
            if (world := default_world.unbind_thread_rank()) is not None:
                world.fail(error)
        else:
            if (world := default_world.unbind_thread_rank()) is not None:
                world.close()

    def _record_failure(self, rank: int, error: BaseException) -> None:
        with self._changed:
            self._failed_at = self._failed_at or time.monotonic()
            self._errors.setdefault(rank, error)
            self._changed.notify_all()
        self._ranks.release_joining(f"rank {rank} has failed: {type(error).__name__}: {error}")

    def _wait(self, threads: list[threading.Thread]) -> dict[int, str]:
        """Wait for all ranks; return where those are that have not ended in time."""
        begun = time.monotonic()
        with self._changed:
            while self._running:
                limit = begun + self._deadline
                if self._failed_at:
                    limit = min(limit, self._failed_at + RELEASE_SECONDS)
                if (left := limit - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            stuck = {
                rank: stack_dump.format_thread(threads[rank]) for rank in sorted(self._running)
            }
        if stuck:
            named = ", ".join(map(str, stuck))
            self._ranks.abort(f"ranks {named} did not end within {self._deadline:g} s")
            self._wait_until(time.monotonic() + _END_SECONDS)
        return stuck

    def _wait_until(self, limit: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._running, limit - time.monotonic())


def _accept_rank(body: Callable[..., R]) -> Callable[[int], R]:
    """Return `body` as a function of the rank, passed on only if `body` takes it."""
    given = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(body).parameters.values()
    if any(one.kind in given and one.default is one.empty for one in parameters):
        return body
    return lambda rank: body()
