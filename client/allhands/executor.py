"""Executor of `concurrent.futures` on a world: one rank submits calls, the other ranks run them.

Functions travel by name, arguments and results as objects do in `all_gather_object`: nothing is
unpickled, unless the world was made with `allow_pickle=True`.
"""

import builtins
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from allhands.api.groups import new_group
from allhands.api.objects import recv_object_list, send_object_list
from allhands.errors import AllhandsError
from allhands.group.group import Group
from allhands_proto.quick_dataclass import dataclass

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 1e7
"""For which a rank waits for a call, or the submitting rank for a result; losses end both."""


class RemoteError(RuntimeError):
    """A call failed on another rank with an error of a class that does not travel.

    Errors of Python's own classes with arguments that travel arrive as what they are. Either has
    the traceback of the other rank as a note.
    """


@contextmanager
def open_executor(
    functions: Sequence[Callable[..., object]] = (), *, root: int = 0
) -> Iterator[futures.Executor | None]:
    """Open an executor on all ranks of the world; a call of all of them, in the same order.

    Rank `root` gets the executor, and the others None, once the executor has been shut down: until
    then they run what it gives them. At the end of the block it is shut down, after all calls.
    A world of one rank gets an executor with a thread of this process.

    Args:
        functions: what may be submitted: functions of modules or of the program, given equally on
            all ranks. Empty: in a world with `allow_pickle=True` all that can be pickled; else
            there is nothing to submit.
        root: rank of the world that submits.

    Raises:
        ValueError: a function twice under one name, or none is given where nothing is pickled.
        AllhandsError: the root was lost; of the root's executor, see `WorldExecutor`.
    """
    group = new_group(timeout=IDLE_SECONDS)
    assert isinstance(group, Group), "it has all ranks"
    table = _name_functions(functions)
    if not table and not group.objects.allow_pickle:
        raise ValueError(
            "name the functions that may be submitted, as in open_executor([simulate]); calls of "
            "any function need a world with allow_pickle=True"
        )
    if group.size == 1:
        with futures.ThreadPoolExecutor(1) as local:
            yield local
    elif group.rank == root:
        with WorldExecutor(group, table) as executor:
            yield executor
    else:
        _serve(group, root, table)
        yield None


def _name_functions(functions: Sequence[Callable[..., object]]) -> dict[str, Callable[..., object]]:
    table: dict[str, Callable[..., object]] = {}
    for function in functions:
        name = _name(function)
        if table.setdefault(name, function) is not function:
            raise ValueError(f"there are two functions {name}: give one of them another name")
    return table


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


@dataclass(slots=True)
class _Task:
    future: "futures.Future[Any]"
    data: NDArray[np.uint8]


class WorldExecutor(futures.Executor):
    """Executor whose calls run on the other ranks of a group, one at a time on each.

    `submit` raises TypeError for functions that are not named and for arguments that do not
    travel, before anything is sent. If a rank is lost, or the group is aborted, all unfinished
    futures have `BrokenExecutor` with the reason, and so does `submit`.
    """

    def __init__(self, group: Group, table: Mapping[str, Callable[..., object]]) -> None:
        self._group = group
        self._table = table
        self._changed = threading.Condition()
        self._idle = [rank for place, rank in enumerate(group.ranks) if place != group.rank]
        self._workers = tuple(self._idle)
        self._waiting: deque[_Task] = deque()
        self._running: dict[int, _Task] = {}
        self._is_closed = False
        self._broken: AllhandsError | None = None
        self._thread = threading.Thread(target=self._collect, name="allhands-executor")
        self._thread.start()

    @property
    def worker_count(self) -> int:
        """Number of ranks that run calls."""
        return len(self._workers)

    @property
    def takes_any_function(self) -> bool:
        """Whether all that can be pickled may be submitted, and not named functions alone."""
        return not self._table

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> "futures.Future[T]":
        """Have a rank call a function; calls begin in the order submitted.

        Raises:
            TypeError: the function was not named, or an argument does not travel.
            BrokenExecutor: a rank was lost.
            RuntimeError: the executor was shut down.
        """
        task = _Task(futures.Future(), self._encode(fn, args, kwargs))
        with self._changed:
            if self._broken is not None:
                raise futures.BrokenExecutor(str(self._broken)) from self._broken
            if self._is_closed:
                raise RuntimeError("the executor has been shut down, and takes no more calls")
            self._waiting.append(task)
        self._dispatch()
        return task.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and release the other ranks after the last one.

        Args:
            wait: return once they have been released.
            cancel_futures: cancel calls that have not begun.
        """
        with self._changed:
            self._is_closed = True
            if cancel_futures:
                for task in self._waiting:
                    task.future.cancel()
            self._changed.notify_all()
        if wait:
            self._thread.join()

    def _encode(
        self, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> NDArray[np.uint8]:
        called: object = _name(fn)
        if called not in self._table:
            if self._table or not self._group.objects.allow_pickle:
                named = ", ".join(self._table)
                raise TypeError(f"{called} is none of the functions of the executor: {named}")
            called = fn
        return self._group.objects.encode([called, list(args), dict(kwargs)])

    def _dispatch(self) -> None:
        """Give waiting calls to idle ranks; any thread."""
        while (begun := self._begin()) is not None:
            rank, task = begun
            try:
                send_object_list([task.data], rank, self._group)
            except AllhandsError as error:
                self._break(error)

    def _begin(self) -> tuple[int, _Task] | None:
        """Let the first call that is not cancelled begin on an idle rank; None: there is none."""
        with self._changed:
            self._changed.notify_all()
            while self._idle and self._waiting and self._broken is None:
                task = self._waiting.popleft()
                if task.future.set_running_or_notify_cancel():
                    rank = self._idle.pop(0)
                    self._running[rank] = task
                    return rank, task
        return None

    def _collect(self) -> None:
        """Take in results until the executor is shut down; on a thread of its own."""
        while True:
            with self._changed:
                while not self._running and not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._broken is not None or not (self._running or self._waiting):
                    break
                has_begun = bool(self._running)
            if has_begun and not self._take_result():
                return
            self._dispatch()
        if self._broken is None:
            self._release()

    def _take_result(self) -> bool:
        told: list[Any] = [None, None]
        try:
            rank = recv_object_list(told, None, self._group)
        except AllhandsError as error:
            self._break(error)
            return False
        with self._changed:
            task = self._running.pop(rank)
            self._idle.append(rank)
        succeeded, data = told
        try:
            value = self._group.objects.decode(data)
        except Exception as error:
            task.future.set_exception(error)
            return True
        if succeeded:
            task.future.set_result(value)
        else:
            task.future.set_exception(_make_error(rank, *value))
        return True

    def _release(self) -> None:
        for rank in self._workers:
            try:
                send_object_list([None], rank, self._group)
            except AllhandsError as error:
                self._break(error)
                return

    def _break(self, error: AllhandsError) -> None:
        with self._changed:
            self._broken = error
            tasks = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._changed.notify_all()
        for task in tasks:
            if not task.future.done():
                broken = futures.BrokenExecutor(str(error))
                broken.__cause__ = error
                task.future.set_exception(broken)


def _serve(group: Group, root: int, table: Mapping[str, Callable[..., object]]) -> None:
    """Run the calls of the root until it releases this rank."""
    while True:
        told: list[Any] = [None]
        recv_object_list(told, root, group)
        if told[0] is None:
            return
        try:
            called, args, kwargs = group.objects.decode(told[0])
            function = _find(called, table, group.objects.allow_pickle)
            reply = [True, group.objects.encode(function(*args, **kwargs))]
        except Exception as error:  # whatever it is belongs to who submitted the call
            reply = [False, _describe(error, group)]
        send_object_list(reply, root, group)


def _find(
    called: object, table: Mapping[str, Callable[..., object]], may_be_any: bool
) -> Callable[..., object]:
    if isinstance(called, str) and called in table:
        return table[called]
    if may_be_any and not table and callable(called):
        return called
    raise TypeError(f"{called!r} is none of the functions that this rank has named")


def _describe(error: Exception, group: Group) -> NDArray[np.uint8]:
    name, text = type(error).__name__, "".join(traceback.format_exception(error))
    args: list[object] = list(error.args)
    if not _is_builtin(type(error)):
        name, args = "", [f"{type(error).__qualname__}: {error}"]
    try:
        return group.objects.encode([name, args, text])
    except TypeError:
        return group.objects.encode(["", [f"{type(error).__qualname__}: {error}"], text])


def _is_builtin(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _make_error(rank: int, name: str, args: Sequence[object], text: str) -> BaseException:
    kind = getattr(builtins, name, None) if name else None
    error: BaseException
    if isinstance(kind, type) and issubclass(kind, Exception):
        error = kind(*args)
    else:
        error = RemoteError(*args)
    error.add_note(f"on rank {rank}:\n{text}")
    return error
