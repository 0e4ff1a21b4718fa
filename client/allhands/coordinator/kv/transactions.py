"""Conditions and operations of transactions."""

from dataclasses import field
from typing import Final, Literal, TypeAlias

from allhands.coordinator.kv.calls import TO_THE_END
from allhands.coordinator.kv.values import encode
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire

SortBy: TypeAlias = Literal["key", "version", "create", "mod", "value"]

_ORDERS: Final = {
    "key": wire.RANGE_ORDER_KEY,
    "version": wire.RANGE_ORDER_VERSION,
    "create": wire.RANGE_ORDER_CREATE,
    "mod": wire.RANGE_ORDER_MOD,
    "value": wire.RANGE_ORDER_VALUE,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a transaction on a key; made by comparing a `Subject`."""

    message: wire.Compare = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Value or number of a key, to be compared: `version("k") == 0`."""

    key: str
    target: int

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare(wire.COMPARE_RELATION_EQUAL, other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare(wire.COMPARE_RELATION_NOT_EQUAL, other)

    def __gt__(self, other: object) -> Condition:
        return self._compare(wire.COMPARE_RELATION_GREATER, other)

    def __lt__(self, other: object) -> Condition:
        return self._compare(wire.COMPARE_RELATION_LESS, other)

    def _compare(self, relation: int, other: object) -> Condition:
        message = wire.Compare(key=self.key)
        message.target = self.target  # type: ignore[assignment]
        message.relation = relation  # type: ignore[assignment]
        if self.target == wire.COMPARE_TARGET_VALUE:
            if not isinstance(other, bytes | str):
                raise TypeError(f"a value is compared with bytes or str, not {other!r}")
            message.value = encode(other)
        else:
            if not isinstance(other, int) or other < 0:
                raise TypeError(f"this is compared with an integer from 0 up, not {other!r}")
            message.number = other
        return Condition(message)


def value(key: str) -> Subject:
    """Return the value of a key, to be compared; an absent key is unequal to every value."""
    return Subject(key, wire.COMPARE_TARGET_VALUE)


def version(key: str) -> Subject:
    """Return the version of a key, to be compared; 0 if absent."""
    return Subject(key, wire.COMPARE_TARGET_VERSION)


def create_revision(key: str) -> Subject:
    """Return the revision of a key's creation, to be compared; 0 if absent."""
    return Subject(key, wire.COMPARE_TARGET_CREATE)


def mod_revision(key: str) -> Subject:
    """Return the revision of a key's last change, to be compared; 0 if absent."""
    return Subject(key, wire.COMPARE_TARGET_MOD)


def lease(key: str) -> Subject:
    """Return the lease of a key, to be compared; 0 if none."""
    return Subject(key, wire.COMPARE_TARGET_LEASE)


@dataclass(frozen=True, slots=True)
class Put:
    """Operation: set a key."""

    key: str
    value: bytes | str = b""
    lease: int = 0
    """Lease of the job with the end of which the key is deleted; 0: none."""
    member: str = ""
    """Member with the loss or departure of which the key is deleted; empty: none."""
    keeps_value: bool = False
    """Leave the value as it is; the key must be present."""
    keeps_bindings: bool = False
    """Leave lease and member as they are; the key must be present."""
    previous: bool = False
    """Return the record before."""

    def make_message(self, job: str) -> wire.PutRequest:
        return wire.PutRequest(
            job=job,
            key=self.key,
            value=encode(self.value),
            lease=self.lease,
            member=self.member,
            keeps_value=self.keeps_value,
            keeps_bindings=self.keeps_bindings,
            previous=self.previous,
        )


@dataclass(frozen=True, slots=True)
class Get:
    """Operation: get a key, the keys with a prefix, or those from `key` up to `end`."""

    key: str
    end: str | None = None
    """First key behind the range; an empty string: all from `key` on; None: `key` alone."""
    prefix: bool = False
    limit: int = 0
    """Most records; 0: as many as there is room for."""
    revision: int = 0
    """Revision to look at; 0: now."""
    keys_only: bool = False
    count_only: bool = False
    sort_by: SortBy = "key"
    descending: bool = False

    def make_message(self, job: str) -> wire.RangeRequest:
        if self.sort_by not in _ORDERS:
            raise ValueError(f"keys are sorted by {', '.join(_ORDERS)}, not by {self.sort_by!r}")
        return wire.RangeRequest(
            job=job,
            key=self.key,
            range_end=encode_end(self.end),
            prefix=self.prefix,
            limit=self.limit,
            revision=self.revision,
            keys_only=self.keys_only,
            count_only=self.count_only,
            order=_ORDERS[self.sort_by],
            descending=self.descending,
        )


@dataclass(frozen=True, slots=True)
class Delete:
    """Operation: delete a key, the keys with a prefix, or those from `key` up to `end`."""

    key: str
    end: str | None = None
    """As in `Get`."""
    prefix: bool = False
    previous: bool = False
    """Return the records before."""

    def make_message(self, job: str) -> wire.DeleteRangeRequest:
        return wire.DeleteRangeRequest(
            job=job,
            key=self.key,
            range_end=encode_end(self.end),
            prefix=self.prefix,
            previous=self.previous,
        )


Operation: TypeAlias = Put | Get | Delete


def encode_end(end: str | None) -> str:
    """Return a range's end as it travels."""
    return "" if end is None else end or TO_THE_END


def make_operation(job: str, operation: Operation) -> wire.Operation:
    """Return the message of an operation of a transaction."""
    match operation:
        case Put():
            return wire.Operation(put=operation.make_message(job))
        case Get():
            return wire.Operation(range=operation.make_message(job))
        case Delete():
            return wire.Operation(delete_range=operation.make_message(job))
