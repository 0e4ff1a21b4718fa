"""A thread for blocking jobs beside the loop, run in order."""

import asyncio
import queue
from collections.abc import Callable
from typing import TypeVar

from allhands.runtime.helper_threads import HelperThreads

T = TypeVar("T")
Job = Callable[[], None]


class JobThread:
    """Runs jobs on a dedicated thread, started with the first job.

    Not an executor of the standard library: those refuse work once the interpreter ends, which is
    when a rank that says no goodbye leaves its world.
    """

    def __init__(self, name: str, threads: HelperThreads) -> None:
        self._name = name
        self._threads = threads
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._is_started = False

    async def run(self, act: Callable[[], T]) -> T:
        """Run `act` on the thread and await the result; a cancelled caller does not stop `act`."""
        return await self.submit(act)

    def submit(self, act: Callable[[], T]) -> "asyncio.Future[T]":
        """Queue `act` on the thread; return a future of the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def complete(value: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def run_job() -> None:
            try:
                value = act()
            except BaseException as error:  # whatever it is belongs to who waits
                loop.call_soon_threadsafe(complete, None, error)
            else:
                loop.call_soon_threadsafe(complete, value, None)

        if not self._is_started:
            self._is_started = True
            self._threads.start(self._name, self._run_jobs)
        self._jobs.put(run_job)
        return future

    def close(self) -> None:
        """Let the thread end after its queued jobs, without waiting. Idempotent."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what it holds, arrays above all, is not the thread's until the next one
