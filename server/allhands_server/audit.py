"""Audit log: a line of JSON for each call that was allowed or refused, and never a secret."""

import json
import logging
import logging.handlers
import os
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

logger = logging.getLogger(__name__)

_LONGEST = 512
"""Characters of a field that come from callers."""


class AuditLog:
    """A file of mode 0600 that is only appended to; one moved away is followed by a new one."""

    def __init__(self, path: Path | str) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be written to.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._handler = _Handler(path, encoding="utf-8")

    def write(self, **fields: str) -> None:
        """Write a line; control characters are escaped, as JSON does."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line |= {name: value[:_LONGEST] for name, value in fields.items()}
        text = json.dumps(line)
        self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        self._handler.close()


class _Handler(logging.handlers.WatchedFileHandler):
    """A handler whose failures are told in the daemon's own log, once until a line succeeds."""

    def __init__(self, path: Path | str, encoding: str) -> None:
        super().__init__(path, encoding=encoding)
        self._has_failed = False

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return open(os.open(self.baseFilename, flags, 0o600), "a", encoding=self.encoding)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.reopenIfNeeded()
            if self.stream is None:
                self.stream = self._open()
            self.stream.write(record.getMessage() + "\n")
            self.stream.flush()
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                logger.error("the audit log misses lines: %s: %s", self.baseFilename, error)
            self._has_failed = True
