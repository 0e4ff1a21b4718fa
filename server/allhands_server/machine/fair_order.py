"""Order of turns among clients of several jobs: the jobs take turns, and in each its clients.

So the calls of a job wait for one turn of each other job, however many clients those have.
"""

from collections import deque
from typing import Generic, TypeVar

C = TypeVar("C")


class FairOrder(Generic[C]):
    """Clients that wait for a turn, each once."""

    def __init__(self) -> None:
        self._jobs: dict[str, deque[C]] = {}  # in the order of their turns; none of them empty
        self._places: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, client: C, job: str) -> None:
        """Add a client behind those of its job. Idempotent: a client that waits keeps its place."""
        if client not in self._places:
            self._places[client] = job
            self._jobs.setdefault(job, deque()).append(client)

    def take(self) -> C:
        """Remove the client whose turn it is, and return it; there has to be one."""
        job = next(iter(self._jobs))
        clients = self._jobs.pop(job)
        client = clients.popleft()
        if clients:
            self._jobs[job] = clients  # behind all other jobs
        del self._places[client]
        return client

    def discard(self, client: C) -> None:
        """Remove a client. Idempotent."""
        if (job := self._places.pop(client, None)) is not None:
            clients = self._jobs[job]
            clients.remove(client)
            if not clients:
                del self._jobs[job]
