"""Pings of one rank to the peers that its blocked calls over links wait for."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable

from allhands.transport.mesh import Mesh

PING_AFTER = 0.5
"""Seconds of being blocked after which a call has the peers pinged that it waits for."""
PING_SECONDS = 0.25
SILENT_SECONDS = 0.5
"""Who has sent nothing for so long after a ping is said not to answer, where a call fails."""
SILENT_REPORT_AFTER = 1.0
"""The same where calls still go on: a lost packet is sent again within that time."""
_SILENT_POLL_SECONDS = 0.1
"""Seconds between two looks while a peer is silent: that it answers should be known soon."""
_MAX_LATENESS = 0.25
"""Seconds by which a look is late if this rank was held up: answers may lie here unread."""

ListAwaited = Callable[[], Iterable[int]]
"""Gives the ranks of the world that a call waits for now."""


class PingMonitor:
    """Pings of one rank to its peers. Event loop only.

    A silent peer stays so until it answers, whatever calls wait for it by then: `on_silent` is
    called with the peer and the seconds of silence, and `on_answer` once a message arrives again.
    """

    def __init__(
        self, mesh: Mesh, on_silent: Callable[[int, float], None], on_answer: Callable[[int], None]
    ) -> None:
        self._mesh = mesh
        self._on_silent = on_silent
        self._on_answer = on_answer
        self._watches: dict[int, ListAwaited] = {}
        self._watch_ids = itertools.count()
        self._silent: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, list_awaited: ListAwaited) -> Callable[[], None]:
        """Ping the peers that a call waits for, until the returned function is called."""
        number = next(self._watch_ids)
        self._watches[number] = list_awaited
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pings")

        def stop() -> None:
            if self._watches.pop(number, None) is not None and not self._watches:
                self._mesh.stop_pinging(set(self._mesh.awaiting_pong) - self._silent)

        return stop

    def forget(self, peer: int) -> None:
        """Stop expecting answers of a peer after its loss or its link's."""
        self._silent.discard(peer)
        self._mesh.stop_pinging([peer])

    def close(self) -> None:
        """Ping no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        due = time.monotonic()
        while self._watches or self._silent:
            if time.monotonic() - due > _MAX_LATENESS:
                self._mesh.restart_ping_timers()
            wanted = {rank for waiting_for in self._watches.values() for rank in waiting_for()}
            self._mesh.stop_pinging(set(self._mesh.awaiting_pong) - wanted - self._silent)
            for rank in wanted:
                self._mesh.ping(rank)
            self._check_silent()
            seconds = _SILENT_POLL_SECONDS if self._silent else PING_SECONDS
            due = time.monotonic() + seconds
            await asyncio.sleep(seconds)

    def _check_silent(self) -> None:
        silent = self._mesh.find_silent(SILENT_REPORT_AFTER)
        for peer in sorted(self._silent - silent.keys()):
            self._silent.discard(peer)
            self._on_answer(peer)
        for peer in silent.keys() - self._silent:
            self._silent.add(peer)
            self._on_silent(peer, silent[peer])
