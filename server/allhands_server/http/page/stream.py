"""Streams of server-sent events: each has the changes of one job, and of the list of jobs.

A stream holds what it has sent as one number, so a slow reader costs one message and the buffer of
its connection, and misses the states in between.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from allhands_server.coordinator import Coordinator
from allhands_server.http.page.feed import PACE_SECONDS, PageFeed, describe_job
from allhands_server.machine.refusals import Refused

MOST_STREAMS = 32
"""Of all pages that are open."""
_QUIET_SECONDS = 15.0
"""After which a stream without news carries a comment, as proxies want it."""


class Streams:
    """The streams that are open, in bounded number."""

    def __init__(self) -> None:
        self._feed = PageFeed()
        self.count = 0

    async def iterate(
        self,
        coordinator: Coordinator,
        job: str,
        may_read: Callable[[str], bool],
        check: Callable[[], None],
    ) -> AsyncIterator[bytes]:
        """Yield events for one page; `job` empty: of the list of jobs alone.

        Args:
            may_read: whether the page may show a job.
            check: raises Refused where the page's session is over.
        """
        self.count += 1
        try:
            with self._feed.open(job) as feed:
                seen, listed, quiet = -1, "", 0.0
                while True:
                    try:
                        check()
                    except Refused as refused:
                        yield _encode("over", json.dumps(str(refused)))
                        return
                    sent = False
                    rows = [
                        describe_job(one)
                        for one in self._feed.list_jobs(coordinator)
                        if may_read(one.job)
                    ]
                    if (text := json.dumps(rows, separators=(",", ":"))) != listed:
                        listed, sent = text, True
                        yield _encode("jobs", text)
                    if job and may_read(job):
                        feed.refresh(coordinator)
                        if (changes := feed.kept.parts.format_changes(seen)) is not None:
                            seen, sent = feed.kept.parts.version, True
                            yield _encode("job", changes)
                    quiet = 0.0 if sent else quiet + PACE_SECONDS
                    if quiet >= _QUIET_SECONDS:
                        quiet = 0.0
                        yield b": nothing new\n\n"
                    await asyncio.sleep(PACE_SECONDS)
        finally:
            self.count -= 1


def _encode(event: str, data: str) -> bytes:
    """Return an event; the data is JSON, which has no line breaks."""
    return f"event: {event}\ndata: {data}\n\n".encode()
