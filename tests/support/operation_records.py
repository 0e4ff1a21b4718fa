"""Records of operations, in the form of the flight recorder, for tests."""

from typing import Any

from allhands.recorder.record import OperationRecord

SECOND = 1_000_000_000


def record(sequence: int = 1, **more: Any) -> OperationRecord:
    given: dict[str, Any] = {
        "group": "world",
        "operation": "all_reduce",
        "nbytes": 8,
        "signature": "all_reduce(float64[1], SUM)",
        "created": sequence * SECOND,
        "started": sequence * SECOND,
        "finished": sequence * SECOND + 1000,
        "outcome": "ok",
        "label": "",
        "file": "/home/me/train.py",
        "line": 31,
        "function": "step",
        "how": "shared memory, slots",
        "waits_for": (),
    }
    return OperationRecord(sequence=sequence, **{**given, **more})


def nothing(error: BaseException) -> None:
    """Ignore a failure."""
