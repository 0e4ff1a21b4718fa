"""A child process whose exit can be awaited before its pid is reused."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial


class Child:
    """A process that leads a new session and process group, both with its pid as number.

    Not asyncio's: uvloop starts processes with fork, which gRPC's threads are not ready for,
    where `subprocess` has vfork; and asyncio reaps a process before the exit is reported, so that a
    signal to its group might hit another process that has got the number since.
    """

    def __init__(self, pid: int, wait: Callable[[], int]) -> None:
        """Watch a child of this process; `wait` reaps it, and returns its status."""
        self.pid = pid
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._is_lost = False
        self._watcher = threading.Thread(
            target=self._watch, name=f"allhands-{self.pid}", daemon=True
        )
        self._watcher.start()

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int | None = None,
        descriptors: Sequence[int] = (),
    ) -> "Child":
        """Start a process; descriptors are as `subprocess` takes them.

        Raises:
            OSError: the system refused to start the process.
        """
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=descriptors,
        )
        return cls(process.pid, partial(_reap_process, process))

    @classmethod
    def adopt(cls, pid: int) -> "Child":
        """Take over a process that has become a child of this one.

        Raises:
            ChildProcessError: it is none.
        """
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return cls(pid, partial(_reap, pid))

    def _watch(self) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # `reap` waits for this thread, so it was not that
            self._is_lost = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._ended.set)

    async def wait_ended(self) -> None:
        """Wait, without a limit, until the process has ended; its pid stays taken."""
        await self._ended.wait()

    def has_ended(self) -> bool:
        """Say whether the process has ended by now; not to be called once it is reaped."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def reap(self) -> int:
        """Wait for the process to end, and reap it, which frees its pid; return its status.

        The status is the exit status, or -n for a process killed by signal n.

        Raises:
            ChildProcessError: other code of this process has reaped it, and has the status.
        """
        # It looks at the process until this has ended: whoever reaps first has it see nothing.
        self._watcher.join()
        if not self._is_lost:
            with contextlib.suppress(ChildProcessError):
                return self._wait()
        raise ChildProcessError(f"process {self.pid} was reaped by other code")

    def send_signal(self, signum: int) -> None:
        """Send a signal to all processes of the group; not to be called once it is reaped."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signum)


def _reap_process(process: "subprocess.Popen[bytes]") -> int:
    """Reap a process; its own `wait` takes one that other code has reaped for a success."""
    process.returncode = _reap(process.pid)
    return process.returncode


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def keep_statuses() -> Iterator[None]:
    """Have the kernel keep the status of each child until it is asked for.

    Where this process was started with SIGCHLD ignored, it keeps none.
    """
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
