"""Fabric of two fabrics: the second is for peers unreachable over the first."""

import logging
import math
from collections.abc import Callable

from allhands.transport.link import ActivityReporter, Fabric, Link, LinkBroken, Unreachable

logger = logging.getLogger(__name__)


class FallbackFabric:
    """Dials over the first fabric; over the second where nobody can be connected to.

    Both deliver to one receiver. `name` says who a rank is.
    """

    def __init__(self, first: Fabric, second: Fabric, name: Callable[[int], str]) -> None:
        self._first = first
        self._second = second
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

    def get_last_activity(self, peer: int) -> float:
        both = (self._first, self._second)
        return max(
            (one.get_last_activity(peer) for one in both if isinstance(one, ActivityReporter)),
            default=-math.inf,
        )

    async def aclose(self) -> None:
        await self._first.aclose()
        await self._second.aclose()
