"""One run of a function on all ranks of a `LocalCluster`."""

import contextlib
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from allhands.coordinator import client
from allhands.coordinator.client import Control
from allhands.testing.rank_errors import RELEASE_SECONDS, make_stuck_error, raise_first
from allhands.testing.rank_process import REQUEST_STACK, Outcome, Task, dump

_PROGRAM = "from allhands.testing.rank_process import main; main()"
_ANSWER_SECONDS = 1.0
_END_SECONDS = 5.0
_LAUNCHER_PREFIXES = ("ALLHANDS_", "MASTER_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
"""Variables that would tell a rank of another launch."""


class RemoteError(Exception):
    """Text of a rank's exception that cannot be unpickled here."""


class RankDied(Exception):
    """A rank ended without a word."""


class LocalRun:
    """A running call of `LocalCluster.start`; not thread-safe."""

    def __init__(
        self,
        size: int,
        task: Task,
        url: str,
        token: str,
        deadline: float,
        environment: Mapping[str, str],
    ) -> None:
        """Start a process for each of `size` ranks of the job at `url`."""
        self._size = size
        self._url = url
        self._token = token
        self._deadline = deadline
        self._deadline_time = time.monotonic() + deadline
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: dict[Connection, int] = {}
        """Each as long as its process lives; the end of one is the end of the other."""
        self._pending = set(range(size))
        """Ranks that have not said what became of them."""
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        self._stuck: dict[int, str] = {}
        try:
            for rank in range(size):
                self._spawn(rank, task, environment)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of each rank."""
        return tuple(process.pid for process in self._processes)

    def connect(self) -> Control:
        """Open a client of the ranks' job (keys, barriers, status); the caller closes it."""
        return client.connect(self._url, token=self._token, timeout=self._deadline)

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> None:
        """Send a signal to a rank, SIGKILL by default; nothing if the rank has ended."""
        if self._processes[rank].returncode is None:
            os.kill(self._processes[rank].pid, signum)

    def results(self, deadline: float | None = None) -> list[Any]:
        """Wait for all ranks and return the results; see `LocalCluster.run`.

        `deadline` is in seconds from now on; None: those of the cluster, since this run began.
        """
        self._finish(deadline)
        if self._errors:
            raise_first(self._errors, self._size)
        return [self._results[rank] for rank in range(self._size)]

    def outcomes(self, deadline: float | None = None) -> list[Any]:
        """Wait for all ranks; return each result, or an exception for a failed rank.

        Raises:
            RanksStuck: not all of them had ended at the deadline.
        """
        self._finish(deadline)
        return [self._errors.get(rank, self._results.get(rank)) for rank in range(self._size)]

    def close(self) -> None:
        """Kill the remaining processes. Idempotent."""
        for connection in list(self._connections):
            self._kill_and_reap(connection)

    def _spawn(self, rank: int, task: Task, environment: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                env={**self._make_environment(rank), **environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        self._connections[ours] = rank
        with contextlib.suppress(OSError):  # it has ended already, as will be heard in its turn
            ours.send(task)

    def _make_environment(self, rank: int) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_LAUNCHER_PREFIXES)
        }
        places = {"RANK": rank, "LOCAL_RANK": rank}
        sizes = {"WORLD_SIZE": self._size, "LOCAL_WORLD_SIZE": self._size}
        return {
            "OMP_NUM_THREADS": "1",
            **kept,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "ALLHANDS_URL": self._url,
            "ALLHANDS_TOKEN": self._token,
            **{name: str(value) for name, value in (places | sizes).items()},
        }

    def _finish(self, deadline: float | None) -> None:
        """Wait until all ranks have reported and ended."""
        if deadline is not None:
            self._deadline, self._deadline_time = deadline, time.monotonic() + deadline
        limit = self._deadline_time
        while self._pending and (ready := self._wait_ready(limit)):
            for connection in ready:
                self._receive(connection)
            if self._errors:
                limit = min(limit, time.monotonic() + RELEASE_SECONDS)
        if self._pending:
            self._stuck = self._request_stacks()
            self.close()
        limit = time.monotonic() + _END_SECONDS  # to leave the world in order
        while self._connections and (ready := self._wait_ready(limit)):
            for connection in ready:
                self._receive(connection)
        self.close()
        if self._stuck:
            raise make_stuck_error(self._stuck, self._errors, self._size, self._deadline)

    def _wait_ready(self, limit: float) -> list[Connection]:
        """Return the connections on which something has come; none: nothing did in time."""
        found = wait(list(self._connections), max(limit - time.monotonic(), 0))
        return [one for one in found if isinstance(one, Connection)]

    def _receive(self, connection: Connection) -> None:
        """Receive a report of a rank, or the end of the process."""
        rank = self._connections[connection]
        try:
            told = connection.recv()
        except (EOFError, OSError):
            status = self._kill_and_reap(connection)
            if rank in self._pending:
                how = f"rank {rank} of {self._size} {_describe_status(status)} without a result"
                self._errors[rank] = RankDied(how)
                self._pending.remove(rank)
            return
        if isinstance(told, Outcome):
            self._pending.remove(rank)
            if told.result is None:
                self._errors[rank] = _load_error(told)
            else:
                self._results[rank] = pickle.loads(told.result)  # noqa: S301 - of an own process

    def _request_stacks(self) -> dict[int, str]:
        """Request the stacks of late ranks."""
        late = {one: rank for one, rank in self._connections.items() if rank in self._pending}
        found = dict.fromkeys(sorted(late.values()), "(it does not answer)\n")
        for connection in late:
            with contextlib.suppress(OSError):
                connection.send(REQUEST_STACK)
        limit = time.monotonic() + _ANSWER_SECONDS
        while late and (ready := wait(list(late), max(limit - time.monotonic(), 0))):
            for one in ready:
                assert isinstance(one, Connection)
                with contextlib.suppress(EOFError, OSError):
                    found[late[one]] = str(one.recv())
                del late[one]
        return found

    def _kill_and_reap(self, connection: Connection) -> int:
        """Kill a process with its children, unless ended; return the status."""
        process = self._processes[self._connections.pop(connection)]
        connection.close()
        # Not reaped yet, so that its number is not another group's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def make_task(
    options: Mapping[str, Any] | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Task:
    """Describe a call for other processes.

    A function of a notebook, or of Python's prompt, is in no file that they could load: it travels
    whole, which takes cloudpickle.

    Raises:
        TypeError: they cannot find the function, or an argument cannot be pickled.
    """
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None) or ""
    by_value = function.__module__ == "__main__" and not file
    if by_value and importlib.util.find_spec("cloudpickle") is None:
        raise TypeError(
            f"{function!r} is of a notebook or a prompt, where other processes cannot find it: "
            "put it into a module and import it, or install what sends it whole: "
            "pip install 'allhands[notebook]'"
        )
    try:
        call = dump((function, arguments, named), by_value=by_value)
    except Exception as error:
        raise TypeError(
            f"{function!r} and its arguments must be such that other processes can have them: a "
            f"function of a module, and what can be pickled: {error}"
        ) from error
    return Task(function.__module__, file, call, options, by_value)


def _load_error(outcome: Outcome) -> BaseException:
    """Return the exception of a rank, with its traceback as a note."""
    error: BaseException = RemoteError(outcome.text)
    if outcome.error is not None:
        with contextlib.suppress(Exception):  # of a class that is not to be had here
            error = pickle.loads(outcome.error)  # noqa: S301 - of an own process
    error.add_note(outcome.traceback)
    return error


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name}"
