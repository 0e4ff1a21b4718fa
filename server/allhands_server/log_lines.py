"""Lines of the daemon's log on stderr: text for people, JSON for programs."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
_OF_JOB: Final = "job"
"""Attribute of records that concern one job."""


class JsonFormatter(logging.Formatter):
    """Records as one JSON object a line.

    Fields: `time` in RFC 3339 and UTC, `level` in lower case, `logger`, `message`; `job` where the
    record concerns one; `traceback` where it has an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if job := getattr(record, _OF_JOB, ""):
            fields["job"] = job
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_log(form: str, level: str) -> None:
    """Have the records of this process written to stderr; for the program's entry point alone.

    Args:
        form: `text` or `json`.
        level: least level, in lower case.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=level.upper())
