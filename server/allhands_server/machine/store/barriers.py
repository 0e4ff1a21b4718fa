"""Named barriers of a job."""

from collections.abc import Iterator
from dataclasses import field

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import BarrierOpened, Change, ChangeRecorder, Undo
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Barrier, CancelBarrier
from allhands_server.machine.store.barrier_participants import (
    Participants,
    describe_stranger,
    read_participants,
)
from allhands_server.machine.values import BarrierResult, BarrierView


@dataclass(frozen=True, slots=True)
class _Arrival:
    ticket: int
    takes_cancellation: bool
    knows_names: bool
    """Whether it needs no list of those who came."""


@dataclass(slots=True)
class _WaitingBarrier:
    """A barrier with waiting participants, forgotten when the last participant cancels."""

    participants: Participants
    arrived: dict[str, _Arrival] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    """Participants that arrived and gave up, while others went on waiting."""

    def describe_missing(self, where: str) -> str:
        """Name the absent participants, or those who came, and those who gave up before."""
        size = self.participants.size
        before = f"{join_names(sorted(self.left))} came and gave up before"
        if not (missing := self.participants.count_missing(self.arrived, self.left)):
            return f"{where} did not open: {before}"
        named = self.participants.describe_missing(self.arrived, self.left)
        text = f"{missing} of {size} did not arrive at {where}: {named}"
        return f"{text}; {before}" if self.left else text

    def is_full(self) -> bool:
        """Whether all participants have come, and not others in their place."""
        participants = self.participants
        if len(self.arrived) < participants.size or not participants.can_open:
            return False
        return participants.names is None or participants.names <= self.arrived.keys()


class Barriers:
    """The barriers of one job; a name is free again after the barrier has opened."""

    def __init__(self, job: str, recorder: ChangeRecorder) -> None:
        self._job = job
        self._recorder = recorder
        self._waiting: dict[str, _WaitingBarrier] = {}
        self._tickets: dict[int, tuple[str, str]] = {}  # ticket -> name, participant
        self._generations: dict[str, int] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._tickets)

    @property
    def has_opened(self) -> bool:
        return bool(self._generations)

    def submit(self, ticket: int, request: Barrier) -> list[Effect]:
        """Note an arrival; the last participant's answers all.

        Raises:
            Refused: this arrival does not count; those who wait go on waiting.
        """
        name, participant = request.name, request.participant
        waiting = self._waiting.get(name)
        comes = read_participants(request, waiting.participants if waiting is not None else None)
        barrier = waiting or _WaitingBarrier(comes)
        if not barrier.participants.agrees_with(comes):
            other = next(iter(barrier.arrived))
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{quote(participant)} comes to barrier {quote(name)} "
                f"{comes.describe('participants ')}, but "
                f"{quote(other)}, who waits there, {barrier.participants.describe()}",
            )
        if participant in barrier.arrived:
            raise Refused(
                Status.ALREADY_EXISTS,
                f"{quote(participant)} waits at barrier {quote(name)} already",
            )
        self._waiting[name] = barrier
        if barrier.participants.names is None:
            barrier.participants = comes
        barrier.arrived[participant] = _Arrival(
            ticket, request.takes_cancellation, bool(request.digest)
        )
        barrier.left.pop(participant, None)
        if len(barrier.arrived) + len(barrier.left) > comes.size and barrier.left:
            del barrier.left[next(iter(barrier.left))]  # others come in their place
        self._tickets[ticket] = (name, participant)
        return self._open(name) if barrier.is_full() else []

    def cancel_barrier(self, request: CancelBarrier) -> list[Effect]:
        """Refuse all who wait at a barrier; return the effects for these.

        Raises:
            Refused: nobody waits there.
        """
        if (barrier := self._waiting.get(request.name)) is None:
            waiting = join_names(sorted(self._waiting)) or "none"
            raise Refused(
                Status.NOT_FOUND,
                f"nobody waits at barrier {quote(request.name)} of job {self._job}; barriers "
                f"where somebody waits: {waiting}",
            )
        arrived = tuple(sorted(barrier.arrived))
        result = BarrierResult(0, arrived, request.by or "somebody", request.reason)
        text = (
            f"barrier {quote(request.name)} of job {self._job} was cancelled by "
            f"{quote(result.cancelled_by)}: {quote(request.reason)}"
        )
        refusal = Refusal(Status.ABORTED, text)
        return [
            Answer(one.ticket, result) if one.takes_cancellation else Refuse(one.ticket, refusal)
            for one in self._forget(request.name).arrived.values()
        ]

    def describe(self) -> tuple[BarrierView, ...]:
        """Return the barriers at which somebody waits, by name."""
        return tuple(
            BarrierView(
                name,
                one.participants.size,
                tuple(sorted(one.participants.names or ())),
                tuple(sorted(one.arrived)),
            )
            for name, one in sorted(self._waiting.items())
        )

    def cancel(self, ticket: int) -> None:
        """Undo an arrival, unless the barrier has opened. Idempotent."""
        if (place := self._tickets.pop(ticket, None)) is None:
            return
        name, participant = place
        barrier = self._waiting[name]
        del barrier.arrived[participant]
        barrier.left[participant] = None
        if not barrier.arrived:
            del self._waiting[name]

    def expire(self, ticket: int, now: float) -> Effect:
        """Undo an arrival past the due time; the refusal names the absent participants."""
        name, _ = self._tickets[ticket]
        where = f"barrier {quote(name)} of job {self._job}"
        text = self._waiting[name].describe_missing(where)
        self.cancel(ticket)
        return Refuse(ticket, Refusal(Status.DEADLINE_EXCEEDED, text))

    # ------------------------------------------------------------ durable state

    def apply(self, change: BarrierOpened) -> None:
        """Set the generation of a barrier."""
        self._generations[change.name] = change.generation

    def make_undo(self, change: BarrierOpened) -> Undo:
        """Return the reverse of a change about to be applied."""
        name, held = change.name, self._generations.get(change.name)

        def undo() -> None:
            if held is None:
                del self._generations[name]
            else:
                self._generations[name] = held

        return undo

    def clear(self) -> None:
        """Restart generations; waiting participants stay."""
        self._generations.clear()

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make the generations of now; later changes do not matter."""
        job, generations = self._job, self._generations.copy()
        return (BarrierOpened(job, name, number) for name, number in generations.items())

    def _open(self, name: str) -> list[Effect]:
        generation = self._generations.get(name, 0) + 1
        self._recorder.commit(BarrierOpened(self._job, name, generation), self)
        barrier = self._forget(name)
        names = barrier.participants.names
        passed = barrier.arrived if names is None else names
        result = BarrierResult(generation, tuple(sorted(passed)))
        short = BarrierResult(generation, ())
        effects: list[Effect] = []
        for participant, one in barrier.arrived.items():
            if names is not None and participant not in names:  # it came before the list
                effects.append(Refuse(one.ticket, describe_stranger(name, participant, names)))
            elif not one.takes_cancellation:
                effects.append(Answer(one.ticket, generation))
            else:
                effects.append(Answer(one.ticket, short if one.knows_names else result))
        return effects

    def _forget(self, name: str) -> _WaitingBarrier:
        barrier = self._waiting.pop(name)
        for arrival in barrier.arrived.values():
            del self._tickets[arrival.ticket]
        return barrier
