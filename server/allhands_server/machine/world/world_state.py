"""Durable state of a world: it changes by changes alone, live and when the log is read."""

from collections.abc import Callable, Iterable, Iterator

from allhands_server.machine import limits
from allhands_server.machine.effects import Aborted, BrokenLinks, MemberLeft, MemberLost
from allhands_server.machine.formatting import quote
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.values import MemberView, Presence
from allhands_server.machine.world.absent_ranks import make_world_verdict
from allhands_server.machine.world.groups import Groups
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.postmortem import Postmortem
from allhands_server.machine.world_changes import (
    CallsAborted,
    FailureNoted,
    GroupClosed,
    GroupDecided,
    GroupOpened,
    LinksAnnounced,
    LossExplained,
    MemberGone,
    MemberRecord,
    WorldChange,
    WorldCompleted,
)

WORLD = "world"
"""Prefix of the names of groups of all members."""
NO_SESSION = 0
"""Session of a member that has not resumed its own since the restart."""

News = MemberLost | MemberLeft | Aborted | BrokenLinks
"""Notifications that a member has to have had."""


class WorldState:
    """Members, groups and decisions of a complete world; empty while the world is forming."""

    def __init__(
        self,
        job: str,
        incarnation: str,
        secret: bytes,
        heartbeat_window: float,
        epoch: int,
        timers: TimerQueue,
    ) -> None:
        """Make the state of a forming world; `heartbeat_window` 0: the usual one."""
        self._timers = timers
        self.secret = secret
        """Of this incarnation: its members prove themselves with it."""
        self._first_window = heartbeat_window
        self._formed_size = 0
        self.job = job
        self.incarnation = incarnation
        self.heartbeat_window = heartbeat_window or limits.WINDOW_DEFAULT
        self.epoch = epoch
        self.members: dict[int, Member] = {}
        self.present: dict[int, Member] = {}
        """Members neither lost nor left, by rank."""
        self._by_id: dict[str, Member] = {}
        """Members and newcomers."""
        self.newcomers: dict[int, Member] = {}
        """Workers waiting for a group change, by their future ranks, in order of arrival."""
        self.groups = Groups()
        self.postmortem = Postmortem(self.groups)
        self._agreements: dict[str, GroupDecided] = {}  # the last of each open group
        self._regroupings: dict[str, GroupDecided] = {}  # the last that followed each group
        self._news: list[tuple[int, News]] = []  # with their numbers, in order
        self._news_count = 0
        self.on_links_announced: Callable[[LinksAnnounced], None] = lambda change: None
        """Called with broken links that all members are told of."""
        self._facts: list[WorldChange] = []
        """Changes that make this world again, without groups and agreements."""

    @property
    def size(self) -> int:
        """The agreed size; 0 while unknown."""
        sized = self._find_sized_member()
        return self._formed_size or (sized.join.world_size if sized is not None else 0)

    @property
    def state(self) -> str:
        if not self._formed_size:
            return "forming" if self.members else "empty"
        match len(self.present):
            case 0:
                return "ended"
            case self._formed_size:
                return "running"
            case _:
                return "degraded"

    @property
    def is_forming(self) -> bool:
        return not self._formed_size

    @property
    def is_live(self) -> bool:
        """Whether the world has formed and has members."""
        return bool(self._formed_size and self.present)

    def is_outside(self, member: Member) -> bool:
        """Whether the member belongs to no formed world."""
        return not self._formed_size or member.rank in self.newcomers

    def get_member(self, member_id: str) -> Member | None:
        """Return the member with this identity, also one that is gone; not a newcomer."""
        member = self._by_id.get(member_id)
        return None if member is None or member.rank in self.newcomers else member

    def find_member(self, member_id: str) -> Member:
        """Return the present member with this identity.

        Raises:
            Refused: no such member, or departed.
        """
        if (member := self.get_member(member_id)) is None:
            raise Refused(Status.NOT_FOUND, f"job {self.job} has no member {quote(member_id)}")
        if not member.is_present:
            raise Refused(
                Status.ABORTED,
                f"{member} is no member of job {self.job} any more: {member.reason}",
            )
        return member

    def _find_sized_member(self) -> Member | None:
        return next((one for one in self.members.values() if one.join.world_size), None)

    # ------------------------------------------------------------ changes

    def apply(self, change: WorldChange) -> None:
        """Make a change of this world; verdicts are kept elsewhere."""
        match change:
            case GroupOpened(_, group, ranks, opener):
                self.groups.open(group, ranks, opener)
                return
            case GroupClosed(_, group, rank):
                self._close_group(group, rank)
                return
            case WorldCompleted():
                self._complete(change)
            case MemberGone():
                self._remove_member(change)
            case LossExplained(_, loss):
                self.members[loss.rank].loss = loss
            case FailureNoted(_, rank):
                member = self.members.get(rank)
                self.postmortem.add_failure(change, member, self._timers.now)
            case CallsAborted(_, group, by, reason):
                self._drop_aborts(group)
                self._add_news(Aborted(group, by, reason))
            case LinksAnnounced(_, verdict, ranks):
                pairs = tuple(zip(ranks[::2], ranks[1::2], strict=True))
                self._add_news(BrokenLinks(verdict, pairs))
                self.on_links_announced(change)
            case GroupDecided():
                self._note_decision(change)
                if not change.next_group:
                    return
            case _:
                raise AssertionError(f"{change} is no change of a world's members")
        if self._formed_size:
            self._facts.append(change)

    def list_changes(self) -> Iterator[WorldChange]:
        """Iterate over changes that make this world again; none while the world is forming."""
        for fact in self._facts:
            yield fact
            if isinstance(fact, GroupDecided):
                yield from self._list_closings(fact)
        yield from [GroupOpened(self.job, *one) for one in self.groups.list_openings()]
        yield from self._agreements.values()

    def _list_closings(self, decided: GroupDecided) -> list[GroupClosed]:
        """Return the closings since, of the group that a decision has opened."""
        group = decided.next_group
        openers = self.groups.get_openers(group)
        return [GroupClosed(self.job, group, rank) for rank in decided.ranks if rank not in openers]

    def record_newcomers(self, ranks: Iterable[int]) -> tuple[MemberRecord, ...]:
        """Return what is kept of the newcomers among the ranks."""
        return tuple(
            record_member(self.newcomers[rank]) for rank in ranks if rank in self.newcomers
        )

    def describe_ranks(self, ranks: Iterable[int], now: float) -> tuple[MemberView, ...]:
        return tuple(self.members[rank].describe(now) for rank in ranks)

    def find_decision(self, group: str, rank: int, number: int) -> GroupDecided | None:
        """Return the decision on a group that a rank's request was part of; 0: of no request."""
        for decided in (self._agreements.get(group), self._regroupings.get(group)):
            if number and decided is not None:
                asked = zip(decided.callers, decided.numbers, strict=True)
                if (rank, number) in asked:
                    return decided
        return None

    def list_news(self, member: Member) -> list[News]:
        """Return the notifications that a member has to have had, in order."""
        return [one for number, one in self._news if number >= member.first_news]

    def count_members(self) -> int:
        """Return the number of members that are present, and of newcomers."""
        return len(self.present) + len(self.newcomers)

    def count_operations(self) -> int:
        """Return the calls that ended well, each counted on each of its ranks."""
        return sum(one.operations for one in self.members.values())

    def count_nbytes(self) -> int:
        """Return the bytes of the arrays of what ended well, each counted on each of its ranks."""
        return sum(one.nbytes for one in self.members.values())

    def count_seconds(self) -> float:
        """Return the seconds that it took, each counted on each of its ranks."""
        return sum(one.seconds for one in self.members.values())

    @property
    def latest_news(self) -> News:
        return self._news[-1][1]

    def has_aborted(self, change: CallsAborted) -> bool:
        """Whether the calls were aborted already, by the same and for the same reason."""
        return change in self._facts

    @property
    def latest_departure(self) -> tuple[int, MemberLeft]:
        """The last news, with its number: that a member has left."""
        number, left = self._news[-1]
        assert isinstance(left, MemberLeft)
        return number, left

    def _add_news(self, one: News) -> None:
        self._news.append((self._news_count, one))
        self._news_count += 1

    def _drop_aborts(self, group: str) -> None:
        """Forget the abort of a group's calls: the group is closed, or a later one follows."""
        self._facts = [one for one in self._facts if not _is_of_group(one, group)]
        self._news = [one for one in self._news if not _is_of_group(one[1], group)]

    def _complete(self, change: WorldCompleted) -> None:
        self._formed_size = len(change.members)
        self.epoch = change.epoch
        for record in change.members:
            if record.rank not in self.members:
                self._restore_member(record)

    def _restore_member(self, record: MemberRecord) -> None:
        """Add a member whose session is still to come back."""
        member = Member(
            record.member_id, NO_SESSION, record.rank, record.join, heard_at=self._timers.now
        )
        member.is_broken = member.is_away = True
        member.counts_first_progress = False
        member.first_news = self._news_count
        self._by_id[member.member_id] = member
        self.members[member.rank] = self.present[member.rank] = member

    def _remove_member(self, change: MemberGone) -> None:
        now, member = self._timers.now, self.members[change.rank]
        member.update_progress(change.progress, now)
        member.presence = Presence.LOST if change.is_lost else Presence.LEFT
        member.reason, member.loss, member.gone_at = change.reason, change.loss, now
        member.is_away = False
        del self.present[member.rank]
        self.epoch = max(self.epoch, change.epoch)
        if not self.present:
            self.postmortem.ended_at = now
        if not change.is_lost:
            if not change.reason:
                self.postmortem.add_leaver(member)
            self._add_news(self._make_left(member, change))
        elif change.loss is not None:
            self._add_news(self._make_lost(member, change))

    def _make_lost(self, member: Member, change: MemberGone) -> MemberLost:
        assert change.loss is not None
        return MemberLost(
            rank=member.rank,
            host=member.join.host,
            pid=member.join.pid,
            reason=change.reason,
            epoch=change.epoch,
            verdict=make_world_verdict([change.loss]),
        )

    def _make_left(self, member: Member, change: MemberGone) -> MemberLeft:
        return MemberLeft(
            rank=member.rank,
            host=member.join.host,
            pid=member.join.pid,
            progress=member.get_progress(self._timers.now),
            error=change.reason,
            epoch=change.epoch,
            traceback=change.traceback,
            aborts=change.aborts,
        )

    def _close_group(self, group: str, rank: int) -> None:
        self.groups.close(group, rank, self.present)
        if self.groups.get_ranks(group) is None:
            self._agreements.pop(group, None)
            self._drop_aborts(group)

    def _note_decision(self, change: GroupDecided) -> None:
        self.epoch = max(self.epoch, change.epoch)
        if not change.next_group:
            self._agreements[change.group] = change
            return
        self._regroupings[change.group] = change
        known = {record.rank: record for record in change.newcomers}
        for rank in change.ranks:
            if rank in self.newcomers:
                member = self.members[rank] = self.present[rank] = self.newcomers.pop(rank)
                member.first_news = self._news_count
            elif rank not in self.members:
                self._restore_member(known[rank])
            self.groups.open(change.next_group, change.ranks, rank)
        if change.next_group.startswith(WORLD):
            self._formed_size = len(change.ranks)
            self.postmortem.clear_failures()


def record_member(member: Member) -> MemberRecord:
    """Return what is kept of a member."""
    return MemberRecord(member.member_id, member.rank, member.join)


def _is_of_group(one: WorldChange | News, group: str) -> bool:
    """Whether this is an abort of the group's calls."""
    return isinstance(one, CallsAborted | Aborted) and one.group == group
