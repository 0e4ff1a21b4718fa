"""Pings of one rank to the peers that its blocked calls wait for over links: who answers?"""

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
TOLD_AFTER = 1.0
"""The same where calls still go on: a lost packet is sent again within that time."""
_LOOK_SECONDS = 0.1
"""Seconds between two looks while a peer is silent: that it answers should be known soon."""
_HELD_UP = 0.25
"""Seconds by which a look is late if this rank was held up: answers may lie here unread."""

WaitingFor = Callable[[], Iterable[int]]
"""Gives the ranks of the world that a call waits for now."""


class Pings:
    """The pings of one rank to its peers; lives on the loop.

    A peer that was found silent stays so until it answers, whoever waits for it by then: `silent`
    is told of it with the seconds, and `answers` once something comes again.
    """

    def __init__(
        self, mesh: Mesh, silent: Callable[[int, float], None], answers: Callable[[int], None]
    ) -> None:
        self._mesh = mesh
        self._tell_silent = silent
        self._tell_answers = answers
        self._calls: dict[int, WaitingFor] = {}
        self._numbers = itertools.count()
        self._silent: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, waiting_for: WaitingFor) -> Callable[[], None]:
        """Ping whom a call waits for, until what is returned is called."""
        number = next(self._numbers)
        self._calls[number] = waiting_for
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="pings")

        def stop() -> None:
            if self._calls.pop(number, None) is not None and not self._calls:
                self._mesh.stop_pinging(set(self._mesh.pinged) - self._silent)

        return stop

    def forget(self, peer: int) -> None:
        """Expect nothing more of a peer that is gone, or whose link is."""
        self._silent.discard(peer)
        self._mesh.stop_pinging([peer])

    def close(self) -> None:
        """Ping no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        due = time.monotonic()
        while self._calls or self._silent:
            if time.monotonic() - due > _HELD_UP:
                self._mesh.forgive()
            wanted = {rank for waiting_for in self._calls.values() for rank in waiting_for()}
            self._mesh.stop_pinging(set(self._mesh.pinged) - wanted - self._silent)
            for rank in wanted:
                self._mesh.ping(rank)
            self._look()
            seconds = _LOOK_SECONDS if self._silent else PING_SECONDS
            due = time.monotonic() + seconds
            await asyncio.sleep(seconds)

    def _look(self) -> None:
        silent = self._mesh.unanswered(TOLD_AFTER)
        for peer in sorted(self._silent - silent.keys()):
            self._silent.discard(peer)
            self._tell_answers(peer)
        for peer in silent.keys() - self._silent:
            self._silent.add(peer)
            self._tell_silent(peer, silent[peer])
