"""Transactions on the keys of a job: conditions, and operations that are carried out together."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from allhands_server.machine.changes import KeyPut
from allhands_server.machine.fast_dataclass import fast_dataclass
from allhands_server.machine.limits import TXN_OPERATIONS, check_key
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import Request
from allhands_server.machine.store.draft import Draft
from allhands_server.machine.store.key_results import OperationResult
from allhands_server.machine.store.records import Operation

OF_VALUE, OF_VERSION, OF_CREATE, OF_MOD, OF_LEASE = range(5)
"""Targets of a condition; see CompareTarget in coordinator.proto."""
EQUAL, NOT_EQUAL, GREATER, LESS = range(4)
"""Relations; see CompareRelation in coordinator.proto."""

_NUMBERS: Mapping[int, Callable[[KeyPut], int]] = {
    OF_VERSION: operator.attrgetter("version"),
    OF_CREATE: operator.attrgetter("created"),
    OF_MOD: operator.attrgetter("revision"),
    OF_LEASE: operator.attrgetter("lease"),
}
_RELATIONS: Mapping[int, Callable[[Any, Any], bool]] = {
    EQUAL: operator.eq,
    NOT_EQUAL: operator.ne,
    GREATER: operator.gt,
    LESS: operator.lt,
}


@fast_dataclass
class Compare:
    """Condition on a key; see Compare in coordinator.proto."""

    key: str
    target: int
    relation: int
    value: bytes = b""
    number: int = 0


@fast_dataclass
class TxnResult:
    revision: int
    succeeded: bool
    """Whether all conditions held."""
    results: tuple[OperationResult, ...]


@fast_dataclass
class Txn(Request[TxnResult]):
    """Carry out `success` if all conditions hold, else `failure`; all or none."""

    job: str
    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...]


def decide_txn(draft: Draft, txn: Txn) -> TxnResult:
    """Decide the operations of a transaction on a fresh draft.

    Raises:
        Refused: the transaction makes no sense, or an operation cannot be carried out.
    """
    for part in (txn.compares, txn.success, txn.failure):
        if len(part) > TXN_OPERATIONS:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"a transaction with {len(part):,} operations or conditions; "
                f"{TXN_OPERATIONS} is the most",
            )
    for compare in txn.compares:
        _check_compare(compare)
    succeeded = all(_holds(draft.find(compare.key), compare) for compare in txn.compares)
    chosen = txn.success if succeeded else txn.failure
    results = tuple(draft.carry_out(operation) for operation in chosen)
    return TxnResult(draft.revision, succeeded, results)


def _check_compare(compare: Compare) -> None:
    check_key(compare.key)
    if compare.relation not in _RELATIONS or compare.target not in (OF_VALUE, *_NUMBERS):
        text = f"no such condition: target {compare.target}, relation {compare.relation}"
        raise Refused(Status.INVALID_ARGUMENT, text)


def _holds(record: KeyPut | None, compare: Compare) -> bool:
    relation = _RELATIONS[compare.relation]
    if compare.target == OF_VALUE:
        if record is None:
            return compare.relation == NOT_EQUAL
        return relation(record.value, compare.value)
    held = 0 if record is None else _NUMBERS[compare.target](record)
    return relation(held, compare.number)
