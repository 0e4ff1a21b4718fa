"""Names of fair queues, with the keys that their places have."""

from typing import Literal, TypeAlias

from allhands.coordinator.kv.transactions import Get
from allhands_proto.quick_dataclass import dataclass

Kind: TypeAlias = Literal["lock", "semaphore", "election", "double barrier"]

_FOLDERS: dict[Kind, str] = {
    "lock": "locks",
    "semaphore": "semaphores",
    "election": "elections",
    "double barrier": "double_barriers",
}
_LONGEST = 256
MOST_PERMITS = 1_000


@dataclass(frozen=True, slots=True)
class QueueName:
    """A lock, semaphore or election: those who came first hold it, in the order of revisions."""

    job: str
    kind: Kind
    name: str
    permits: int = 1
    """Number of holders at once."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _LONGEST:
            raise ValueError(
                f"the name of a {self.kind} is text of 1 to {_LONGEST} characters, "
                f"not {self.name!r:.80}"
            )

    @property
    def prefix(self) -> str:
        """Prefix of the keys of the places; no other queue's keys have it."""
        name = self.name.replace("%", "%25").replace("/", "%2F")
        return f"_allhands/{_FOLDERS[self.kind]}/{name}/"

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of job {self.job!r}"

    def make_key(self, session: int, number: int) -> str:
        """Return the key of a session's place."""
        return f"{self.prefix}{session:016x}-{number}"

    def make_head(self, limit: int, *, keys_only: bool = False) -> Get:
        """Return the operation for the first places, in their order; limit 0: all that a reply
        has room for."""
        return Get(self.prefix, prefix=True, limit=limit, keys_only=keys_only, sort_by="create")

    def make_tail(self, limit: int) -> Get:
        """Return the operation for the last places, the last one first."""
        return Get(
            self.prefix,
            prefix=True,
            limit=limit,
            keys_only=True,
            sort_by="create",
            descending=True,
        )


def check_permits(permits: int) -> int:
    """Return a number of permits that a semaphore can have."""
    if not isinstance(permits, int) or not 1 <= permits <= MOST_PERMITS:
        raise ValueError(f"a semaphore has 1 to {MOST_PERMITS:,} permits, not {permits!r}")
    return permits
