"""Named barriers of a job."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from allhands_server.machine.changes import BarrierOpened, Change, ChangeRecorder, Undo
from allhands_server.machine.effects import Answer, Effect, Refuse
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import check_name
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Barrier


@dataclass(slots=True)
class _WaitingBarrier:
    """A barrier with waiting participants, forgotten when the last participant cancels."""

    participants: frozenset[str]
    listed: tuple[str, ...]
    """The same as the first arrival listed them."""
    arrived: dict[str, int] = field(default_factory=dict)  # participant -> ticket


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
        if waiting is not None and waiting.listed == request.participants:
            participants = waiting.participants  # as checked for an earlier one
            _check_participant(request, participants)
        else:
            participants = _check_participants(request)
        barrier = waiting or _WaitingBarrier(participants, request.participants)
        if barrier.participants != participants:
            other = next(iter(barrier.arrived))
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{quote(participant)} comes to barrier {quote(name)} with "
                f"participants {join_names(sorted(participants))}, but "
                f"{quote(other)}, who waits there, with "
                f"{join_names(sorted(barrier.participants))}",
            )
        if participant in barrier.arrived:
            raise Refused(
                Status.ALREADY_EXISTS,
                f"{quote(participant)} waits at barrier {quote(name)} already",
            )
        self._waiting[name] = barrier
        barrier.arrived[participant] = ticket
        self._tickets[ticket] = (name, participant)
        if len(barrier.arrived) < len(participants):
            return []
        return self._open(name)

    def cancel(self, ticket: int) -> None:
        """Undo an arrival, unless the barrier has opened. Idempotent."""
        if (place := self._tickets.pop(ticket, None)) is None:
            return
        name, participant = place
        barrier = self._waiting[name]
        del barrier.arrived[participant]
        if not barrier.arrived:
            del self._waiting[name]

    def expire(self, ticket: int, now: float) -> Effect:
        """Undo an arrival past the due time; the refusal names the absent participants."""
        name, _ = self._tickets[ticket]
        barrier = self._waiting[name]
        absent = sorted(barrier.participants - barrier.arrived.keys())
        text = (
            f"{len(absent)} of {len(barrier.participants)} did not arrive at barrier "
            f"{quote(name)} of job {self._job}: {join_names(absent)}"
        )
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
        tickets = self._waiting.pop(name).arrived.values()
        for ticket in tickets:
            del self._tickets[ticket]
        return [Answer(ticket, generation) for ticket in tickets]


def _check_participants(request: Barrier) -> frozenset[str]:
    check_name("the name of the barrier", request.name)
    participants = frozenset(request.participants)
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


def _list_repeated(names: tuple[str, ...]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
