"""Requests: what non-blocking calls return, and the ways to wait for one or several."""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from allhands.mpi import errors
from allhands.mpi.constants import ERR_IN_STATUS, ERR_OTHER, ERR_REQUEST, SUCCESS, UNDEFINED
from allhands.mpi.handles import Handle
from allhands.mpi.progress.transfers import Completed, Transfer
from allhands.mpi.runtime import runtime
from allhands.mpi.status import Status

_POLL_SECONDS = 0.001
"""Between two looks at several requests of which any may end first."""


class Request(Handle):
    """A non-blocking call under way; null once it was waited for."""

    def __new__(cls, request: "Request | None" = None) -> Self:
        self = super().__new__(cls, request)
        if request is None:
            self._transfer = self._loads = None
        return self

    _transfer: Transfer | None
    _loads: Callable[[Transfer], Any] | None
    """Returns what the lower-case forms return of what has ended."""

    @classmethod
    def _of(cls, transfer: Transfer, loads: Callable[[Transfer], Any] | None = None) -> Self:
        """Return the request of a transfer."""
        self = cls.__new__(cls)
        self._transfer = transfer
        self._loads = loads
        return self

    def _identity(self) -> object:
        return self.__dict__.get("_begin") or self._transfer

    # ------------------------------------------------------------ one request

    def Wait(self, status: Status | None = None) -> Literal[True]:
        """Return when it has ended; the request is null then.

        Raises:
            Exception: what failed, a deadline that is over, or a lost rank.
        """
        transfer = self._transfer
        if transfer is not None and not transfer.poll():
            runtime.engine.wait(transfer)
        self._take(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Say whether it has ended; if so, the request is null then."""
        if not self._look():
            return False
        self._take(status)
        return True

    def Get_status(self, status: Status | None = None) -> bool:
        """Say whether it has ended, and leave the request as it is."""
        if not self._look():
            return False
        fill_status(status, self._active())
        return True

    def Cancel(self) -> None:
        """End a receive that has no message yet; other requests go on."""
        transfer = self._active()
        if transfer is None:
            raise errors.make_error(ERR_REQUEST, "a null request cannot be cancelled")
        transfer.cancel()

    def Free(self) -> None:
        """Let it go on by itself; the request is null then."""
        if self._transfer is None:
            raise errors.make_error(ERR_REQUEST, "a null request cannot be freed")
        self._transfer = self._loads = None

    cancel = Cancel

    def _active(self) -> Transfer | None:
        """Return what is under way; None: nothing."""
        return self._transfer

    def _look(self) -> bool:
        """Say whether it has ended, after some progress."""
        transfer = self._active()
        if transfer is None or transfer.poll():
            return True
        runtime.engine.progress()
        return transfer.poll()

    def _take(self, status: Status | None) -> Any:
        """Make the request null, and return the result of what has ended.

        Raises:
            Exception: it failed.
        """
        transfer = self._active()
        loads = self._loads
        if transfer is None:
            fill_status(status, None)
            return None
        try:
            fill_status(status, transfer)
            self._after(transfer, status)
        finally:
            self._retire()
        if transfer.error is not None:
            raise errors.translate(transfer.error)
        return None if loads is None or transfer.cancelled else loads(transfer)

    def _retire(self) -> None:
        self._transfer = self._loads = None

    def _after(self, transfer: Transfer, status: Status | None) -> None:
        """Do what the end of a request of that kind brings with it."""

    # ------------------------------------------------------------ objects

    def wait(self, status: Status | None = None) -> Any:
        """Return the object received, or None, when it has ended."""
        transfer = self._active()
        if transfer is not None and not transfer.poll():
            runtime.engine.wait(transfer)
        return self._take(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any | None]:
        """Return whether it has ended, and the object received."""
        return (True, self._take(status)) if self._look() else (False, None)

    def get_status(self, status: Status | None = None) -> bool:
        """Say whether it has ended, and leave the request as it is."""
        return self.Get_status(status)

    # ------------------------------------------------------------ several requests

    @classmethod
    def Waitany(cls, requests: Sequence["Request"], status: Status | None = None) -> int:
        """Return the index of one that has ended, when one has; UNDEFINED: all are null."""
        return _wait_any(requests, status)[0]

    @classmethod
    def Testany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool]:
        """Return the index of one that has ended, and whether one has."""
        index, flag, _ = _test_any(requests, status)
        return index, flag

    @classmethod
    def Get_status_any(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool]:
        """Return the index of one that has ended, and whether one has; all stay as they are."""
        if not any(_is_active(request) for request in requests):
            fill_status(status, None)
            return UNDEFINED, True
        for index, request in enumerate(requests):
            if _is_active(request) and request.Get_status(status):
                return index, True
        return UNDEFINED, False

    @classmethod
    def Waitall(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> Literal[True]:
        """Return when all have ended.

        Raises:
            Exception: one failed: its error; with `statuses`, their errors tell which.
        """
        _wait_all(requests, statuses)
        return True

    @classmethod
    def Testall(cls, requests: Sequence["Request"], statuses: list[Status] | None = None) -> bool:
        """Say whether all have ended; if not, none is changed."""
        if not _have_all_ended(requests):
            return False
        _take_all(requests, statuses)
        return True

    @classmethod
    def Get_status_all(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> bool:
        """Say whether all have ended; they stay as they are."""
        if not _have_all_ended(requests):
            return False
        for status, request in zip(_extend(statuses, len(requests)), requests, strict=False):
            fill_status(status, request._active())
        return True

    @classmethod
    def Waitsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the indices of those that have ended, when one has; None: all are null."""
        return _wait_some(requests, statuses)[0]

    @classmethod
    def Testsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the indices of those that have ended; None: all are null."""
        return _test_some(requests, statuses)[0]

    @classmethod
    def Get_status_some(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the indices of those that have ended; all stay as they are."""
        if not any(_is_active(request) for request in requests):
            return None
        ended = [at for at, one in enumerate(requests) if _is_active(one) and one._look()]
        for status, at in zip(_extend(statuses, len(ended)), ended, strict=False):
            fill_status(status, requests[at]._active())
        return ended

    @classmethod
    def waitany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, Any]:
        """Return the index of one that has ended, and its object, when one has."""
        return _wait_any(requests, status)

    @classmethod
    def testany(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool, Any | None]:
        """Return the index of one that has ended, whether one has, and its object."""
        return _test_any(requests, status)

    @classmethod
    def get_status_any(
        cls, requests: Sequence["Request"], status: Status | None = None
    ) -> tuple[int, bool]:
        """Return the index of one that has ended, and whether one has; all stay as they are."""
        return cls.Get_status_any(requests, status)

    @classmethod
    def waitall(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[Any]:
        """Return the objects of all, when all have ended."""
        return _wait_all(requests, statuses)

    @classmethod
    def testall(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all have ended, and their objects."""
        if not _have_all_ended(requests):
            return False, None
        return True, _take_all(requests, statuses)

    @classmethod
    def get_status_all(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> bool:
        """Say whether all have ended; they stay as they are."""
        return cls.Get_status_all(requests, statuses)

    @classmethod
    def waitsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the indices and objects of those that have ended, when one has."""
        return _wait_some(requests, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the indices and objects of those that have ended."""
        return _test_some(requests, statuses)

    @classmethod
    def get_status_some(
        cls, requests: Sequence["Request"], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the indices of those that have ended; all stay as they are."""
        return cls.Get_status_some(requests, statuses)


class Prequest(Request):
    """A call that was prepared, to be started any number of times."""

    _begin: Callable[[], Transfer] | None

    def __new__(cls, request: Request | None = None) -> Self:
        if request is not None and request and not isinstance(request, Prequest):
            raise TypeError(f"expected a Prequest, not {type(request).__name__}")
        self = super().__new__(cls, request)
        self.__dict__.setdefault("_begin", None)
        return self

    @classmethod
    def _prepare(cls, begin: Callable[[], Transfer]) -> Self:
        """Return a request whose start calls `begin`."""
        self = cls.__new__(cls)
        self._begin = begin
        return self

    def _retire(self) -> None:
        self._transfer = None

    def Start(self) -> None:
        """Begin the call.

        Raises:
            Exception: the request is null, or the call is under way already.
        """
        if self._begin is None or self._transfer is not None:
            said = "null" if self._begin is None else "under way already"
            raise errors.make_error(ERR_REQUEST, f"a request that is {said} cannot be started")
        self._transfer = self._begin()

    @classmethod
    def Startall(cls, requests: "list[Prequest]") -> None:
        """Begin all calls, in order."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        if self._begin is None:
            raise errors.make_error(ERR_REQUEST, "a null request cannot be freed")
        self._begin = self._transfer = self._loads = None

    def _partitions(self) -> Any:
        raise errors.make_error(ERR_REQUEST, "the request is not of a partitioned message")

    def Pready(self, partition: int) -> None:
        """Say that a part may be sent."""
        self._partitions().mark(self, [partition])

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Say that parts may be sent, from the first to the last inclusive."""
        self._partitions().mark(self, range(partition_low, partition_high + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Say that some parts may be sent."""
        self._partitions().mark(self, list(partitions))

    def Parrived(self, partition: int) -> bool:
        """Say whether a part has come."""
        arrived: bool = self._partitions().has_arrived(self, partition)
        return arrived


class _General(Transfer):
    """What a generalized request stands for."""

    __slots__ = ("cancel_fn", "free_fn", "query_fn")
    query_fn: Callable[..., None]
    free_fn: Callable[..., None]
    cancel_fn: Callable[..., None]

    def describe(self) -> str:
        return "a generalized request"


class Grequest(Request):
    """A request whose end the program itself says."""

    def __new__(cls, request: Request | None = None) -> Self:
        if request is not None and request and not isinstance(request, Grequest):
            raise TypeError(f"expected a Grequest, not {type(request).__name__}")
        self = super().__new__(cls, request)
        self.__dict__.setdefault("_general", None)
        return self

    _general: _General | None

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> "Grequest":
        """Return a request under way; see `Complete`.

        Args:
            query_fn: gets a status to fill, when the request has ended.
            free_fn: is called when the request is freed.
            cancel_fn: gets whether the request had ended, when it is cancelled.
            args: arguments that each gets too; `kwargs` likewise.
        """
        positional, named = args or (), kwargs or {}

        def bind(function: Callable[..., None] | None) -> Callable[..., None]:
            def call(*first: Any) -> None:
                if function is None:
                    return
                try:
                    function(*first, *positional, **named)
                except errors.Exception:
                    traceback.print_exc()
                    raise
                except Exception as error:
                    traceback.print_exc()
                    raise errors.make_error(
                        ERR_OTHER, f"a function of a request raised {error!r}"
                    ) from error

            return call

        general = _General()
        general.query_fn, general.free_fn = bind(query_fn), bind(free_fn)
        general.cancel_fn = bind(cancel_fn)
        self = cls._of(general, lambda transfer: transfer.result)
        self._general = general
        return self

    def _after(self, transfer: Transfer, status: Status | None) -> None:
        general = self._general
        if general is not None:
            if status is None:
                general.query_fn(Status())
            general.free_fn()

    def Get_status(self, status: Status | None = None) -> bool:
        return super().Get_status(status)

    def Cancel(self) -> None:
        general = self._general
        if general is None:
            raise errors.make_error(ERR_REQUEST, "a null request cannot be cancelled")
        general.cancel_fn(general.done)

    cancel = Cancel

    def Free(self) -> None:
        general = self._general
        super().Free()
        if general is not None:
            general.free_fn()

    def Complete(self) -> None:
        """Say that the request has ended."""
        if self._general is None:
            raise errors.make_error(ERR_REQUEST, "a null request cannot be completed")
        self._general.done = True

    def complete(self, obj: Any = None) -> None:
        """Say that the request has ended, with an object for whoever waits."""
        if self._general is not None:
            self._general.result = obj
        self.Complete()


def fill_status(status: Status | None, transfer: Transfer | None) -> None:
    """Write of a transfer that has ended to a status; None: of none."""
    if status is None:
        return
    if transfer is None:
        transfer = Completed()
    status.source, status.tag = transfer.source, transfer.tag
    status.nbytes, status.cancelled = transfer.nbytes, transfer.cancelled
    status.error = SUCCESS
    if transfer.error is not None:
        found = errors.translate(transfer.error)
        status.error = int(found) if isinstance(found, errors.Exception) else ERR_OTHER
    if isinstance(transfer, _General):
        transfer.query_fn(status)


def completed_request(nbytes: int = 0) -> Request:
    """Return a request that has ended already, with so many bytes in its status."""
    return Request._of(Completed(nbytes=nbytes))


def _is_active(request: Request) -> bool:
    return request._active() is not None


def _extend(statuses: Any, count: int) -> Sequence[Status]:
    """Return at least so many statuses; to a list new ones are appended."""
    if statuses is None:
        return ()
    if not isinstance(statuses, list):
        return tuple(statuses)
    while len(statuses) < count:
        statuses.append(Status())
    return statuses


def _wait_any(requests: Sequence[Request], status: Status | None) -> tuple[int, Any]:
    _wait_for_one(requests)
    index, _, result = _test_any(requests, status)
    return index, result


def _test_any(requests: Sequence[Request], status: Status | None) -> tuple[int, bool, Any]:
    if not any(_is_active(request) for request in requests):
        fill_status(status, None)
        return UNDEFINED, True, None
    for index, request in enumerate(requests):
        if _is_active(request) and request._look():
            return index, True, request._take(status)
    return UNDEFINED, False, None


def _wait_for_one(requests: Sequence[Request]) -> None:
    """Return when one of those under way has ended, if there are any."""
    active = [one for request in requests if (one := request._active()) is not None]
    if not active or any(one.poll() for one in active):
        return
    any_of = _AnyOf(active)
    runtime.engine.wait(any_of)


class _AnyOf(Transfer):
    """Ends when one of several transfers has."""

    __slots__ = ("_parts", "_until")

    def __init__(self, parts: list[Transfer]) -> None:
        super().__init__()
        self._parts = parts

    def poll(self) -> bool:
        self.done = self.done or any(part.poll() for part in self._parts)
        return self.done

    def wait_briefly(self, seconds: float) -> bool:
        until = time.monotonic() + min(seconds, _POLL_SECONDS)
        for part in self._parts:
            if not part.needs_frames and part.wait_briefly(max(until - time.monotonic(), 0)):
                break
        return self.poll()

    @property
    def needs_frames(self) -> bool:
        return all(part.needs_frames for part in self._parts)

    def describe(self) -> str:
        return (
            f"one of {len(self._parts)} requests, of which the first is {self._parts[0].describe()}"
        )

    def list_awaited(self) -> Sequence[int]:
        return [rank for part in self._parts for rank in part.list_awaited()]


def _wait_all(requests: Sequence[Request], statuses: list[Status] | None) -> list[Any]:
    engine = runtime.engine
    for request in requests:
        transfer = request._active()
        if transfer is not None and not transfer.poll():
            try:
                engine.wait(transfer)
            except Exception as error:
                transfer.error = transfer.error or error
                transfer.done = True
    return _take_all(requests, statuses)


def _have_all_ended(requests: Sequence[Request]) -> bool:
    runtime.engine.progress()
    return all(one is None or one.poll() for one in (request._active() for request in requests))


def _take_all(requests: Sequence[Request], statuses: list[Status] | None) -> list[Any]:
    filled = _extend(statuses, len(requests))
    results: list[Any] = []
    failures: list[Exception] = []
    for at, request in enumerate(requests):
        status = filled[at] if at < len(filled) else None
        try:
            results.append(request._take(status))
        except Exception as error:
            failures.append(error)
            results.append(None)
    _raise_first(failures, len(filled) > 0)
    return results


def _raise_first(failures: list[Exception], has_statuses: bool) -> None:
    if not failures:
        return
    if has_statuses:
        raise errors.make_error(
            ERR_IN_STATUS, f"{len(failures)} requests failed, the first: {failures[0]}"
        ) from failures[0]
    raise failures[0]


def _wait_some(
    requests: Sequence[Request], statuses: list[Status] | None
) -> tuple[list[int] | None, list[Any] | None]:
    _wait_for_one(requests)
    return _test_some(requests, statuses)


def _test_some(
    requests: Sequence[Request], statuses: list[Status] | None
) -> tuple[list[int] | None, list[Any] | None]:
    if not any(_is_active(request) for request in requests):
        return None, None
    runtime.engine.progress()
    ended = [
        at
        for at, request in enumerate(requests)
        if (one := request._active()) is not None and one.poll()
    ]
    return ended, _take_all([requests[at] for at in ended], statuses)


REQUEST_NULL = Request()._name_constant("REQUEST_NULL")
"""The null request."""
