"""Steps of recipes carried out for threads."""

import contextlib
import contextvars
import threading
import time
from typing import Any, Protocol, TypeVar

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.cancelling import CallCanceller
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.lease import Lease
from allhands.coordinator.recipes.fair_queue import Holdings
from allhands.coordinator.recipes.session import Session, make_identity, make_lease_number
from allhands.coordinator.recipes.steps import (
    Ask,
    Await,
    Background,
    ClientClosed,
    OpenSession,
    Pause,
    Step,
    Steps,
    run_steps,
)
from allhands.deadlines import Timeout
from allhands.errors import AllhandsError, CoordinatorUnavailable, LockLost, StoreTimeout
from allhands_proto import forks

T = TypeVar("T")
_CLOSE_SECONDS = 1.0
"""For which the end of a client waits for that of its sessions; then they end by themselves."""


class Requester(Protocol):
    """Function that makes a request of a recipe."""

    def __call__(
        self,
        asked: AnyKvRequest[Any],
        timeout: Timeout | None = None,
        canceller: CallCanceller | None = None,
        /,
    ) -> Any: ...


class _SessionLease(Lease):
    """The lease of a session, which ends when nobody has used it for a while."""

    def __init__(self, driver: "BlockingDriver", job: str, ttl: float, owner: set[Lease]) -> None:
        super().__init__(driver.request, job, ttl, owner)
        self._driver = driver
        self.number = make_lease_number()
        self.session = Session(self.number, ttl)

    def _end_if_idle(self) -> bool:
        if not self._driver.drop_idle(self.job, self.session):
            return False
        self.stop()
        with contextlib.suppress(AllhandsError):  # then it ends in its time
            self.revoke(timeout=self.ttl)
        return True

    def _on_lost(self) -> None:
        self._driver.forget(self.job, self.session)
        self.session.lose()


class BlockingDriver:
    """The sessions of a synchronous client, and the way in which steps are carried out."""

    def __init__(self, request: Requester, leases: set[Lease]) -> None:
        """Make a driver without sessions, whose leases are in `leases` while kept alive."""
        self.request = request
        self._leases = leases
        self._begin()
        forks.hold(self)

    def forked(self) -> None:
        """Leave the sessions to the parent."""
        self._begin()

    def _begin(self) -> None:
        self.holdings: Holdings = {}
        self._sessions: dict[tuple[str, float], _SessionLease] = {}
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._closed = threading.Event()

    def run(self, job: str, steps: Steps[T]) -> T:
        """Carry out steps for the keys of a job; return the result."""
        return run_steps(steps, lambda step: self._perform(job, step))

    def close(self) -> None:
        """End the sessions, and with them all that is held; end what runs beside. Idempotent."""
        self._closed.set()
        with self._lock:
            ended, self._sessions = list(self._sessions.values()), {}
        deadline = time.monotonic() + _CLOSE_SECONDS
        for lease in ended:
            lease.stop()
            with contextlib.suppress(AllhandsError):  # then it ends in its time
                self._ask_detached(
                    requests.make_lease_revoke(lease.job, lease.number),
                    max(deadline - time.monotonic(), 0.0),
                )
            lease.session.lose()

    def forget(self, job: str, session: Session) -> None:
        """Let nobody else use a session. Idempotent."""
        with self._lock:
            self._drop(job, session)

    def drop_idle(self, job: str, session: Session) -> bool:
        """Forget a session that had no user since this was asked for; return whether it was."""
        with self._lock:
            if session.users or session.was_used:
                session.was_used = False
                return False
            self._drop(job, session)
            return True

    def _drop(self, job: str, session: Session) -> None:
        lease = self._sessions.get((job, session.ttl))
        if lease is not None and lease.session is session:
            del self._sessions[job, session.ttl]

    # ------------------------------------------------------------ steps

    def _perform(self, job: str, step: Step) -> Any:
        match step:
            case Ask(asked, timeout, is_detached):
                return (
                    self._ask_detached(asked, timeout)
                    if is_detached
                    else self.request(asked, timeout)
                )
            case Await(asked, timeout, session):
                return self._await(asked, timeout, session)
            case OpenSession():
                return self._open_session(job, step)
            case Pause(seconds):
                if self._closed.wait(seconds):
                    raise ClientClosed
            case Background(steps):
                threading.Thread(
                    target=self._run_beside, args=(job, steps), name="leave a queue", daemon=True
                ).start()
        return None

    def _ask_detached(self, asked: AnyKvRequest[Any], timeout: float) -> Any:
        """Make a request without the deadlines of blocks around."""
        return contextvars.Context().run(self.request, asked, timeout)

    def _await(self, asked: AnyKvRequest[Any], timeout: float, session: Session) -> Any:
        canceller = CallCanceller()
        with session.hold(canceller.cancel):
            try:
                return self.request(asked, timeout, canceller)
            except CoordinatorUnavailable as error:
                if session.is_lost and not self._closed.is_set():
                    raise LockLost("the lease was lost during the wait") from error
                raise

    def _open_session(self, job: str, step: OpenSession) -> Session:
        deadline = time.monotonic() + step.timeout
        if (found := self._use_session(job, step)) is not None:
            return found
        if not self._opening.acquire(timeout=step.timeout):
            raise StoreTimeout("timeout: the coordinator grants no lease")
        try:
            if (found := self._use_session(job, step)) is not None:
                return found
            return self._grant(job, step, deadline)
        finally:
            self._opening.release()

    def _use_session(self, job: str, step: OpenSession) -> Session | None:
        """Return the session that there is, with one more user."""
        with self._lock:
            lease = self._sessions.get((job, step.ttl))
            if lease is None or lease.session.is_lost:
                return None
            lease.session.add(step.user)
            return lease.session

    def _grant(self, job: str, step: OpenSession, deadline: float) -> Session:
        lease = _SessionLease(self, job, step.ttl, self._leases)
        lease.begin(step.timeout)
        try:
            identity = make_identity(job, lease.session)
            self.request(identity, max(deadline - time.monotonic(), 0.0))
        except BaseException:
            lease.stop()
            raise
        with self._lock:
            if self._closed.is_set():
                lease.stop()
                raise CoordinatorUnavailable("this client has been closed")
            self._sessions[job, step.ttl] = lease
            lease.session.add(step.user)
        return lease.session

    def _run_beside(self, job: str, steps: Steps[None]) -> None:
        with contextlib.suppress(ClientClosed):
            self.run(job, steps)
