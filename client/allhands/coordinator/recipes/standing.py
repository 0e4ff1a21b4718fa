"""Holders of locks and semaphores, with the number of those that wait."""

import json
import time
from collections.abc import Sequence

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import KeyRange, KeyRecord, TxnResult
from allhands.coordinator.kv.requests import AnyKvRequest
from allhands.coordinator.kv.transactions import Get
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.session import (
    Identity,
    make_session_key,
    read_fields,
    read_identity,
)
from allhands.errors import LockHolder
from allhands_proto.quick_dataclass import dataclass

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class LockStatus:
    """Holders of a lock or semaphore, and the number of places behind them."""

    holders: tuple[LockHolder, ...]
    """In order; of many the first eight."""
    waiting: int


def encode_since(permits: int) -> bytes:
    """Return the value of a place from now on."""
    return json.dumps({"since": round(time.time(), 3), "permits": permits}).encode()


def read_permits(record: KeyRecord) -> int | None:
    """Return the number of permits with which a place was taken."""
    found = read_fields(record.value).get("permits")
    return found if isinstance(found, int) else None


def make_status_requests(
    queue: QueueName, head: KeyRange
) -> tuple[tuple[KeyRecord, ...], AnyKvRequest[TxnResult]]:
    """Return the first holders in a range, and the request for their sessions."""
    holders = head.records[: min(queue.permits, _MOST_NAMED)]
    gets = [Get(make_session_key(one.lease)) for one in holders]
    return holders, requests.make_txn(queue.job, [], gets, [])


def make_status(
    queue: QueueName, count: int, holders: Sequence[KeyRecord], sessions: TxnResult | None
) -> LockStatus:
    """Return the status of a queue of `count` places; sessions None: they are not known."""
    found = [Identity()] * len(holders) if sessions is None else _read_identities(sessions)
    has_since = queue.kind != "election"  # the value of which is its leader's own
    named = tuple(
        LockHolder(
            one.host,
            one.pid,
            _read_since(record) if has_since else None,
            record.key,
            record.create_revision,
        )
        for record, one in zip(holders, found, strict=True)
    )
    return LockStatus(named, max(count - queue.permits, 0))


def _read_identities(sessions: TxnResult) -> list[Identity]:
    found = []
    for result in sessions.results:
        assert isinstance(result, KeyRange)
        found.append(read_identity(result.records[0] if result.records else None))
    return found


def _read_since(record: KeyRecord) -> float | None:
    since = read_fields(record.value).get("since")
    return float(since) if isinstance(since, int | float) and 0 <= since < 1e11 else None
