"""Process of a `LocalCluster`: runs one function as a rank and reports the result.

It is started with the number of a descriptor: a connection to who has started it. From there comes
a `Task`, and there goes an `Outcome`. The end of the connection is the end of this process and of
all that it has started, whatever they do then.
"""

import importlib
import importlib.util
import os
import pickle
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from allhands.api import default_world
from allhands.runtime import stack_dump
from allhands_proto.quick_dataclass import dataclass

REQUEST_STACK = "where"
"""Asks where the function is."""


@dataclass(frozen=True, slots=True)
class Task:
    """A function with arguments."""

    module: str
    """Where the function is from."""
    file: str
    """For a module that cannot be imported by its name; empty: there is none."""
    call: bytes
    """The function, its positional and its named arguments."""
    options: Mapping[str, Any] | None
    """Of `init_process_group`; None: the function sees to that."""
    by_value: bool = False
    """Whether functions and classes of `__main__` travel whole, for there is no file of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result or exception of a task."""

    result: bytes | None
    """None: it failed."""
    error: bytes | None = None
    """The exception, where it can be put on the way."""
    text: str = ""
    """The exception in words."""
    traceback: str = ""


def dump(value: object, *, by_value: bool) -> bytes:
    """Pickle a value for a process of the same user, over a pipe between the two.

    Raises:
        ImportError: `by_value` needs cloudpickle, which is not installed.
        Exception: it cannot be pickled.
    """
    if by_value:
        import cloudpickle

        packed: bytes = cloudpickle.dumps(value)
        return packed
    return pickle.dumps(value)


def load_module(module: str, file: str) -> None:
    """Load a module under its name, as in the parent process.

    Raises:
        ImportError: the module is neither importable nor a file.
    """
    if module == "__main__":
        if file:
            loaded = _load_file("__mp_main__", file)  # so that it does not run as a program does
            sys.modules["__main__"] = loaded
        return
    try:
        importlib.import_module(module)
    except ImportError:
        if not file:
            raise
        _load_file(module, file)


def _load_file(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _RankProgram:
    """The program of a rank process, and the connection to its parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()

    def run(self) -> None:
        task: Task = self._connection.recv()
        threading.Thread(target=self._listen, name="who started this rank", daemon=True).start()
        try:
            load_module(task.module, task.file)
            function, arguments, named = pickle.loads(task.call)  # noqa: S301 - its own
            if task.options is not None:
                default_world.init_process_group(**task.options)
            result = function(*arguments, **named)
            told = Outcome(dump(result, by_value=task.by_value))
            if default_world.is_initialized():
                default_world.destroy_process_group()
        except BaseException as error:
            # First: what the others raise because of it is not the reason.
            self._send(_make_failure(error, by_value=task.by_value))
            if (world := default_world.find_world()) is not None:
                world.fail(error)
        else:
            self._send(told)

    def _listen(self) -> None:
        """Say where the function is when asked, until nobody can ask any more."""
        try:
            while self._connection.recv() == REQUEST_STACK:
                self._send(stack_dump.format_main_thread())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # it is the leader of its group

    def _send(self, message: object) -> None:
        with self._send_lock:
            self._connection.send(message)


def _make_failure(error: BaseException, *, by_value: bool) -> Outcome:
    text = f"{type(error).__name__}: {error}"
    try:
        packed = dump(error, by_value=by_value)
        pickle.loads(packed)  # noqa: S301 - own; many can be pickled, and not put together
    except Exception:
        return Outcome(None, None, text, stack_dump.format_error(error))
    return Outcome(None, packed, text, stack_dump.format_error(error))


def main() -> None:
    """Run a rank; the process's only argument names the parent's connection."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # what this process starts must not keep it open
    _RankProgram(Connection(descriptor)).run()
