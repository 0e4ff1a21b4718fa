"""Answers kept for requests that are asked again: each request has its effect once.

A client numbers its requests and says with each which is its oldest without an answer. The answer
becomes part of the commit that it reports, and is dropped when the client has it, as its later
requests show. A client whose answers were dropped for want of room is refused instead of served
twice. After RIFL (Lee et al., SOSP 2015).
"""

from collections.abc import Iterator
from typing import Any

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import (
    Change,
    ChangeRecorder,
    ClientsForgotten,
    Completed,
    Undo,
)
from allhands_server.machine.events import Origin
from allhands_server.machine.refusals import Refused, Status

MOST_CLIENTS = 10_000
MOST_OPEN = 4_096
"""Requests of one client under way."""
LARGEST_TOTAL = 64 << 20
"""Bytes of all answers kept."""
_OVERHEAD = 128


@dataclass(slots=True)
class _Client:
    answers: dict[int, Any]
    """By the number of the request."""
    oldest: int = 0
    """Number of the first request that may be asked again."""
    nbytes: int = 0


class Completions:
    """Answers of all clients, of the latest client last."""

    def __init__(self, recorder: ChangeRecorder, most: int = LARGEST_TOTAL) -> None:
        """`most`: bytes of all answers, if that is less than usual."""
        self._recorder = recorder
        self._most = most
        self._clients: dict[bytes, _Client] = {}
        self.nbytes = 0
        """Of all answers kept."""
        self._has_forgotten = False
        """Whether answers of a client were dropped for want of room."""

    def find(self, origin: Origin) -> tuple[Any] | None:
        """Return the answer of a request that is asked again; None: it had no effect.

        Raises:
            Refused: that is not known any more, or too many requests are under way.
        """
        client = self._clients.get(origin.client)
        if client is None:
            if origin.is_repeated and self._has_forgotten:
                text = "whether the first attempt at this request had its effect is forgotten"
                raise Refused(Status.ABORTED, text)
            return None
        if origin.number in client.answers:
            return (client.answers[origin.number],)
        if origin.number < client.oldest:
            text = "this request is an old attempt: its client has had the answer"
            raise Refused(Status.ABORTED, text)
        if len(client.answers) >= MOST_OPEN and origin.oldest <= next(iter(client.answers)):
            text = f"a client has {MOST_OPEN:,} requests under way at most"
            raise Refused(Status.RESOURCE_EXHAUSTED, text)
        return None

    def add(self, origin: Origin, answer: Any) -> None:
        """Keep the answer of a request that has had its effect."""
        change = Completed(origin.client, origin.number, origin.oldest, answer)
        self._recorder.commit(change, self)

    def apply(self, change: Change) -> None:
        """Make a change of the answers."""
        match change:
            case Completed(name, number, oldest, answer):
                client = self._clients.pop(name, None) or _Client({})
                self._clients[name] = client
                client.oldest = max(client.oldest, oldest)
                for old in [one for one in client.answers if one < oldest]:
                    self._drop(client, old)
                nbytes = _OVERHEAD + measure_answer(answer)
                client.answers[number] = answer
                client.nbytes += nbytes
                self.nbytes += nbytes
                self._make_room()
            case ClientsForgotten():
                self._has_forgotten = True

    def make_undo(self, change: Change) -> Undo | None:
        """Return the removal of an answer about to be kept."""
        if not isinstance(change, Completed):
            return None
        name, number = change.client, change.number

        def undo() -> None:
            client = self._clients.get(name)
            if client is not None and number in client.answers:
                self._drop(client, number)

        return undo

    def list_changes(self) -> Iterator[Change]:
        """Return changes that make these answers; later changes do not matter."""
        changes: list[Change] = [ClientsForgotten()] if self._has_forgotten else []
        changes += [
            Completed(name, number, client.oldest, answer)
            for name, client in self._clients.items()
            for number, answer in client.answers.items()
        ]
        return iter(changes)

    def _drop(self, client: _Client, number: int) -> None:
        nbytes = _OVERHEAD + measure_answer(client.answers.pop(number))
        client.nbytes -= nbytes
        self.nbytes -= nbytes

    def _make_room(self) -> None:
        """Forget the clients that have asked nothing for longest."""
        while len(self._clients) > MOST_CLIENTS or (
            self.nbytes > min(self._most, LARGEST_TOTAL) and len(self._clients) > 1
        ):
            oldest = self._clients.pop(next(iter(self._clients)))
            self.nbytes -= oldest.nbytes
            self._has_forgotten = self._has_forgotten or bool(oldest.answers)


def measure_answer(answer: Any) -> int:
    """Return about how many bytes an answer takes."""
    if isinstance(answer, bytes | str):
        return len(answer)
    if isinstance(answer, tuple):
        return sum(map(measure_answer, answer))
    fields = getattr(answer, "__dataclass_fields__", ())
    return 8 + sum(measure_answer(getattr(answer, name)) for name in fields)
