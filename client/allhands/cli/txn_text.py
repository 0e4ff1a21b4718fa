"""Transactions as text, in the form of etcdctl: conditions, operations if they hold, and if not.

    mod("leader") = "0"

    put leader me --lease=7

    get leader

The three parts are separated by an empty line each.
"""

import argparse
import re
import shlex
from typing import NoReturn

from allhands.coordinator.kv import transactions
from allhands.coordinator.kv.transactions import Condition, Delete, Get, Operation, Put, Subject
from allhands_proto.quick_dataclass import dataclass

_CONDITION = re.compile(
    r'\s*(?P<subject>\w+)\(\s*(?P<key>"(?:[^"\\]|\\.)*")\s*\)\s*(?P<relation>=|!=|<|>)\s*'
    r'(?P<other>"(?:[^"\\]|\\.)*"|\d+)\s*'
)
_SUBJECTS = {
    "value": transactions.value,
    "val": transactions.value,
    "version": transactions.version,
    "ver": transactions.version,
    "create": transactions.create_revision,
    "c": transactions.create_revision,
    "mod": transactions.mod_revision,
    "m": transactions.mod_revision,
    "lease": transactions.lease,
}
_FORM = 'value("KEY") = "VALUE", or version, create, mod, lease with a number; =, !=, < or >'


@dataclass(frozen=True, slots=True)
class TxnText:
    """A transaction that was read."""

    conditions: tuple[Condition, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...]


def parse_txn(text: str) -> TxnText:
    """Return the transaction in a text.

    Raises:
        ValueError: a line cannot be read; it is quoted.
    """
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            parts[-1].append(line)
        else:
            parts.append([])
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    if len(parts) > 3:
        raise ValueError("a transaction has three parts with an empty line between each two")
    conditions, success, failure = (*parts, [], [])[:3]
    return TxnText(
        tuple(map(_parse_condition, conditions)),
        tuple(map(_parse_operation, success)),
        tuple(map(_parse_operation, failure)),
    )


def _parse_condition(line: str) -> Condition:
    read = _CONDITION.fullmatch(line)
    if read is None or read["subject"] not in _SUBJECTS:
        raise ValueError(f"no condition: {line!r}; write {_FORM}")
    subject = _SUBJECTS[read["subject"]](_unquote(read["key"]))
    other = _unquote(read["other"])
    if read["subject"] in ("value", "val"):
        return _compare(subject, read["relation"], other)
    if not other.isdecimal():
        raise ValueError(f"this is compared with a number: {line!r}")
    return _compare(subject, read["relation"], int(other))


def _compare(subject: Subject, relation: str, other: str | int) -> Condition:
    match relation:
        case "=":
            return subject == other
        case "!=":
            return subject != other
        case "<":
            return subject < other
        case _:
            return subject > other


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


class _LineParser(argparse.ArgumentParser):
    """Parser of the operations of a line, which raises ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _make_parser() -> _LineParser:
    parser = _LineParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    kinds = parser.add_subparsers(dest="operation", required=True)
    put = kinds.add_parser("put", add_help=False, allow_abbrev=False)
    put.add_argument("key")
    put.add_argument("value")
    put.add_argument("--lease", type=int, default=0)
    for name in ("get", "del"):
        one = kinds.add_parser(name, add_help=False, allow_abbrev=False)
        one.add_argument("key")
        one.add_argument("end", nargs="?")
        one.add_argument("--prefix", action="store_true")
    return parser


def _parse_operation(line: str) -> Operation:
    try:
        read = _make_parser().parse_args(shlex.split(line))
    except (ValueError, argparse.ArgumentError) as error:
        text = "write put KEY VALUE [--lease=N], get KEY [END] [--prefix] or del KEY [END]"
        raise ValueError(f"no operation: {line!r} ({error}); {text} [--prefix]") from error
    if read.operation == "put":
        return Put(read.key, read.value, read.lease)
    kind = Get if read.operation == "get" else Delete
    return kind(read.key, read.end, read.prefix)
