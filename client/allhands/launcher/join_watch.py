"""Watch over a job that has not formed: says who has joined, for those who look at a terminal."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from allhands.coordinator.endpoint import Endpoint
from allhands.coordinator.sections import format_duration, name_ranks
from allhands.errors import AllhandsError

if TYPE_CHECKING:
    from allhands.coordinator.status import JobStatus

FIRST_SECONDS = 10.0
"""Most jobs have formed before, and nothing is said."""
_LONGEST_PAUSE = 60.0
_CALL_SECONDS = 5.0


class JoinWatch:
    """Looks at one attempt of a job until its world has formed, or it is cancelled."""

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        world_size: int,
        say: Callable[[str], Awaitable[None]],
        first: float = FIRST_SECONDS,
    ) -> None:
        self._endpoint = endpoint
        self._job = job
        self._world_size = world_size
        self._say = say
        self._pause = first

    async def run(self) -> None:
        """Look after `first` seconds, then at twice the time, at most a minute apart.

        A program of which no rank joins may not use allhands at all: nothing is said of it.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(self._pause)
            try:
                job = await asyncio.to_thread(self._look)
            except AllhandsError:  # no such job; of an absent coordinator the ranks tell
                job = None
            if job is not None and job.state != "forming":
                return
            if job is not None and (said := describe_forming(job, self._world_size)):
                await self._say(f"{said} (after {format_duration(loop.time() - began)})")
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _look(self) -> "JobStatus | None":
        """Return the job; None: no rank has joined."""
        from allhands.coordinator.client import Control  # which few launches need

        with Control(self._endpoint, job=self._job, timeout=_CALL_SECONDS) as control:
            job = control.job()
        return job if job.members else None


def describe_forming(job: "JobStatus", world_size: int) -> str:
    """Say how many ranks have joined, and which are missing; empty: none is."""
    joined = {member.rank for member in job.members if member.state == "joined"}
    missing = [rank for rank in range(job.world_size or world_size) if rank not in joined]
    if not missing:
        return ""
    have = "rank has" if len(joined) == 1 else "ranks have"
    return f"{len(joined)} {have} joined; waiting for {name_ranks(missing)}"
