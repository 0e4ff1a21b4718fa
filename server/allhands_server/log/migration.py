"""Changes of older formats of the log, as those of the format of now."""

from collections.abc import Iterable

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.changes import Change, JobCleared, JobForgotten, KeyDeleted, KeyPut


@dataclass(frozen=True, slots=True)
class _Record:
    created: int
    version: int


class Migration:
    """Reader of the changes of one log, from its first to its last.

    Format 1 had puts without the revision of the key's creation and without the key's version.
    Both are counted here; for a key in a snapshot, its last put counts as its creation.
    """

    def __init__(self) -> None:
        self._records: dict[str, dict[str, _Record]] = {}
        """Of logs of format 1, by job and key."""

    def migrate(self, version: int, changes: Iterable[Change]) -> Iterable[Change]:
        """Return the changes of a frame of a format, in the format of now."""
        return map(self._complete, changes) if version == 1 else changes

    def _complete(self, change: Change) -> Change:
        match change:
            case KeyPut(job, key, value, revision):
                keys = self._records.setdefault(job, {})
                held = keys.get(key, _Record(revision, 0))
                keys[key] = record = _Record(held.created, held.version + 1)
                return KeyPut(job, key, value, revision, record.created, record.version)
            case KeyDeleted(job, key):
                self._records.get(job, {}).pop(key, None)
            case JobCleared(job) | JobForgotten(job):
                self._records.pop(job, None)
        return change
