"""Participants of a named barrier: by name, by the digest of their names, or by number alone."""

from collections import Counter
from collections.abc import Collection

from allhands_proto.participants_digest import LARGEST_UNDIGESTED, LISTERS, digest_participants
from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.formatting import join_names, quote
from allhands_server.machine.limits import LARGEST_WORLD, check_name
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import Barrier

_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Participants:
    """Participants of a barrier, as one request tells of them."""

    size: int
    names: frozenset[str] | None = None
    """None: the list has not come, or there is none."""
    digest: bytes = b""
    """Of the names in order; empty: of few names, or of a number alone."""
    first: tuple[str, ...] = ()
    """In order, of a digest: who sends the list."""
    listed: tuple[str, ...] = ()
    """Names as the request lists them."""

    @property
    def can_open(self) -> bool:
        """Whether the names are known, unless there are none."""
        return self.names is not None or not self.digest

    def agrees_with(self, other: "Participants") -> bool:
        if self.digest or other.digest:
            return (self.size, self.digest) == (other.size, other.digest)
        return (self.size, self.names) == (other.size, other.names)

    def describe(self, what: str = "") -> str:
        """Name the participants, after `what` they are."""
        if self.names is not None:
            return f"with {what}{join_names(sorted(self.names))}"
        if self.digest:
            return f"with {what}{join_names(self.first)} and {self.size - len(self.first):,} more"
        return f"as one of {self.size:,}"

    def count_missing(self, arrived: Collection[str], left: Collection[str]) -> int:
        if self.names is not None:
            return len(self.names.difference(arrived, left))
        return max(self.size - len(arrived) - len(left), 0)

    def describe_missing(self, arrived: Collection[str], left: Collection[str]) -> str:
        """Name the absent participants as far as they are known, else those who came."""
        if self.names is not None:
            return join_names(sorted(self.names.difference(arrived, left)))
        if not self.digest:
            return f"there were only {join_names(sorted(arrived))}"
        absent = [name for name in self.first if name not in arrived and name not in left]
        more = self.size - len(arrived) - len(left) - len(absent)
        return join_names(absent) + (
            f" and {more:,} more, of whose names only these would have told" if more else ""
        )


def read_participants(request: Barrier, waiting: Participants | None) -> Participants:
    """Return the participants that a request tells of, checked; `waiting` of who waits there.

    Raises:
        Refused: they cannot be, or the caller is not one of them.
    """
    if request.size:
        _check_size(request)
        return Participants(request.size)
    if request.digest:
        _check_digest(request)
        told = Participants(
            request.count, None, request.digest, request.first_participants[:LISTERS]
        )
        if waiting is not None and waiting.names is not None and waiting.agrees_with(told):
            told = waiting
    elif waiting is not None and waiting.listed and waiting.listed == request.participants:
        told = waiting  # as checked for an earlier one
    else:
        told = _read_list(request)
    if told.names is not None and request.participant not in told.names:
        refusal = describe_stranger(request.name, request.participant, told.names)
        raise Refused(refusal.status, refusal.text)
    return told


def describe_stranger(barrier: str, participant: str, names: frozenset[str]) -> Refusal:
    """Return the refusal of a caller that is not among the participants."""
    return Refusal(
        Status.INVALID_ARGUMENT,
        f"{quote(participant)} is not among the participants of barrier "
        f"{quote(barrier)}: {join_names(sorted(names))}",
    )


def _read_list(request: Barrier) -> Participants:
    check_name("the name of the barrier", request.name)
    names = frozenset(request.participants)
    for participant in names:
        check_name("the name of a participant", participant)
    if len(names) < len(request.participants):
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"the participants of barrier {quote(request.name)} are listed twice: "
            f"{join_names(_list_repeated(request.participants))}",
        )
    if len(names) <= LARGEST_UNDIGESTED:
        return Participants(len(names), names, listed=request.participants)
    ordered = sorted(names)
    return Participants(
        len(names),
        names,
        digest_participants(ordered),
        tuple(ordered[:LISTERS]),
        request.participants,
    )


def _check_size(request: Barrier) -> None:
    check_name("the name of the barrier", request.name)
    check_name("the name of a participant", request.participant)
    if request.participants or request.digest:
        text = f"barrier {quote(request.name)} has a size, or participants by name: not both"
        raise Refused(Status.INVALID_ARGUMENT, text)
    if request.size > LARGEST_WORLD:
        text = f"a barrier of {request.size:,} participants; {LARGEST_WORLD:,} is the most"
        raise Refused(Status.INVALID_ARGUMENT, text)


def _check_digest(request: Barrier) -> None:
    check_name("the name of the barrier", request.name)
    for name in (request.participant, *request.first_participants):
        check_name("the name of a participant", name)
    wanted = request.count > LARGEST_UNDIGESTED and len(request.first_participants) == LISTERS
    if request.participants or not wanted or len(request.digest) != _DIGEST:
        raise Refused(
            Status.INVALID_ARGUMENT,
            f"a digest of participants of barrier {quote(request.name)} has {_DIGEST} bytes, comes "
            f"in place of more than {LARGEST_UNDIGESTED} names, and with the first {LISTERS}",
        )


def _list_repeated(names: tuple[str, ...]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
