"""Dump of a rank's recorded calls in the format of PyTorch's flight recorder.

    python -m torch.distributed.flight_recorder.fr_trace FOLDER

They match the collectives of all ranks, and say which ranks did not come to which. They know the
calls of PyTorch's own backends alone: so ours are there under the name of Gloo, sizes are bytes,
and messages from point to point are left out, which they match in groups of two alone.
"""

import os
import pickle
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from torch.distributed import distributed_c10d

from allhands.collectives.primitive_table import PRIMITIVES, Operand
from allhands.recorder.record import OperationRecord
from allhands.torch import pg_registry
from allhands.torch.call_table import TORCH_CALLS
from allhands.torch.process_group import ProcessGroup

VERSION: Final = "2.10"
"""Of the format."""
VARIABLE: Final = "TORCH_FR_DUMP_TEMP_FILE"
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {call.operation: call.recorded for call in TORCH_CALLS if call.recorded}
)
"""Our operations that they know, and their names."""


def dump_flight_recorder(prefix: str | None = None) -> Path:
    """Write this rank's recorded calls to `PREFIX<rank>`, and return the file.

    The rank is that which the process had in the world at first. Operations of groups that have
    been destroyed, or replaced by `recover`, are in it no more.

    Args:
        prefix: None: what is in TORCH_FR_DUMP_TEMP_FILE, as for PyTorch's own.

    Raises:
        ValueError: no prefix; or there is no default group.
        RuntimeError: the default group is of another backend.
        OSError: the file cannot be written.
    """
    if not (prefix := prefix or os.environ.get(VARIABLE)):
        raise ValueError(f"say where to write: dump_flight_recorder(prefix), or set {VARIABLE}")
    default = pg_registry.get_default_group()
    if default is None:
        name = distributed_c10d.get_backend()
        raise RuntimeError(f"groups of backend 'allhands' are recorded, not of {name!r}")
    path = Path(f"{prefix}{default.world.rank}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(_dump(default)))
    return path


def _dump(default: ProcessGroup) -> dict[str, Any]:
    members = default.world.get_members()
    known = {
        one.group.name: (one.group_name, one.group_desc)
        for one in (default, *pg_registry.list_other_groups(default))
        if isinstance(one, ProcessGroup)
    }
    names = {name: known.get(name, (name, "undefined")) for name in members}
    records = [
        one for one in default.world.get_records() if one.sequence and one.operation in _NAMES
    ]
    return {
        "version": VERSION,
        "pg_config": {
            said: {"name": said, "desc": description, "ranks": str(sorted(members[name]))}
            for name, (said, description) in names.items()
        },
        "pg_status": {
            said: _make_status([one for one in records if one.group == name])
            for name, (said, _) in names.items()
        },
        "entries": _make_entries([one for one in records if one.group in names], names, members),
    }


def _make_entries(
    records: Sequence[OperationRecord],
    names: Mapping[str, tuple[str, str]],
    members: Mapping[str, Sequence[int]],
) -> list[dict[str, Any]]:
    to_clock = time.time_ns() - time.monotonic_ns()
    groups = {name: at for at, name in enumerate(names)}
    first = Counter({one.group: one.sequence - 1 for one in reversed(records)}).total()
    found = []
    for at, one in enumerate(records, first):
        given, got = _compute_sizes(one.operation, one.nbytes, len(members[one.group]))
        found.append(
            {
                "record_id": at,
                "pg_id": groups[one.group],
                "process_group": names[one.group],
                "collective_seq_id": one.sequence,
                "p2p_seq_id": 0,
                "op_id": one.sequence,
                "is_p2p": False,
                "profiling_name": f"gloo:{_NAMES[one.operation]}",
                "input_sizes": [given],
                "input_dtypes": ["Byte"],
                "output_sizes": [got],
                "output_dtypes": ["Byte"],
                "state": _name_state(one),
                "retired": bool(one.finished),
                "timeout_ms": 0,
                "time_created_ns": one.created + to_clock,
                "time_discovered_started_ns": one.started + to_clock if one.started else None,
                "time_discovered_completed_ns": one.finished + to_clock if one.finished else None,
                "frames": [{"name": one.function, "filename": one.file, "line": one.line}],
                "signature": one.signature,
                "outcome": one.outcome,
            }
        )
    return found


def _compute_sizes(operation: str, nbytes: int, size: int) -> tuple[list[int], list[int]]:
    """Return input and output bytes of a call on a rank."""
    primitive = PRIMITIVES.get(operation)
    if primitive is None or not primitive.scales_with_size:
        return [nbytes], [nbytes]
    sides = (primitive.inputs, primitive.outputs)
    given, got = (nbytes * size if side is Operand.BLOCKS else nbytes for side in sides)
    return [given], [got]


def _name_state(record: OperationRecord) -> str:
    if record.outcome == "ok":
        return "completed"
    return "started" if record.started else "scheduled"


def _make_status(records: Iterable[OperationRecord]) -> dict[str, int]:
    last = {"enqueued": 0, "started": 0, "completed": 0}
    for one in records:
        last["enqueued"] = max(last["enqueued"], one.sequence)
        if one.started:
            last["started"] = max(last["started"], one.sequence)
        if one.outcome == "ok":
            last["completed"] = max(last["completed"], one.sequence)
    return {f"last_{what}_collective": number for what, number in last.items()}
