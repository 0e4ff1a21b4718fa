"""Leases for asyncio, kept alive for the duration of a block."""

import asyncio
import contextlib
import contextvars
import time
from types import TracebackType
from typing import Self

from allhands.aio.watch import Requester
from allhands.coordinator.kv import requests
from allhands.coordinator.kv.keeping import find_keep_alive_pause
from allhands.coordinator.kv.records import LeaseStatus
from allhands.deadlines import Timeout
from allhands.errors import AllhandsError, LeaseNotFound


class AsyncLease:
    """A lease of the job: granted at the beginning of a block, kept alive in it, then revoked.

    `is_lost` tells that the keep-alives failed for as long as the lease lives: by then others may
    have what the lease's keys stood for.
    """

    def __init__(self, client: Requester, ttl: float, owner: "set[AsyncLease]") -> None:
        """Make a lease that is in `owner` while kept alive."""
        self._client = client
        self._owner = owner
        self._keeping: asyncio.Task[None] | None = None
        self._is_ended = False
        self.ttl = ttl
        """Seconds."""
        self.number = 0
        """Number of the lease at the coordinator, by which keys are bound; 0: not granted yet."""
        self.lost = asyncio.Event()
        """Set when the lease is lost."""

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def begin(self, timeout: Timeout | None = None) -> None:
        """Grant the lease, and keep it alive until `stop`."""
        begun = time.monotonic()
        asked = requests.make_lease_grant(self._client.job_name, self.ttl, self.number)
        self.number = await self._client.request(asked, timeout)
        self._keeping = asyncio.create_task(
            self._keep_alive(begun),
            name=f"keep-alive of lease {self.number}",
            context=contextvars.Context(),  # without the deadlines of blocks around
        )
        self._owner.add(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        # It may have ended; and without the coordinator it ends by itself.
        with contextlib.suppress(AllhandsError):
            await self.revoke(timeout=self.ttl)

    async def stop(self) -> None:
        """Stop the keep-alives: the lease ends in its time. Idempotent."""
        self._owner.discard(self)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    async def revoke(self, *, timeout: Timeout | None = None) -> int:
        """End the lease, and delete its keys; return how many.

        Raises:
            LeaseNotFound: the lease has ended before.
        """
        asked = requests.make_lease_revoke(self._client.job_name, self.number)
        return await self._client.request(asked, timeout)

    async def status(self, *, timeout: Timeout | None = None) -> LeaseStatus:
        """Return the time left, with the keys.

        Raises:
            LeaseNotFound: the lease has ended.
        """
        asked = requests.make_time_to_live(self._client.job_name, self.number)
        return await self._client.request(asked, timeout)

    async def _keep_alive(self, begun: float) -> None:
        """Keep the lease alive until it is lost; `begun` is before the grant."""
        asked = requests.make_keep_alive(self._client.job_name, self.number)
        ends = begun + self.ttl
        try:
            while (pause := find_keep_alive_pause(ends, self.ttl, time.monotonic())) is not None:
                await asyncio.sleep(pause)
                if await self._end_if_idle():
                    self._is_ended = True
                    return
                begun = time.monotonic()
                if begun >= ends:
                    break
                with contextlib.suppress(AllhandsError):
                    try:
                        await self._client.request(asked, ends - begun)
                        ends = begun + self.ttl
                    except LeaseNotFound:
                        break
        finally:
            if not _is_stopped() and not self._is_ended:
                self.lost.set()
                self._on_lost()

    async def _end_if_idle(self) -> bool:
        """End the lease if nobody needs it any more; return whether it was ended."""
        return False

    def _on_lost(self) -> None:
        """Hear of the loss."""


def _is_stopped() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
