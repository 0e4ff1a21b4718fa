"""Records and events of keys, as text and as the fields of documents (docs/output.md)."""

import base64
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allhands.cli.render import Output, print_document
from allhands.escapes import escape_line, escape_lines

if TYPE_CHECKING:
    from allhands.coordinator.kv.records import (
        KeyEvent,
        KeyRange,
        KeyRecord,
        OperationResult,
        TxnResult,
    )


def write_line(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_value(value: bytes) -> None:
    """Write a value and the end of a line: byte for byte, but escaped on a terminal."""
    if sys.stdout.isatty():
        write_line(escape_lines(value.decode(errors="backslashreplace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(value + b"\n")
    sys.stdout.buffer.flush()


def make_record_fields(record: "KeyRecord") -> dict[str, Any]:
    """Return a record for a document; the value is in base64."""
    return {
        "key": record.key,
        "value": base64.b64encode(record.value).decode(),
        "create_revision": record.create_revision,
        "mod_revision": record.mod_revision,
        "key_version": record.version,
        "lease": record.lease,
        "member": record.member,
    }


def make_range_fields(found: "KeyRange") -> dict[str, Any]:
    """Return a `KeyRange`."""
    return {
        "revision": found.revision,
        "count": found.count,
        "has_more": found.has_more,
        "records": list(map(make_record_fields, found)),
    }


def print_records(
    records: "Sequence[KeyRecord]", *, keys_only: bool = False, values_only: bool = False
) -> None:
    """Write keys and values, a line each."""
    for record in records:
        if not values_only:
            write_line(escape_line(record.key))
        if not keys_only:
            write_value(record.value)


def print_event(event: "KeyEvent", output: Output) -> None:
    """Write an event of a watch."""
    if output.is_document:
        previous = event.previous
        fields = {
            "type": "DELETE" if event.is_deletion else "PUT",
            "record": make_record_fields(event.record),
            "previous": None if previous is None else make_record_fields(previous),
        }
        print_document("KeyEvent", fields, output, in_stream=True)
        return
    if output is Output.NAME:
        write_line(escape_line(event.key))
        return
    write_line("DELETE" if event.is_deletion else "PUT")
    if event.previous is not None:
        print_records([event.previous])
    print_records([event.record], keys_only=event.is_deletion)


def print_txn(done: "TxnResult", output: Output) -> None:
    """Write the result of a transaction."""
    if output.is_document:
        results = list(map(_make_result_fields, done.results))
        fields = {"succeeded": done.succeeded, "revision": done.revision, "results": results}
        print_document("TxnResult", fields, output)
        return
    write_line("SUCCESS" if done.succeeded else "FAILURE")
    for result in done.results:
        write_line("")
        _print_result(result)


def _make_result_fields(result: "OperationResult") -> dict[str, Any]:
    from allhands.coordinator.kv.records import KeyRange, PutResult

    if isinstance(result, KeyRange):
        return make_range_fields(result)
    if isinstance(result, PutResult):
        return {"revision": result.revision}
    return {"revision": result.revision, "deleted": result.deleted}


def _print_result(result: "OperationResult") -> None:
    from allhands.coordinator.kv.records import KeyRange, PutResult

    if isinstance(result, KeyRange):
        print_records(result.records)
    else:
        write_line("OK" if isinstance(result, PutResult) else str(result.deleted))
