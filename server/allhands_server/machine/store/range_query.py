"""Answers to requests for ranges: now, at a revision, or in the middle of a transaction."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

from allhands_server.machine.changes import KeyPut
from allhands_server.machine.limits import RANGE_RECORDS, SORTED_KEYS
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.store.key_range import KeyRange, make_range
from allhands_server.machine.store.key_results import RangeResult
from allhands_server.machine.store.key_table import KeyTable
from allhands_server.machine.store.records import (
    BY_CREATE,
    BY_KEY,
    BY_MOD,
    BY_VALUE,
    BY_VERSION,
    Range,
)

_RECORD_NBYTES = 64
"""Of a record beside key and value, at most."""

_SORT_KEYS: Mapping[int, Callable[[KeyPut], Any]] = {
    BY_KEY: lambda record: record.key,
    BY_VERSION: lambda record: (record.version, record.key),
    BY_CREATE: lambda record: (record.created, record.key),
    BY_MOD: lambda record: (record.revision, record.key),
    BY_VALUE: lambda record: (record.value, record.key),
}

Altered: TypeAlias = Mapping[str, KeyPut | None]
"""Records of the keys that are not as in the table; None: no such key."""


def count_nbytes(record: KeyPut) -> int:
    """Return about how many bytes of a reply a record takes."""
    return _RECORD_NBYTES + _count_key_nbytes(record.key) + len(record.value)


def query_range(
    table: KeyTable, wanted: Range, altered: Altered, room: int
) -> tuple[RangeResult, int]:
    """Return the answer to a request, and about how many bytes it wants; cut to `room` bytes.

    Raises:
        Refused: the request makes no sense, or the revision is still to come.
    """
    keys = make_range(wanted.key, wanted.range_end, wanted.prefix)
    if wanted.order not in _SORT_KEYS:
        raise Refused(Status.INVALID_ARGUMENT, f"there is no order {wanted.order} of a range")
    if wanted.revision:
        if wanted.revision > table.revision:
            text = f"revision {wanted.revision:,} is still to come; now it is {table.revision:,}"
            raise Refused(Status.INVALID_ARGUMENT, text)
        if wanted.revision < table.history.floor:
            return RangeResult(table.revision, oldest=table.history.floor), 0
        altered = _look_back(table, keys, wanted.revision)
    if wanted.count_only:
        count = len(_list_keys(table, keys, altered)) if altered else table.count_keys(keys)
        return RangeResult(table.revision, count=count), 0
    return _collect(table, wanted, _list_keys(table, keys, altered), altered, room)


def _look_back(table: KeyTable, keys: KeyRange, revision: int) -> Altered:
    """Return the records that were others at a revision."""
    altered: dict[str, KeyPut | None] = {}
    for change, previous, _ in table.history.iterate_back_to(revision):
        if change.key in keys:
            altered[change.key] = previous
    return altered


def _list_keys(table: KeyTable, keys: KeyRange, altered: Altered) -> list[str]:
    listed = table.list_keys(keys)
    if not altered:
        return listed
    added = {key for key, record in altered.items() if record is not None and key in keys}
    kept = (key for key in listed if key not in altered)
    return sorted([*kept, *added])


def _collect(
    table: KeyTable, wanted: Range, keys: list[str], altered: Altered, room: int
) -> tuple[RangeResult, int]:
    """Return the first records of a range in the order wanted, as many as there is room for."""

    def find(key: str) -> KeyPut:
        record = altered[key] if key in altered else table.records[key]
        assert record is not None, "a deleted key is not listed"
        return record

    found: Iterable[KeyPut]
    if wanted.order == BY_KEY:
        found = map(find, reversed(keys) if wanted.descending else keys)
    else:
        _check_sorted(len(keys))
        found = sorted(map(find, keys), key=_SORT_KEYS[wanted.order], reverse=wanted.descending)
    most = min(wanted.limit or RANGE_RECORDS, RANGE_RECORDS)
    records: list[KeyPut] = []
    nbytes = 0
    for record in islice(found, most):
        nbytes += count_nbytes(record)
        if wanted.keys_only:
            nbytes -= len(record.value)
        if nbytes > room:
            break
        records.append(record)
    result = RangeResult(
        revision=table.revision,
        records=tuple(records),
        count=len(keys),
        has_more=len(records) < len(keys),
        keys_only=wanted.keys_only,
    )
    return result, nbytes


def _check_sorted(count: int) -> None:
    if count > SORTED_KEYS:
        raise Refused(
            Status.RESOURCE_EXHAUSTED,
            f"the range has {count:,} keys, of which {SORTED_KEYS:,} at most are sorted by "
            "anything but the key: ask for a part of it, or sort it by the key",
        )


def _count_key_nbytes(key: str) -> int:
    return len(key) if key.isascii() else len(key.encode())
