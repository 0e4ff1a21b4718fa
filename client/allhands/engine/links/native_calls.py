"""Calls over links in the native core: schedules compiled once, run without the interpreter.

A call goes there if the links to all its peers are idle raw sockets, encrypted or not, and its
messages are short enough to go unasked. What cannot end there goes on as an `Execution`, from the
round that it is in.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from allhands.collectives.buffer import Array, Buffer
from allhands.collectives.part import Part
from allhands.collectives.reduction import OPS, TYPES, ReduceOp, get_dtype_name
from allhands.collectives.schedule import Area, Recv, Round, Schedule, Span
from allhands.collectives.two_level_plan import TwoLevelPlan
from allhands.runtime import native_core
from allhands.transport.lent_links import LentLinks
from allhands.transport.outbox import EAGER_BYTES
from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands._native import HostBoard, HostSteps, LinkCall, LinkRound

_AREAS = {Area.INPUT: 0, Area.OUTPUT: 1, Area.SCRATCH: 2}
_DONE, _LATE, _FOREIGN = 0, 1, 2
_MAX_COMPILED = 64
_MAX_PEERS = 64
"""That a call waits for at once."""
_SPIN_NS = 100_000
"""How long a call looks again and again before it sleeps: about what waking up takes."""
_LONGEST_NS, _TURN_NS = 100_000_000, 5_000_000
"""How long the longest call may hold the loop while its rounds end one after the other, and how
often it is asked whether they do."""
_NO_ROUNDS = Schedule(())
_NOTHING = Buffer((), np.dtype(np.uint8))


@dataclass(slots=True)
class Remainder:
    """What is left of a call that the native core has begun."""

    index: int
    """Round of its schedule."""
    is_begun: bool
    """Whether the copies of that round are made."""
    scratch: NDArray[np.generic]
    has_touched: bool
    """Whether outputs of the part were written."""
    sent: frozenset[tuple[int, int]] = frozenset()
    """Messages that have left: the index of their round, and their place among what it sends."""


@dataclass(slots=True)
class CompiledCall:
    """A schedule in the form of the native core."""

    schedule: Schedule
    call: "LinkCall"
    peers: tuple[int, ...]
    """Ranks of the world, by their place among the links."""
    scratch: NDArray[np.generic]


class NativeCall:
    """A call under way in the native core, which has the links of its peers meanwhile."""

    def __init__(self, links: LentLinks, compiled: CompiledCall) -> None:
        self._links = links
        self._compiled = compiled

    def run(self, is_interrupted: Callable[[], bool], seconds: float) -> bool:
        """Go on for so long, or longer while rounds end; say whether the call has ended."""
        call, peers, links = self._compiled.call, self._compiled.peers, self._links
        since = time.monotonic_ns()
        until, last, ended = since + int(seconds * 1e9), since + _LONGEST_NS, call.at
        try:
            while (stopped := call.run(until, _SPIN_NS)) != _DONE:
                if stopped == _FOREIGN:
                    place, frame = call.take_foreign()
                    links.deliver(peers[place], frame)
                    # What was answered may have left in part: the rest comes first.
                    if is_interrupted() or not links.are_lendable(peers):
                        break
                elif stopped == _LATE and call.at > ended and seconds > 0 and until < last:
                    until, ended = min(time.monotonic_ns() + _TURN_NS, last), call.at
                else:
                    break
        except BaseException:
            self.withdraw()  # so that no frame is left in part
            raise
        if stopped == _DONE:
            links.take_back(peers)
        return stopped == _DONE

    @property
    def is_across(self) -> bool:
        """Whether the call is among the rounds of its schedule, and not before or behind them."""
        return self._compiled.call.is_across

    def withdraw(self) -> Remainder:
        """End the call here, where it has not ended; what is left is for an `Execution`."""
        compiled = self._compiled
        index, is_begun, sent, rests = compiled.call.withdraw()
        for place, rest in rests:
            self._links.send_rest(compiled.peers[place], rest)
        has_landed = compiled.call.has_landed
        return Remainder(index, is_begun, compiled.scratch.copy(), has_landed, frozenset(sent))

    def give_back(self) -> None:
        """Let the loop process what has come of a withdrawn call, once an `Execution` has it."""
        self._links.withdraw(self._compiled.peers)


class NativeCalls:
    """Compiled calls of one group. Owned by the holder of the loop."""

    def __init__(
        self,
        lent_links: LentLinks,
        ranks: Sequence[int],
        rank: int,
        group: int,
        *,
        has_digests: bool = False,
    ) -> None:
        self._links = lent_links
        self._has_digests = has_digests
        self._ranks = ranks
        self._rank = rank
        self._group = group
        self._compiled: dict[tuple[int, int, int], CompiledCall | None] = {}
        """By signature, number of the part and bytes of its output, oldest first; None: not
        possible."""

    def could_lend(self) -> bool:
        """Say whether the link to the first peer that has one can be lent now."""
        for peer in self._ranks:
            if self._links.get_state(peer) is not None:
                return self._links.is_lendable(peer)
        return False

    def begin(
        self, part: Part, op: ReduceOp | None, sequence: int, signature: int, number: int = 0
    ) -> NativeCall | None:
        """Begin a part of a call, of that number, alone; None: not possible, or not now."""
        compiled = self.find(part, op, signature, number)
        return self._begin(compiled, sequence, part.input.arrays, part.output.arrays)

    def begin_two_level(
        self, plan: TwoLevelPlan, board: "HostBoard | None", sequence: int, signature: int
    ) -> NativeCall | None:
        """Begin a two-level call; None: not possible, or not now."""
        compiled = self.find_two_level(plan, board, signature)
        return self._begin(compiled, sequence, *list_areas(plan))

    def _begin(
        self,
        compiled: CompiledCall | None,
        sequence: int,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> NativeCall | None:
        if compiled is None or not self._links.lend(compiled.peers, self._group, sequence):
            return None
        try:
            compiled.call.begin(sequence, tuple(inputs), tuple(outputs), (compiled.scratch,))
        except ValueError:  # arrays as they are here cannot be addressed
            self._links.withdraw(compiled.peers)
            return None
        return NativeCall(self._links, compiled)

    def find(
        self, part: Part, op: ReduceOp | None, signature: int, number: int = 0
    ) -> CompiledCall | None:
        """Return the compiled schedule of a part, made now if need be; None: not possible now."""
        key = signature, number, _count_bytes(part)
        source = _CallSource(part, op, signature, self._ranks, self._rank, number=number)
        return self._find(key, source)

    def find_two_level(
        self, plan: TwoLevelPlan, board: "HostBoard | None", signature: int, number: int = 0
    ) -> CompiledCall | None:
        """Return a compiled two-level call, likewise, with a `board` if others are on this host."""
        if len(plan.own) > 1 or len(plan.taken) > 1 or len(plan.parts) > 1:
            return None
        part = plan.parts[0] if plan.is_head else Part(_NO_ROUNDS, _NOTHING, _NOTHING)
        ranks = [self._ranks[rank] for rank in plan.heads]
        place, shift = plan.heads.index(plan.head), plan.own_bytes
        steps = _describe_steps(plan, board)
        source = _CallSource(part, plan.op, signature, ranks, place, shift, steps, number)
        return self._find((signature, number, -1), source)

    def _find(self, key: tuple[int, int, int], source: "_CallSource") -> CompiledCall | None:
        schedule = source.part.schedule
        compiled = self._compiled.get(key)
        if compiled is not None and compiled.schedule is schedule:
            return compiled
        if compiled is None and key in self._compiled:
            return None
        if None in [self._links.get_state(source.ranks[peer]) for peer in _list_peers(schedule)]:
            return None  # there will be a link
        made = self._compile(source)
        self._compiled.pop(key, None)
        self._compiled[key] = made
        if len(self._compiled) > _MAX_COMPILED:
            del self._compiled[next(iter(self._compiled))]
        return made

    def _compile(self, source: "_CallSource") -> CompiledCall | None:
        part = source.part
        numbers = _number(source.op, part.output.dtype)
        peers = _list_peers(part.schedule)
        itemsize = part.output.dtype.itemsize
        if (
            numbers is None
            or len(peers) > _MAX_PEERS
            or part.schedule.longest_message * itemsize > EAGER_BYTES
        ):
            return None
        places = {peer: place for place, peer in enumerate(peers)}
        world = tuple(source.ranks[peer] for peer in peers)
        links = [self._links.get_state(rank) for rank in world]
        core, _ = native_core.find()
        assert core is not None, "there are no native calls without"
        call: LinkCall = core.LinkCall(
            links=tuple(link for link in links if link is not None),
            group=self._group,
            signature=source.signature,
            part=source.number,
            op=numbers[0],
            dtype=numbers[1],
            divisor=len(self._ranks),
            rounds=tuple(
                _compile_round(index, step, places, source)
                for index, step in enumerate(part.schedule.rounds)
            ),
            steps=source.steps,
            digests=self._has_digests,
        )
        return CompiledCall(part.schedule, call, world, _make_scratch(part))


@dataclass(frozen=True, slots=True)
class _CallSource:
    """What a call is compiled from."""

    part: Part
    op: ReduceOp | None
    signature: int
    ranks: Sequence[int]
    """World rank of each rank of the schedule."""
    rank: int
    """This one, among them."""
    shift: int = 0
    """Bytes of the input before that of the schedule."""
    steps: "HostSteps | None" = None
    number: int = 0
    """Of the part in its call."""


def list_areas(plan: TwoLevelPlan) -> tuple[list[Array], list[Array]]:
    """Return the arrays of a two-level call: what it reads, and what it writes."""
    part = plan.parts[0] if plan.is_head else None
    inputs, outputs = list(plan.own), [array for _, array in plan.taken]
    if part is not None:
        inputs += part.input.arrays
        outputs += part.output.arrays
    return [one for one in inputs if one.nbytes], [one for one in outputs if one.nbytes]


def _describe_steps(plan: TwoLevelPlan, board: "HostBoard | None") -> "HostSteps":
    """Return what the ranks of this host do, where `list_areas` has their arrays."""
    nothing = 0, 0, 0
    own, into, given, taken, start = nothing, nothing, nothing, nothing, 0
    if plan.own:
        own = _AREAS[Area.INPUT], 0, plan.own_bytes
    if plan.into is not None:
        reads = plan.parts[0].input.arrays
        is_read = bool(reads) and _address(reads[0]) == _address(plan.into)
        area, at = (Area.INPUT, plan.own_bytes) if is_read else (Area.OUTPUT, 0)
        into = _AREAS[area], at, plan.into.nbytes
    if plan.given is not None:
        given = _AREAS[Area.OUTPUT], 0, plan.given.nbytes
    if plan.taken:
        start, array = plan.taken[0]
        taken = _AREAS[Area.OUTPUT], 0, array.nbytes
    head, folds = plan.members.index(plan.head), plan.op is not None
    numbers = own, into, given, taken, start, plan.given_bytes
    return board, head, plan.brings, folds, plan.gives, *numbers


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _number(op: ReduceOp | None, dtype: "np.dtype[np.generic]") -> tuple[int, int] | None:
    """Return the core's numbers of an operation and a dtype; None: unknown to the core."""
    if op is None:
        return -1, 0
    name = get_dtype_name(dtype)
    return None if op not in OPS or name is None else (OPS.index(op), TYPES.index(name))


def _list_peers(schedule: Schedule) -> list[int]:
    """Return the ranks of the group that a schedule has messages with."""
    return sorted({one.peer for step in schedule.rounds for one in step.messages})


def _compile_round(
    index: int, step: Round, places: dict[int, int], source: _CallSource
) -> "LinkRound":
    itemsize, rank = source.part.output.dtype.itemsize, source.rank
    counts: dict[tuple[bool, int], int] = {}

    def number(peer: int, receives: bool) -> int:
        count = counts.get((receives, peer), 0)
        counts[receives, peer] = count + 1
        return index << 12 | count

    def locate(span: Span) -> tuple[int, int, int]:
        shift = source.shift if span.area is Area.INPUT else 0
        return _AREAS[span.area], span.start * itemsize + shift, len(span) * itemsize

    return (
        tuple((locate(one.source), locate(one.target)) for one in step.copies),
        tuple((tuple(map(locate, one.sources)), locate(one.target)) for one in step.folds),
        tuple((places[one.peer], number(one.peer, False), locate(one.span)) for one in step.sends),
        tuple(
            (
                places[one.peer],
                number(one.peer, True),
                locate(one.span),
                one.reduces,
                one.peer < rank,
                _may_overwrite(one, step),
            )
            for one in step.recvs
        ),
    )


def _may_overwrite(recv: Recv, step: Round) -> bool:
    """Return whether a message may be written as it comes, by the law of rounds."""
    return not recv.reduces and not any(
        recv.span.overlaps(one.span) for one in step.messages if one is not recv
    )


def _make_scratch(part: Part) -> NDArray[np.generic]:
    return np.empty(part.schedule.scratch, part.output.dtype)


def _count_bytes(part: Part) -> int:
    return sum(array.nbytes for array in part.output.arrays)
