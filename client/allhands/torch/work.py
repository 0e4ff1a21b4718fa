"""Work: a call in flight, as PyTorch's Python and C++ wait for it."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.work import Work as NativeWork
from allhands.errors import CollectiveTimeout, PeerFailed
from allhands.group.coalescing import CallNotSubmitted, CoalescedWork
from allhands.runtime.termination import INTERRUPTIONS, get_cancel_reason
from allhands.torch import hook_streams
from allhands.torch.error_text import append_gloo_text
from allhands.torch.no_compile import exclude_from_compile
from allhands.torch.options import to_limit
from allhands.torch.tensors import TensorViews
from allhands.tracebacks import trim_traceback


@exclude_from_compile
class Work(dist.Work):  # type: ignore[misc]
    """A call on a process group; safe from any thread.

    Its tensors belong to it until it has ended. Where they were copied, the copies go back as soon
    as it has, and before anybody is told so.
    """

    # Of the class, as most works have no others.
    after: Sequence["Work"] = ()
    """Works that end before it; what they copied goes back with its own copies."""
    before_return: Callable[[], None] | None = None
    """What `wait` awaits besides the end of the call."""
    _future: Any = None

    def __init__(self, work: NativeWork, views: TensorViews, result: Any) -> None:
        dist.Work.__init__(self)
        self.native = work
        self._views = views
        self._result = result
        self._lock = threading.Lock()
        if views.needs_copy_back:
            self._copy_lock = threading.Lock()
            """Another one: making the future of a call that has ended settles it."""
            # Also if nobody ever waits. It is not for the thread that ends calls to do.
            work.get_future().add_done_callback(lambda _: self._copy_back())
            if isinstance(work, CoalescedWork):
                work.on_success = self._copy_back

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the call has ended; return True.

        In a block of PyTorch's coalescing manager it returns at once: the call is made at its end.

        Raises:
            CollectiveTimeout: it has not ended within `timeout`; it goes on.
            AllhandsError: it failed; what the error says.
        """
        try:
            self.native.wait(to_limit(timeout))
        except CallNotSubmitted:
            return True
        except INTERRUPTIONS as interruption:
            self.native.abandon(get_cancel_reason(type(interruption).__name__))
            raise
        except (CollectiveTimeout, PeerFailed) as error:
            is_over = error is self.native.exception()
            append_gloo_text(error, self.native.operation, None if is_over else to_limit(timeout))
            trim_traceback(error)
            raise
        except Exception as error:
            trim_traceback(error)
            raise
        self._copy_back()
        if self.before_return is not None:
            self.before_return()
        return True

    def synchronize(self) -> None:
        self.result()

    def is_completed(self) -> bool:
        if not self.native.is_completed():
            return False
        self._copy_back()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.native.is_success()

    def exception(self) -> BaseException | None:
        error = self.native.exception()
        return None if error is None else append_gloo_text(error, self.native.operation)

    def result(self) -> Any:
        """Wait, then return the tensors of the call that hold its result."""
        try:
            self.wait()
        except Exception as error:
            trim_traceback(error)
            raise
        return self._result

    def source_rank(self) -> int:
        return self.native.source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return the future of `result()`, always the same one."""
        with self._lock:
            if self._future is None:
                self._future = self._make_future()
            return self._future

    def abort(self) -> None:
        """End the call early; its peers get GroupAborted for it."""
        self.native.cancel()

    def __repr__(self) -> str:
        return f"Work({self.native!r})"

    def _copy_back(self) -> None:
        """Write the results of a finished call to the tensors; once."""
        for one in self.after:
            one._copy_back()
        if self._views.needs_copy_back and self.native.is_success():
            with self._copy_lock:
                self._views.copy_back()

    def _make_future(self) -> Any:
        ended: Any = torch.futures.Future()
        turn = hook_streams.get_current_slot()

        def end() -> None:
            if self.before_return is not None:
                self.before_return()
            ended.set_result(None)

        def get_outcome(_: Any) -> Any:
            if (error := self.exception()) is not None:
                raise error
            self._copy_back()
            given = self._result
            return given if turn is None else turn.stream.wrap_result(self.native.operation, given)

        # C++ sees what `then` raises, not what `set_exception` was given.
        future = ended.then(get_outcome)
        if turn is None:
            self.native.get_future().add_done_callback(lambda _: end())
        else:
            turn.call_after(self.native.get_future(), end)
        return future


class EndedWork(Work):
    """The work of a call that had succeeded before its work was made: most of it is made on demand.

    Made without arguments and then given its call: initialisers in Python are slow on top of C++.
    """

    __init__ = dist.Work.__init__
    call: tuple[tuple[int, str, int, str], Any, Any]
    """What `ShmComm.last_call` gave, the process group and the tensors."""

    @property
    def native(self) -> CompletedWork:  # type: ignore[override]
        summary, group, result = self.call
        return CompletedWork(summary, None, group.group.name, result)

    @property
    def _result(self) -> Any:
        return self.call[2]

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        if self._future is None:
            made = self._make_future()
            return self.__dict__.setdefault("_future", made)  # that of the first of two threads
        return self._future

    def _copy_back(self) -> None:
        """Nothing: there were no copies."""


class StagedWorks:
    """Works with copied tensors, as long as referenced; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: WeakSet[Work] = WeakSet()

    def add(self, work: Work) -> None:
        with self._lock:
            self._works.add(work)

    def __len__(self) -> int:
        return len(self._works)

    def list_works(self) -> list[Work]:
        with self._lock:
            return list(self._works)
