"""Protocol between programs of ranks and their tests: JSON lines out, text lines in."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import allhands as ah

_PATIENCE = 20.0


class CheckedLabel(str):
    """A label that sends calls between hosts the checked way: to the core it is no plain str."""

    __slots__ = ()


def tell(what: str, **more: Any) -> None:
    """Send the test an event, which the test expects by this name."""
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    sys.stdout.flush()


def hear() -> str:
    """Wait for a line from the test."""
    return sys.stdin.readline().strip()


def until(claim: Callable[[], object]) -> None:
    """Poll a claim about a second process until true: there is no event to wait for."""
    deadline = time.monotonic() + _PATIENCE
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def as_json(verdict: ah.Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else dataclasses.asdict(verdict)


def failure(call: Callable[[], object]) -> dict[str, Any]:
    """Make a failing call; return the error for `tell`."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "seconds": time.monotonic() - begun,
            "ranks": list(getattr(error, "failed_ranks", getattr(error, "missing_ranks", ()))),
            "seq": getattr(error, "seq", None),
            "op": getattr(error, "op", None),
            "label": getattr(error, "label", None),
            "by": getattr(error, "by", None),
            "reason": getattr(error, "reason", None),
            "verdict": as_json(getattr(error, "verdict", None)),
            "intact": getattr(error, "outputs_intact", None),
        }
    return {"error": None, "text": "", "ranks": []}
