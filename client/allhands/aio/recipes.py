"""Steps of recipes carried out for tasks."""

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from allhands.aio.lease import AsyncLease
from allhands.aio.watch import Requester
from allhands.coordinator.kv import requests
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.session import Session, make_identity, make_lease_number
from allhands.coordinator.recipes.steps import (
    Ask,
    Await,
    Background,
    OpenSession,
    Pause,
    Step,
    Steps,
)
from allhands.errors import AllhandsError, CoordinatorUnavailable, LockLost

T = TypeVar("T")
_CLOSE_SECONDS = 1.0
"""For which the end of a client waits for that of its sessions; then they end by themselves."""


class _SessionLease(AsyncLease):
    """The lease of a session, which ends when nobody has used it for a while."""

    def __init__(self, driver: "AsyncDriver", ttl: float, owner: set[AsyncLease]) -> None:
        super().__init__(driver.client, ttl, owner)
        self._driver = driver
        self.number = make_lease_number()
        self.session = Session(self.number, ttl)

    async def _end_if_idle(self) -> bool:
        if not self._driver.drop_idle(self.session):
            return False
        self._owner.discard(self)
        with contextlib.suppress(AllhandsError):  # then it ends in its time
            await self.revoke(timeout=self.ttl)
        return True

    def _on_lost(self) -> None:
        self._driver.forget(self.session)
        self.session.lose()


class AsyncDriver:
    """The sessions of an asyncio client, and the way in which steps are carried out."""

    def __init__(self, client: Requester, leases: set[AsyncLease]) -> None:
        """Make a driver without sessions, whose leases are in `leases` while kept alive."""
        self.client = client
        self.holdings: Holdings = {}
        self._leases = leases
        self._sessions: dict[float, _SessionLease] = {}
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        """Steps beside their callers, and requests of callers that were cancelled."""

    async def run(self, steps: Steps[T]) -> T:
        """Carry out steps one after the other; return the result.

        Whatever a step raises is raised within the generator, and so is a cancellation.
        """
        go_on: Callable[[], Step] = partial(next, steps)
        while True:
            try:
                go_on = partial(steps.send, await self._perform(go_on()))
            except StopIteration as done:
                result: T = done.value
                return result
            except BaseException as error:
                if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                    raise
                go_on = partial(steps.throw, error)

    async def aclose(self) -> None:
        """End the sessions, and with them all that is held; end what runs beside. Idempotent."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        ended, self._sessions = list(self._sessions.values()), {}
        for lease in ended:
            await lease.stop()
            asked = requests.make_lease_revoke(self.client.job_name, lease.number)
            with contextlib.suppress(AllhandsError):  # then it ends in its time
                await self._start(self.client.request(asked, _CLOSE_SECONDS))
            lease.session.lose()

    def forget(self, session: Session) -> None:
        """Let nobody else use a session. Idempotent."""
        lease = self._sessions.get(session.ttl)
        if lease is not None and lease.session is session:
            del self._sessions[session.ttl]

    def drop_idle(self, session: Session) -> bool:
        """Forget a session that had no user since this was asked for; return whether it was."""
        if session.users or session.was_used:
            session.was_used = False
            return False
        self.forget(session)
        return True

    # ------------------------------------------------------------ steps

    async def _perform(self, step: Step) -> Any:
        match step:
            case Ask(asked, timeout, is_detached):
                if not is_detached:
                    return await self.client.request(asked, timeout)
                # It goes on where the caller is cancelled meanwhile.
                return await asyncio.shield(self._start(self.client.request(asked, timeout)))
            case Await(asked, timeout, session):
                return await self._await(asked, timeout, session)
            case OpenSession():
                return await self._open_session(step)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Background(steps):
                self._start(self.run(steps))
        return None

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of this client, without the deadlines of blocks around."""
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # has been told where it was awaited

    async def _await(self, asked: AnyKvRequest[Any], timeout: float, session: Session) -> Any:
        waiting = asyncio.ensure_future(self.client.request(asked, timeout))
        with session.hold(waiting.cancel):
            try:
                return await waiting
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                if self._is_closed:
                    raise CoordinatorUnavailable("this client has been closed") from error
                raise LockLost("the lease was lost during the wait") from error

    async def _open_session(self, step: OpenSession) -> Session:
        deadline = time.monotonic() + step.timeout
        async with self._opening:
            lease = self._sessions.get(step.ttl)
            if lease is None or lease.session.is_lost:
                lease = _SessionLease(self, step.ttl, self._leases)
                await lease.begin(max(deadline - time.monotonic(), 0.0))
                try:
                    identity = make_identity(self.client.job_name, lease.session)
                    await self.client.request(identity, max(deadline - time.monotonic(), 0.0))
                except BaseException:
                    await lease.stop()
                    raise
                self._sessions[step.ttl] = lease
            lease.session.add(step.user)
            return lease.session
