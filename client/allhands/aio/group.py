"""Groups with awaited collectives and messages."""

import asyncio
from typing import Unpack

from allhands.aio.collectives import AsyncComposed
from allhands.aio.waiting import await_then_return
from allhands.collectives.arguments import AnyArray
from allhands.engine.p2p.direct_messages import DirectMessages
from allhands.engine.work.work import INLINE_CALLS
from allhands.group.group import Group
from allhands.options import CallOptions
from allhands.tracebacks import trim_traceback


class AsyncGroup(AsyncComposed):
    """A group with awaited calls. Ranks here are ranks of the group.

    The calls are those of `Group`, where arrays, ownership and errors are described; each returns
    its output. A call takes its place in the group's order when it begins to run: tasks that call
    on one group must begin in the same order on every rank.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._ended_at_once = 0

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    async def monitored_barrier(
        self,
        timeout: float | None = None,
        wait_all_ranks: bool = False,
        *,
        label: str | None = None,
    ) -> None:
        """Wait for every rank, or name the missing ones on all ranks.

        Arrays and errors are as for `allhands.monitored_barrier`.
        """
        try:
            await await_then_return(
                self.group.monitored_barrier(timeout, wait_all_ranks, label=label), None
            )
        except Exception as error:
            trim_traceback(error)
            raise

    def abort(self, reason: str) -> None:
        """End the group on all ranks: current and later calls raise `GroupAborted`."""
        self.group.abort(reason)

    async def send(
        self, x: AnyArray, dst: int, tag: int = 0, **options: Unpack[CallOptions]
    ) -> None:
        """Send `x` to rank `dst`; return when `x` may be changed."""
        try:
            links = None if options else self._find_links(dst)
            if links is not None and links.send(x, self.group.ranks[dst], tag, None, None):
                await self._leave_turn()
                return
            await await_then_return(self.group.send(x, dst, tag, **options), None)
        except Exception as error:
            trim_traceback(error)
            raise

    async def recv(
        self, x: AnyArray, src: int | None = None, tag: int = 0, **options: Unpack[CallOptions]
    ) -> int:
        """Receive into `x` from `src`, None: any rank; return the sender's rank."""
        try:
            if src is not None and not options and (links := self._find_links(src)) is not None:
                sender = links.try_recv(x, self.group.ranks[src], tag, None, None)
                if sender >= 0:
                    await self._leave_turn()
                    return src
            work = self.group.recv(x, src, tag, **options)
            await await_then_return(work, None)
            return work.source_rank()
        except Exception as error:
            trim_traceback(error)
            raise

    def _find_links(self, rank: int) -> DirectMessages | None:
        """Return what messages with a rank may go by at once; they decline what does not."""
        order = self.group.order
        if order.p2p is not None or type(rank) is not int or not 0 <= rank < self.size:
            return None
        direct = order.direct_p2p
        return direct if isinstance(direct, DirectMessages) else None

    async def _leave_turn(self) -> None:
        """Leave other tasks a turn after so many messages that ended at once."""
        self._ended_at_once += 1
        if self._ended_at_once % INLINE_CALLS == 0:
            await asyncio.sleep(0)

    def revoke(self, reason: str = "it was revoked") -> None:
        """Release every rank from its calls on this group; see `Group.revoke`."""
        self.group.revoke(reason)

    async def agree(self, flag: bool = True, *, timeout: float | None = None) -> bool:
        """Return whether all surviving ranks gave a true flag; see `Group.agree`."""
        try:
            return await asyncio.to_thread(self.group.agree, flag, timeout=timeout)
        except Exception as error:
            trim_traceback(error)
            raise

    async def shrink(self, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of the surviving ranks; see `Group.shrink`."""
        try:
            return AsyncGroup(await asyncio.to_thread(self.group.shrink, timeout=timeout))
        except Exception as error:
            trim_traceback(error)
            raise

    async def grow(self, count: int, *, timeout: float | None = None) -> "AsyncGroup":
        """Return a group of surviving and new ranks; see `Group.grow`."""
        try:
            return AsyncGroup(await asyncio.to_thread(self.group.grow, count, timeout=timeout))
        except Exception as error:
            trim_traceback(error)
            raise
