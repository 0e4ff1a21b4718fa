"""Ranks as processes on this host, with an own coordinator.

with LocalCluster(4) as cluster:
    results = cluster.run(train, steps=10)      # train(steps=10) on every rank, in processes

    going = cluster.start(train, steps=10**9)   # the same, without waiting
    going.connect().get("ready", wait=True)     # keys of the job, as the ranks have them
    going.kill(2)
    outcomes = going.outcomes()                 # what each rank gave or raised
"""

import secrets
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from allhands.coordinator.embed import start_coordinator
from allhands.runtime.loop_thread import LoopThread
from allhands.testing.local_run import LocalRun, make_task

DEADLINE = 60.0


class LocalCluster:
    """Coordinator in this process, and ranks as processes while the block lasts.

    Each run is a job of its own, in fresh processes, of which nothing is left after it: also where
    this process is killed they die with it.
    """

    def __init__(
        self,
        size: int,
        *,
        deadline: float = DEADLINE,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Prepare a cluster of `size` ranks; nothing is started yet.

        Args:
            deadline: seconds that a run may take.
            environment: variables that the processes get, beside those of this one.
            options: of `init_process_group` for each rank.
        """
        if size < 1:
            raise ValueError(f"a world has at least one rank, not {size}")
        self.size = size
        self._deadline = deadline
        self._environment = dict(environment or {})
        self._options = options
        self._runs: list[LocalRun] = []
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        thread = LoopThread("allhands cluster")
        try:
            self._server = thread.run(start_coordinator(post_notice=False))
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        try:
            for run in self._runs:
                run.close()
            self._thread.run(self._server.stop())
        finally:
            self._thread.stop()
            self._thread = None

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """Call a function on every rank; return the results, by rank.

        The function must be one of a module, for the processes load it from there, or of a notebook
        (with allhands[notebook], which sends it whole); arguments and results are pickled, and pass
        over pipes between this process and its children. `init_process_group` has been called
        before it.

        Raises:
            TypeError: the function or an argument cannot be given to another process.
            RankError: a rank raised something or died; its traceback is in a note of the cause.
            RanksStuck: not all ranks had ended at the deadline; the text has where they were.
            unittest.SkipTest: a rank did, and none failed.
        """
        return self.start(function, *arguments, **named).results()

    def start(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> LocalRun:
        """Start a call as in `run`; without `init_process_group`, use `start_bare`."""
        return self._start(self._options, function, arguments, named)

    def start_bare(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> LocalRun:
        """Start a function that calls `init_process_group` itself, if at all."""
        return self._start(None, function, arguments, named)

    def _start(
        self,
        options: Mapping[str, Any] | None,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> LocalRun:
        if self._thread is None:
            raise RuntimeError(
                f"a cluster runs within its block: with LocalCluster({self.size}) as cluster"
            )
        task = make_task(options, function, arguments, named)
        job = f"cluster-{secrets.token_hex(4)}"
        url = f"{self._server.url}/{job}"
        run = LocalRun(self.size, task, url, self._server.token, self._deadline, self._environment)
        self._runs.append(run)
        return run
