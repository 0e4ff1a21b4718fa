"""`allhands serve` with one thing altered: snapshots more often, or a mistake to be found.

python -m support.linearizability.altered_daemon ALTERATION OPTIONS...
"""

import itertools
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import typer

from allhands.cli.serve import serve_command
from allhands_server.coordinator import Coordinator
from allhands_server.kv.connection import KvConnection
from allhands_server.log import journal, sqlite
from allhands_server.log.engine import Appended, AppendResult
from allhands_server.machine.store.key_results import RangeResult
from allhands_server.machine.store.keys import Add, Append, Get
from allhands_server.machine.store.leases import LeaseKeepAlive
from allhands_server.machine.store.queues import QueuePush
from allhands_server.machine.store.records import Put
from allhands_server.machine.store.transactions import Txn, TxnResult
from allhands_server.machine.store.watches import Watch, WatchResult
from allhands_server.rpc.service import CoordinatorService

_LOG_NBYTES = 100_000
"""Of the frames from one snapshot to the next."""
_FRAMES_LATE = 8
_PARTS_OF_A_PLACE = 3
"""Operations of the transaction that asks for a lock: a put and two ranges."""
_EVERY = 10
"""Every tenth request of a kind is answered wrongly."""


class LateEngine(sqlite.SqliteEngine):
    """An engine that acknowledges frames which it has not written yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._late: deque[tuple[int, bytes]] = deque()

    async def append(self, index: int, data: bytes) -> AppendResult:
        self._late.append((index, data))
        while len(self._late) > _FRAMES_LATE:
            await super().append(*self._late.popleft())
        return Appended()


class _NoReply:
    """Handler of the answers to requests that nobody made."""

    def on_answer(self, ticket: int, reply: Any) -> None: ...

    def on_refusal(self, ticket: int, refusal: Any) -> None: ...


class _Remembering:
    """Handler that keeps the answer to a read for later ones."""

    def __init__(self, asker: Any, answers: dict[Any, Any], request: Get) -> None:
        self._asker = asker
        self._answers = answers
        self._request = request

    def on_answer(self, ticket: int, reply: Any) -> None:
        self._answers[self._request.key] = reply
        self._asker.on_answer(ticket, reply)

    def on_refusal(self, ticket: int, refusal: Any) -> None:
        self._asker.on_refusal(ticket, refusal)


def save_snapshots_often() -> None:
    """Make a snapshot where otherwise the log would get much longer first; no mistake."""
    journal._LEAST_LOG_NBYTES = _LOG_NBYTES


def lose_acknowledged_writes() -> None:
    """Acknowledge writes before they are durable."""
    sqlite.SqliteEngine = LateEngine  # type: ignore[misc]


def read_stale_values() -> None:
    """Answer some reads with an answer that was right once."""
    post: Any = Coordinator.post
    answers, reads = dict[Any, Any](), iter(range(1 << 62))

    def post_stale(self: Coordinator, ticket: int, request: Any, *rest: Any) -> None:
        due, asker, *origin = rest
        if not isinstance(request, Get):
            post(self, ticket, request, *rest)
        elif next(reads) % _EVERY == 0 and request.key in answers:
            asker.on_answer(ticket, answers[request.key])
        else:
            remembering = _Remembering(asker, answers, request)
            post(self, ticket, request, due, remembering, *origin)

    Coordinator.post = post_stale  # type: ignore[method-assign, assignment]


def apply_twice() -> None:
    """Make some changes twice, as for a caller that asks again."""
    post: Any = Coordinator.post
    changes = iter(range(1 << 62))

    def post_twice(self: Coordinator, ticket: int, request: Any, *rest: Any) -> None:
        if isinstance(request, Add | Append | QueuePush) and next(changes) % _EVERY == 0:
            post(self, self.new_ticket(), request, None, _NoReply())
        post(self, ticket, request, *rest)

    Coordinator.post = post_twice  # type: ignore[method-assign, assignment]


class _Thinning:
    """Handler that leaves an event out of the answer to a watch."""

    def __init__(self, asker: Any) -> None:
        self._asker = asker

    def on_answer(self, ticket: int, reply: WatchResult) -> None:
        self._asker.on_answer(ticket, replace(reply, events=reply.events[1:]))

    def on_refusal(self, ticket: int, refusal: Any) -> None:
        self._asker.on_refusal(ticket, refusal)


def miss_watched_events() -> None:
    """Leave the first event out of some answers to watches."""
    post: Any = Coordinator.post
    watches = iter(range(1 << 62))

    def post_thinned(self: Coordinator, ticket: int, request: Any, *rest: Any) -> None:
        due, asker, *origin = rest
        if isinstance(request, Watch) and next(watches) % _EVERY == _EVERY - 1:
            asker = _Thinning(asker)
        post(self, ticket, request, due, asker, *origin)

    Coordinator.post = post_thinned  # type: ignore[method-assign, assignment]


def forget_keep_alives() -> None:
    """Acknowledge keep-alives of leases that are not kept alive."""
    post: Any = Coordinator.post

    def post_forgetful(self: Coordinator, ticket: int, request: Any, *rest: Any) -> None:
        if isinstance(request, LeaseKeepAlive):
            rest[1].on_answer(ticket, 1.0)
        else:
            post(self, ticket, request, *rest)

    Coordinator.post = post_forgetful  # type: ignore[method-assign, assignment]


class _Granting:
    """Handler that leaves out who was there before, in the answer to who asks for a lock."""

    def __init__(self, asker: Any, value: bytes) -> None:
        self._asker = asker
        self._value = value

    def on_answer(self, ticket: int, reply: TxnResult) -> None:
        put, head, tail = reply.results
        assert isinstance(head, RangeResult)
        assert isinstance(tail, RangeResult)
        alone = (replace(tail.records[0], value=self._value),)
        seen = (put, replace(head, records=alone, count=1), replace(tail, records=alone, count=1))
        self._asker.on_answer(ticket, replace(reply, results=seen))

    def on_refusal(self, ticket: int, refusal: Any) -> None:
        self._asker.on_refusal(ticket, refusal)


def grant_locks_twice() -> None:
    """Tell some who ask for a lock that nobody has it."""
    post: Any = Coordinator.post
    transactions = iter(range(1 << 62))

    def post_granting(self: Coordinator, ticket: int, request: Any, *rest: Any) -> None:
        due, asker, *origin = rest
        if isinstance(request, Txn) and len(request.success) == _PARTS_OF_A_PLACE:
            put = request.success[0]
            assert isinstance(put, Put)
            if next(transactions) % _EVERY == _EVERY - 1:
                asker = _Granting(asker, put.value)
        post(self, ticket, request, due, asker, *origin)

    Coordinator.post = post_granting  # type: ignore[method-assign, assignment]


def lose_answers() -> None:
    """Break some connections in the place of an answer, whose change is made; no mistake."""
    on_answer: Any = KvConnection.on_answer
    ask: Any = CoordinatorService._ask
    answers = itertools.count(1)

    def break_off(self: KvConnection, ticket: int, reply: Any) -> None:
        if next(answers) % _EVERY:
            on_answer(self, ticket, reply)
        else:
            self._requests.pop(ticket)
            self.abort()

    async def ask_and_forget(self: Any, request: Any, context: Any) -> Any:
        reply = await ask(self, request, context)
        if next(answers) % _EVERY == 0:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return reply

    KvConnection.on_answer = break_off  # type: ignore[method-assign]
    CoordinatorService._ask = ask_and_forget  # type: ignore[method-assign]


MISTAKES = (
    lose_acknowledged_writes,
    read_stale_values,
    apply_twice,
    miss_watched_events,
)
"""That a short history shows; of leases one sees more in time."""


def make_command(alteration: Callable[[], None]) -> tuple[str, ...]:
    """Return the command of a daemon with an alteration; options follow."""
    return sys.executable, "-m", __name__, alteration.__name__


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
    typer.run(serve_command)
