"""Leaders of elections, as the keys of the candidates tell."""

from collections.abc import Iterable

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import KeyEvent, KeyRange, KeyRecord
from allhands.coordinator.recipes.queue_name import QueueName
from allhands.coordinator.recipes.steps import Ask, Steps
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Leader:
    """Leader of an election, with the value of its campaign or of its last `proclaim`."""

    value: bytes
    key: str
    revision: int
    """Fencing token: grows from each leader to the next."""
    mod_revision: int
    """Revision of the value."""


def find_leader(election: QueueName, timeout: float) -> Steps[Leader | None]:
    """Return the leader; None: there is none."""
    head: KeyRange = yield Ask(requests.make_get(election.job, election.make_head(1)), timeout)
    return _choose(head.records)


class LeaderTracker:
    """The leader of an election, from its candidates' keys and each of their changes."""

    def __init__(self, candidates: KeyRange) -> None:
        """Begin with the keys as they are."""
        self._candidates = {one.key: one for one in candidates}
        self.leader = _choose(self._candidates.values())

    def take(self, event: KeyEvent, *, is_last: bool) -> Leader | None:
        """Take in an event; return the leader if there is a new one, or a new value.

        What several events of one revision lead to is known with the last of them, `is_last`.
        """
        if event.is_deletion:
            self._candidates.pop(event.key, None)
        else:
            self._candidates[event.key] = event.record
        if not is_last:
            return None
        before, self.leader = self.leader, _choose(self._candidates.values())
        return None if self.leader == before else self.leader


def _choose(candidates: Iterable[KeyRecord]) -> Leader | None:
    first = min(candidates, key=lambda one: one.create_revision, default=None)
    if first is None:
        return None
    return Leader(first.value, first.key, first.create_revision, first.mod_revision)
