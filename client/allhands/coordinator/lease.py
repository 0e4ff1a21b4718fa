"""Leases for threads, kept alive for the duration of a block."""

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.keeping import find_keep_alive_pause
from allhands.coordinator.kv.records import LeaseStatus
from allhands.coordinator.kv.requests import AnyKvRequest, T
from allhands.deadlines import Timeout
from allhands.errors import AllhandsError, LeaseNotFound


class LeaseRequester(Protocol):
    """Function that makes a request about a lease."""

    def __call__(self, asked: AnyKvRequest[T], timeout: Timeout | None = None, /) -> T: ...


class Lease:
    """A lease of the job: granted at the beginning of a block, kept alive in it, then revoked.

    `is_lost` tells that the keep-alives failed for as long as the lease lives: by then others may
    have what the lease's keys stood for. A thread of this process makes the keep-alives.
    """

    def __init__(self, request: LeaseRequester, job: str, ttl: float, owner: "set[Lease]") -> None:
        """Make a lease that is in `owner` while kept alive."""
        self._request = request
        self.job = job
        self._owner = owner
        self._stopped = threading.Event()
        self._keeping: threading.Thread | None = None
        self.ttl = ttl
        """Seconds."""
        self.number = 0
        """Number of the lease at the coordinator, by which keys are bound; 0: not granted yet."""
        self.lost = threading.Event()
        """Set when the lease is lost."""

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def begin(self, timeout: Timeout | None = None) -> None:
        """Grant the lease, and keep it alive until `stop`."""
        begun = time.monotonic()
        self.number = self._request(
            requests.make_lease_grant(self.job, self.ttl, self.number), timeout
        )
        self._keeping = threading.Thread(
            target=self._keep_alive,
            args=(begun,),
            name=f"keep-alive of lease {self.number}",
            daemon=True,
        )
        self._owner.add(self)
        self._keeping.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        # It may have ended; and without the coordinator it ends by itself.
        with contextlib.suppress(AllhandsError):
            self.revoke(timeout=self.ttl)

    def stop(self) -> None:
        """Stop the keep-alives: the lease ends in its time. Idempotent."""
        self._stopped.set()
        self._owner.discard(self)

    def revoke(self, *, timeout: Timeout | None = None) -> int:
        """End the lease, and delete its keys; return how many.

        Raises:
            LeaseNotFound: the lease has ended before.
        """
        return self._request(requests.make_lease_revoke(self.job, self.number), timeout)

    def status(self, *, timeout: Timeout | None = None) -> LeaseStatus:
        """Return the time left, with the keys.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        return self._request(requests.make_time_to_live(self.job, self.number), timeout)

    def _keep_alive(self, begun: float) -> None:
        """Keep the lease alive until it is lost or stopped; `begun` is before the grant."""
        asked: Any = requests.make_keep_alive(self.job, self.number)
        ends = begun + self.ttl
        while (pause := find_keep_alive_pause(ends, self.ttl, time.monotonic())) is not None:
            if self._stopped.wait(pause) or self._end_if_idle():
                return
            begun = time.monotonic()
            if begun >= ends:
                break
            with contextlib.suppress(AllhandsError):
                try:
                    self._request(asked, ends - begun)
                    ends = begun + self.ttl
                except LeaseNotFound:
                    break
        if not self._stopped.is_set():
            self.lost.set()
            self._on_lost()

    def _end_if_idle(self) -> bool:
        """End the lease if nobody needs it any more; return whether it was ended."""
        return False

    def _on_lost(self) -> None:
        """Hear of the loss, on the thread of the keep-alives."""
