"""Dumps of the flight recorder to files at failures."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from allhands.errors import CollectiveMismatch, CollectiveTimeout, GroupAborted, PeerFailed
from allhands.recorder.record import OperationRecord

logger = logging.getLogger(__name__)

MAX_FILES = 8
"""Of one process: the first failures tell most."""
_MIN_INTERVAL = 1.0
"""Seconds: what fails sooner after a failure fails of the same."""
_FAILURES = (CollectiveTimeout, CollectiveMismatch, PeerFailed, GroupAborted)


class Dumper:
    """Writes `DIRECTORY/allhands-JOB-rankN.json` when told of a failure; any thread.

    Without a directory it does nothing.
    Later failures get `-2`, `-3` and so on behind the rank.
    """

    def __init__(
        self,
        directory: str,
        job: str,
        rank: int,
        world_size: int,
        records: Callable[[], Sequence[OperationRecord]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = Path(directory) if directory else None
        self._job = job
        self._rank = rank
        self._world_size = world_size
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()
        self._written = 0
        self._last_dump = -float("inf")

    def dump_failure(self, error: BaseException) -> None:
        """Write a dump, if dumps are enabled and due for this failure."""
        if not self._directory or not isinstance(error, _FAILURES):
            return
        with self._lock:
            now = self._clock()
            if now - self._last_dump < _MIN_INTERVAL or self._written >= MAX_FILES:
                return
            self._last_dump = now
            self._written += 1
            number = self._written
        behind = "" if number == 1 else f"-{number}"
        path = self._directory / f"allhands-{self._job}-rank{self._rank}{behind}.json"
        try:
            self._write(path, error)
        except OSError as problem:
            logger.warning("the flight recorder could not be written to %s: %s", path, problem)
        else:
            logger.warning("the flight recorder was written to %s", path)

    def _write(self, path: Path, error: BaseException) -> None:
        said = {
            "job": self._job,
            "rank": self._rank,
            "world_size": self._world_size,
            "pid": os.getpid(),
            "time": time.time(),
            "monotonic_ns": time.monotonic_ns(),
            "error": type(error).__name__,
            "text": str(error),
            "records": [{**asdict(one), "source": one.source} for one in self._records()],
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whole or not at all, and for nobody else to read: labels and paths are the user's own.
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(said, file)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise
