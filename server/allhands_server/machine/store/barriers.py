"""Named barriers of a job."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from allhands_server.machine.changes import BarrierOpened, Change, ChangeRecorder, Undo
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import LARGEST_WORLD, check_name
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Barrier, CancelBarrier
from allhands_server.machine.values import BarrierResult, BarrierView


@dataclass(frozen=True, slots=True)
class _Arrival:
    ticket: int
    takes_cancellation: bool


@dataclass(slots=True)
class _WaitingBarrier:
    """A barrier with waiting participants, forgotten when the last participant cancels."""

    participants: frozenset[str]
    """Empty: their number is known alone."""
    listed: tuple[str, ...]
    """The same as the first arrival listed them."""
    size: int
    arrived: dict[str, _Arrival] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    """Participants that arrived and gave up, while others went on waiting."""

    def describe_participants(self, what: str = "") -> str:
        """Name the participants, after `what` they are."""
        named = join_names(sorted(self.participants))
        return f"with {what}{named}" if self.participants else f"as one of {self.size:,}"

    def describe_missing(self, where: str) -> str:
        """Name the absent participants, or those who came, and those who gave up before."""
        before = f"{join_names(sorted(self.left))} came and gave up before"
        if not (missing := self.size - len(self.arrived) - len(self.left)):
            return f"{where} did not open: {before}"
        text = f"{missing} of {self.size} did not arrive at {where}: "
        if self.participants:
            text += join_names(sorted(self.participants - self.arrived.keys() - self.left.keys()))
        else:
            text += f"there were only {join_names(sorted(self.arrived))}"
        return f"{text}; {before}" if self.left else text


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
        if waiting is not None and waiting.listed == request.participants and not request.size:
            participants = waiting.participants  # as checked for an earlier one
            _check_participant(request, participants)
        else:
            participants = _check_participants(request)
        size = request.size or len(participants)
        comes = _WaitingBarrier(participants, request.participants, size)
        barrier = waiting or comes
        if (barrier.participants, barrier.size) != (participants, size):
            other = next(iter(barrier.arrived))
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{quote(participant)} comes to barrier {quote(name)} "
                f"{comes.describe_participants('participants ')}, but "
                f"{quote(other)}, who waits there, {barrier.describe_participants()}",
            )
        if participant in barrier.arrived:
            raise Refused(
                Status.ALREADY_EXISTS,
                f"{quote(participant)} waits at barrier {quote(name)} already",
            )
        self._waiting[name] = barrier
        barrier.arrived[participant] = _Arrival(ticket, request.takes_cancellation)
        barrier.left.pop(participant, None)
        if len(barrier.arrived) + len(barrier.left) > size:  # others come in their place
            del barrier.left[next(iter(barrier.left))]
        self._tickets[ticket] = (name, participant)
        return self._open(name) if len(barrier.arrived) == size else []

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
            BarrierView(name, one.size, tuple(sorted(one.participants)), tuple(sorted(one.arrived)))
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
        result = BarrierResult(generation, tuple(sorted(barrier.arrived)))
        return [
            Answer(one.ticket, result if one.takes_cancellation else generation)
            for one in barrier.arrived.values()
        ]

    def _forget(self, name: str) -> _WaitingBarrier:
        barrier = self._waiting.pop(name)
        for arrival in barrier.arrived.values():
            del self._tickets[arrival.ticket]
        return barrier


def _check_participants(request: Barrier) -> frozenset[str]:
    check_name("the name of the barrier", request.name)
    participants = frozenset(request.participants)
    if request.size:
        _check_size(request)
        return frozenset()
    for participant in participants:
        check_name("the name of a participant", participant)
    if len(participants) < len(request.participants):
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"the participants of barrier {quote(request.name)} are listed twice: "
            f"{join_names(_list_repeated(request.participants))}",
        )
    _check_participant(request, participants)
    return participants


def _check_participant(request: Barrier, participants: frozenset[str]) -> None:
    if request.participant not in participants:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"{quote(request.participant)} is not among the participants of barrier "
            f"{quote(request.name)}: {join_names(sorted(participants))}",
        )


def _check_size(request: Barrier) -> None:
    check_name("the name of a participant", request.participant)
    if request.participants:
        text = f"barrier {quote(request.name)} has a size, or participants by name: not both"
        raise Refused(Status.INVALID_ARGUMENT, text)
    if request.size > LARGEST_WORLD:
        text = f"a barrier of {request.size:,} participants; {LARGEST_WORLD:,} is the most"
        raise Refused(Status.INVALID_ARGUMENT, text)


def _list_repeated(names: tuple[str, ...]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
