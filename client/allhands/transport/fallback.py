"""Fabric of two fabrics: the second is for peers unreachable over the first."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from allhands.transport.link import (
    ActivityReporter,
    Fabric,
    Lender,
    Link,
    LinkBroken,
    Unreachable,
)

if TYPE_CHECKING:
    from allhands._native import LinkState

logger = logging.getLogger(__name__)


class FallbackFabric:
    """Dials over the first fabric; over the second where nobody can be connected to.

    Both deliver to one receiver. `name` says who a rank is.
    """

    def __init__(self, first: Fabric, second: Fabric, name: Callable[[int], str]) -> None:
        self._first = first
        self._lender = first if isinstance(first, Lender) else None
        self._second = second
        self._reporters = [one for one in (first, second) if isinstance(one, ActivityReporter)]
        self._name = name

    async def dial(self, peer: int) -> Link:
        try:
            return await self._first.dial(peer)
        except Unreachable as error:
            try:
                link = await self._second.dial(peer)
            except LinkBroken as second:
                raise LinkBroken(f"{error}; and over gRPC: {second}") from second
            logger.warning("the link to %s goes over gRPC: %s", self._name(peer), error)
            return link

    def pump(self, seconds: float) -> bool:
        return self._first.pump(seconds)

    def lend(self, peer: int, state: "LinkState") -> bool:
        return self._lender is not None and self._lender.lend(peer, state)

    def deliver(self, peer: int, frame: bytes) -> None:
        self._get_lender().deliver(peer, frame)

    def read_ahead(self, peer: int) -> None:
        self._get_lender().read_ahead(peer)

    def send_rest(self, peer: int, rest: bytes) -> None:
        self._get_lender().send_rest(peer, rest)

    def _get_lender(self) -> Lender:
        assert self._lender is not None, "only what was lent is given back"
        return self._lender

    def get_last_activity(self, peer: int) -> float:
        return max((one.get_last_activity(peer) for one in self._reporters), default=-math.inf)

    def get_recovery_seconds(self, peer: int) -> float:
        return max((one.get_recovery_seconds(peer) for one in self._reporters), default=0.0)

    async def aclose(self) -> None:
        await self._first.aclose()
        await self._second.aclose()
