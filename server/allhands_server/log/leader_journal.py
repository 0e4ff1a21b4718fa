"""Journal of a leader: frames at a steady pace, through failures of the engine's service."""

import asyncio
import logging
from collections.abc import Callable

from allhands_proto.limited_log import LimitedLog
from allhands_server.log.engine import AppendResult, LogEngine, SlotTrimmed, Taken
from allhands_server.log.errors import LogError, LogFull, LogUnavailable
from allhands_server.log.frame import Frame
from allhands_server.log.journal import Journal, JournalOwner
from allhands_server.log.recovery import RestoredLog
from allhands_server.machine.leadership import AppendBegun, AppendEnded

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
"""Between attempts: nothing tells of a service that comes back."""


class LeaderJournal(Journal):
    """Writer of the log that several daemons read."""

    _kept_slots = 1_000
    """For followers that are behind: they need not read the state anew."""

    def __init__(
        self,
        engine: LogEngine,
        restored: RestoredLog,
        owner: JournalOwner,
        on_event: Callable[[AppendBegun | AppendEnded], None],
    ) -> None:
        """Write to `engine` behind what was read of it, in the same term."""
        super().__init__(engine, restored, owner)
        self._head = restored.head
        self._on_event = on_event
        self._is_frame_due = False
        self._log = LimitedLog(logger, "failed writes")
        self.failure = ""
        """Reason why the frame under way is not in the log; empty: none is known."""

    def request_frame(self) -> None:
        """Append a frame even if there is nothing to write."""
        self._is_frame_due = True
        self._has_work.set()

    @property
    def _has_work_now(self) -> bool:
        return bool(self._commits) or (self._is_frame_due and not self._is_closing)

    async def _put(self, frame: Frame, data: bytes) -> AppendResult:
        """Append a frame, for as long as it takes; at the journal's end there is one attempt.

        Raises:
            LogUnavailable, LogFull: the journal is closing, and the outcome unknown.
        """
        self._is_frame_due = False
        self._on_event(AppendBegun())
        while True:
            try:
                result = await self._engine.append(frame.index, data)
            except (LogUnavailable, LogFull) as error:
                self.failure = str(error)
                if self._is_closing:
                    raise
                self._log.warning("cannot write, and try again: %s", error)
            except SlotTrimmed:
                return Taken(b"")  # others have written it long ago
            else:
                self.failure = ""
                if not isinstance(result, Taken):
                    self._on_event(AppendEnded())
                return result
            await asyncio.sleep(_PAUSE_SECONDS)

    def _on_snapshot_failed(self, error: LogError) -> None:
        if isinstance(error, LogUnavailable):
            self._log.warning("no snapshot was made, and a later one will be: %s", error)
        else:
            super()._on_snapshot_failed(error)

    async def abandon(self) -> None:
        """End without writing what is pending: the log is another daemon's. Idempotent."""
        tasks = [one for one in (self._writing, self._snapshot) if one is not None]
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks)
