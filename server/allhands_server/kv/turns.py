"""Turns of key-value connections: calls beyond a few wait for a turn, fair among jobs.

Between two turns the loop serves everything else: new calls, sessions, calls of the gRPC port.
"""

import asyncio
import time
from typing import Protocol

from allhands_server.machine.fair_order import FairOrder

_TURN_SECONDS = 0.0005
"""Of all connections together: so long the rest of the loop waits."""
_CALLS_AT_ONCE = 32
"""Of a connection, as long as no other one waits for a turn."""
_CALLS_PER_SLICE = 8
"""Of a connection, before the next job has its turn."""


class TurnTaker(Protocol):
    """A connection with calls."""

    @property
    def job(self) -> str:
        """The job whose turns it takes."""

    def run_calls(self, most: int, until: float) -> bool:
        """Carry out calls, `most` of them, and none after `until`; return whether more can be."""

    def end_turn(self) -> None:
        """Write the replies of the calls that were carried out."""


class Turns:
    """All connections with calls that wait for a turn; on the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._order: FairOrder[TurnTaker] = FairOrder()
        self._is_scheduled = False

    def run(self, taker: TurnTaker) -> None:
        """Carry out calls of a connection: now if nobody waits, and the others in turns."""
        if self._order or taker.run_calls(_CALLS_AT_ONCE, time.monotonic() + _TURN_SECONDS):
            self._order.add(taker, taker.job)
            self._schedule()
        taker.end_turn()

    def discard(self, taker: TurnTaker) -> None:
        """Forget a connection that is over. Idempotent."""
        self._order.discard(taker)

    def _schedule(self) -> None:
        if self._order and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._is_scheduled = False
        until = time.monotonic() + _TURN_SECONDS
        served: dict[TurnTaker, None] = {}
        try:
            while self._order:
                taker = self._order.take()
                served[taker] = None
                if taker.run_calls(_CALLS_PER_SLICE, until):
                    self._order.add(taker, taker.job)
                if time.monotonic() >= until:
                    break
        finally:
            self._schedule()
            for taker in served:
                taker.end_turn()
