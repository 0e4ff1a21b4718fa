"""Announcement of broken links: once to all members, when both ends are known to live."""

from collections.abc import Callable, Sequence

from allhands_server.machine.effects import BrokenLinks, Effect
from allhands_server.machine.formatting import join_names
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.absent_ranks import judge_unreachable, make_world_verdict
from allhands_server.machine.world.broken_links import (
    BrokenLinkReports,
    Pair,
    choose_culprits,
    order_pair,
)
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world_changes import LinksAnnounced

ANNOUNCE_SECONDS = 0.3
"""Time in which links that broke together are reported, and suspects answer their probes."""


class BrokenLinkMonitor:
    """The broken links of one world."""

    def __init__(self, world: WorldContext, timers: TimerQueue) -> None:
        self._world = world
        self._timers = timers
        self._reports = BrokenLinkReports()
        self._timer: Timer | None = None
        self.unreachable: set[int] = set()
        """Ranks alive, but out of reach of others: no group goes on with them."""
        self.on_announced: Callable[[Sequence[Pair]], None] = lambda pairs: None
        """Called with links that all members have been told of."""

    def report(self, pair: Pair, reason: str, now: float) -> None:
        """Take a report of a broken link, to be announced soon."""
        if self._reports.add(*pair, reason):
            self._schedule(now)

    def is_announced(self, pair: Pair) -> bool:
        """Whether all members know that the two ranks cannot reach each other."""
        return self._reports.is_announced(pair)

    def note_announced(self, change: LinksAnnounced) -> None:
        """Note links that all members are told of."""
        pairs = zip(change.ranks[::2], change.ranks[1::2], strict=True)
        self._reports.note_announced(order_pair(*pair) for pair in pairs)
        self.unreachable.update(one.rank for one in change.verdict.absent)

    def discard(self, pair: Pair) -> None:
        """Drop the report of an unannounced link. Idempotent."""
        self._reports.discard(pair)

    def stop(self) -> None:
        """Announce nothing more; the world has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, now: float) -> None:
        if self._timer is None and not self._world.is_forming:
            self._timer = self._timers.schedule(now + ANNOUNCE_SECONDS, self._announce)

    def _announce(self, now: float) -> list[Effect]:
        """Notify all members of broken links with two answering ends."""
        self._timer = None
        members, present = self._world.members, self._world.present
        self._reports.drop_ranks(members.keys() - present.keys())
        alive = {
            rank
            for rank, one in present.items()
            if one.is_reachable and one.unanswered_since is None
        }
        pairs = [pair for pair in self._reports.open_pairs if alive.issuperset(pair)]
        reasons = self._reports.announce(pairs)
        self.on_announced(pairs)
        if self._reports.open_pairs:
            self._schedule(now)  # until they answer, or are lost
        if not pairs:
            return []
        found = []
        for rank, others in choose_culprits(pairs).items():
            why = sorted({reasons[pair] for pair in pairs if rank in pair})
            reason = join_names(why, quoted=False)
            found.append(judge_unreachable(members[rank], [members[at] for at in others], reason))
        verdict = make_world_verdict(found)
        ranks = tuple(rank for pair in pairs for rank in pair)
        self._world.commit(LinksAnnounced(self._world.job, verdict, ranks))
        log = self._world.events.log("links", verdict.text, now)
        return [*self._world.push_to_present(BrokenLinks(verdict, tuple(pairs))), log]
