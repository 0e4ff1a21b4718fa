"""Joint decisions of a group's members, independent of losses meanwhile.

    agree    logical and of all flags
    shrink   new group of the present members
    grow     the present members, followed by `wanted` newcomers
    admit    the present members, followed by all waiting newcomers up to `max_members`
    replace  the present members, with newcomers on vacant ranks up to `wanted` members

A decision is made once, when every present member has submitted its request, so it is the same for
all. `committed` is the last call that counts as completed for all: completed by some member, or
with its result complete on every member.
"""

from collections.abc import Sequence
from dataclasses import field

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import check_name
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import ChangeGroup
from allhands_server.machine.values import GroupChange
from allhands_server.machine.world.world import World
from allhands_server.machine.world.world_state import WORLD
from allhands_server.machine.world_changes import GroupDecided

_KINDS = ("agree", "shrink", "grow", "admit", "replace")


@dataclass(slots=True)
class _Proposal:
    first: ChangeGroup
    requests: dict[int, tuple[int, ChangeGroup]] = field(
        default_factory=dict
    )  # rank -> ticket, request


class GroupChanges:
    """The pending decisions of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._proposals: dict[str, _Proposal] = {}
        self._tickets: dict[int, tuple[str, int]] = {}  # ticket -> group, rank
        world.on_change = self.reconsider

    def submit(self, ticket: int, request: ChangeGroup, now: float) -> list[Effect]:
        """Add a member's request; the last present member's decides.

        Raises:
            Refused: invalid, or different from the requests of other members.
        """
        check_name("the name of the group", request.group)
        if request.kind not in _KINDS:
            raise Refused(Status.INVALID_ARGUMENT, f"nobody can {quote(request.kind)}")
        asker = self._world.find_member(request.member_id)
        ranks = self._list_ranks(request.group)
        if asker.rank not in ranks:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"{asker} is not in group {quote(request.group)}",
            )
        decided = self._world.find_decision(request.group, asker.rank, request.number)
        if decided is not None:
            return [Answer(ticket, self._describe(decided, now))]
        proposal = self._proposals.get(request.group) or _Proposal(request)
        if (request.kind, request.wanted) != (proposal.first.kind, proposal.first.wanted):
            other = self._world.members[next(iter(proposal.requests))]
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{asker} calls {_describe_request(request)} on group {quote(request.group)}, "
                f"but {other} called {_describe_request(proposal.first)}: "
                "all ranks must call the same",
            )
        if self._world.max_members and request.kind == "grow":
            size = len(self._list_present(ranks)) + request.wanted
            if size > self._world.max_members:
                raise Refused(
                    Status.FAILED_PRECONDITION,
                    f"with {request.wanted} more, group {quote(request.group)} would have "
                    f"{size} ranks: max_size is {self._world.max_members}",
                )
        replaced: list[Effect] = []
        if (pending := proposal.requests.get(asker.rank)) is not None:
            if not request.number or pending[1].number != request.number:
                raise Refused(Status.ALREADY_EXISTS, f"{asker} has asked already")
            text = f"{asker} asks again on another connection"
            replaced = [Refuse(pending[0], Refusal(Status.ABORTED, text))]
            del self._tickets[pending[0]]
        self._proposals[request.group] = proposal
        proposal.requests[asker.rank] = (ticket, request)
        self._tickets[ticket] = (request.group, asker.rank)
        return [*replaced, *self._decide(request.group, now)]

    def cancel(self, ticket: int) -> None:
        """Undo a member's request. Idempotent."""
        if (place := self._tickets.pop(ticket, None)) is None:
            return
        group, rank = place
        proposal = self._proposals[group]
        del proposal.requests[rank]
        if not proposal.requests:
            del self._proposals[group]
        self._update_wanted()

    def expire(self, ticket: int, now: float) -> Effect:
        """Refuse a request past the due time, naming the missing members."""
        group, _ = self._tickets[ticket]
        proposal = self._proposals[group]
        present = self._list_present(self._list_ranks(group))
        absent = [
            str(self._world.members[rank]) for rank in present if rank not in proposal.requests
        ]
        called = f"{_describe_request(proposal.first)} of group {quote(group)}"
        if absent:
            text = f"{called}: {join_names(absent, quoted=False)} did not call it"
        else:
            there, needed = len(self._world.newcomers), self._count_needed(proposal.first, present)
            text = f"{called}: {there} of {needed} newcomers have joined the job"
        self.cancel(ticket)
        return Refuse(ticket, Refusal(Status.DEADLINE_EXCEEDED, text))

    def reconsider(self, now: float) -> list[Effect]:
        """Decide again after members came or left."""
        effects: list[Effect] = []
        for group in list(self._proposals):
            if group in self._proposals:
                effects += self._decide(group, now)
        return effects

    # ------------------------------------------------------------ inside

    def _decide(self, group: str, now: float) -> list[Effect]:
        proposal, ranks = self._proposals[group], self._list_ranks(group)
        gone = [rank for rank in proposal.requests if rank not in self._world.present]
        effects: list[Effect] = [self._refuse_gone(proposal, rank) for rank in gone]
        if not proposal.requests:
            del self._proposals[group]
        self._update_wanted()
        present = self._list_present(ranks)
        if not proposal.requests or any(rank not in proposal.requests for rank in present):
            return effects
        if not self._is_known(group):
            # Its opening is on the way, on another stream: only then are its ranks known.
            return effects
        request = proposal.first
        asked = [one for _, one in proposal.requests.values()]
        committed = max(max(one.returned for one in asked), min(one.computed for one in asked))
        if request.kind == "agree":
            flag = all(one.flag for one in asked)
            decided = self._decide_for(proposal, self._world.epoch, flag, committed, "", ())
            return [*effects, *self._answer_all(group, self._describe(decided, now))]
        if self._world.broken_links.unreachable.intersection(present):
            # Losing them makes the decision, without them.
            return [*effects, *self._world.lose_unreachable(present, now)]
        waiting = [rank for rank, one in self._world.newcomers.items() if one.is_reachable]
        needed = self._count_needed(request, present)
        if len(waiting) < needed:
            return effects
        if request.kind == "admit":
            most = self._world.max_members
            needed = max(most - len(present), 0) if most else len(waiting)
        newcomers = waiting[:needed]
        if request.kind == "replace":
            chosen = self._fill_ranks(ranks, newcomers)
        else:
            chosen = [*present, *newcomers]
        name = f"{group.partition('@')[0]}@{self._world.epoch + 1}"
        epoch = self._world.epoch + 1
        decided = self._decide_for(proposal, epoch, True, committed, name, chosen)
        decision = self._describe(decided, now)
        welcome = self._world.push_world_formed(name, decision.members, newcomers)
        return [*effects, *self._answer_all(group, decision), *welcome]

    def _decide_for(
        self,
        proposal: _Proposal,
        epoch: int,
        flag: bool,
        committed: int,
        next_group: str,
        ranks: Sequence[int],
    ) -> GroupDecided:
        """Make the decision on a proposal."""
        requests = proposal.requests
        decided = GroupDecided(
            self._world.job,
            proposal.first.group,
            epoch,
            flag,
            committed,
            next_group,
            tuple(ranks),
            self._world.record_newcomers(ranks),
            tuple(requests),
            tuple(one.number for _, one in requests.values()),
        )
        self._world.commit(decided)
        return decided

    def _describe(self, decided: GroupDecided, now: float) -> GroupChange:
        members = self._world.describe_ranks(decided.ranks, now)
        return GroupChange(
            decided.flag, decided.epoch, decided.next_group, members, decided.committed
        )

    def _refuse_gone(self, proposal: _Proposal, rank: int) -> Effect:
        """Refuse the request of a departed member."""
        ticket, _ = proposal.requests.pop(rank)
        del self._tickets[ticket]
        member = self._world.members[rank]
        text = f"{member} is no member of job {self._world.job} any more: {member.reason}"
        return Refuse(ticket, Refusal(Status.ABORTED, text))

    def _answer_all(self, group: str, decision: GroupChange) -> list[Effect]:
        """Answer the callers of a proposal by the decision."""
        proposal = self._proposals.pop(group)
        for ticket, _ in proposal.requests.values():
            del self._tickets[ticket]
        self._update_wanted()
        return [Answer(ticket, decision) for ticket, _ in proposal.requests.values()]

    def _update_wanted(self) -> None:
        """Tell the world how many newcomers may wait even if not elastic."""
        self._world.wanted_newcomers = sum(
            self._count_needed(proposal.first, self._list_present(self._list_ranks(group)))
            for group, proposal in self._proposals.items()
        )

    def _count_needed(self, request: ChangeGroup, present: Sequence[int]) -> int:
        match request.kind:
            case "grow":
                return request.wanted
            case "replace":
                return max(request.wanted - len(present), 0)
            case _:
                return 0

    def _fill_ranks(self, ranks: Sequence[int], newcomers: Sequence[int]) -> list[int]:
        """Put newcomers on vacant ranks, each on the claimed rank if possible."""
        left = list(newcomers)
        places: list[int | None] = [rank if rank in self._world.present else None for rank in ranks]
        for place, holder in enumerate(places):
            claim = [rank for rank in left if self._world.newcomers[rank].join.rank == place]
            if holder is None and claim:
                places[place] = claim[0]
                left.remove(claim[0])
        for place, holder in enumerate(places):
            if holder is None and left:
                places[place] = left.pop(0)
        return [rank for rank in places if rank is not None] + left

    def _list_present(self, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if rank in self._world.present]

    def _is_known(self, group: str) -> bool:
        return group == WORLD or self._world.groups.get_ranks(group) is not None

    def _list_ranks(self, group: str) -> Sequence[int]:
        """List a group's ranks in order; all of the world for an unopened group."""
        ranks = self._world.groups.get_ranks(group)
        return sorted(self._world.members) if ranks is None else ranks


def _describe_request(request: ChangeGroup) -> str:
    return f"{request.kind}({request.wanted})" if request.wanted else request.kind
