"""Watch over a running job: asks the coordinator for calls that wait, and acts on a stall."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from allhands.coordinator.client import Control
from allhands.coordinator.diagnosis import Diagnosis
from allhands.coordinator.endpoint import Endpoint
from allhands.errors import AllhandsError, NotFound
from allhands.launcher.own_events import Note, ignore_note
from allhands.launcher.stall import Stall, StallPolicy, find_stall
from allhands.launcher.supervision import JobStalled

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 1.0
_CALL_SECONDS = 5.0
_BY = "allhands run --on-stall"


class StallWatch:
    """Looks at one attempt of a job until it is cancelled."""

    def __init__(
        self,
        policy: StallPolicy,
        endpoint: Endpoint,
        job: str,
        handle: Callable[[JobStalled], None],
        say: Callable[[str], Awaitable[None]],
        note: Note = ignore_note,
    ) -> None:
        self._policy = policy
        self._endpoint = endpoint
        self._job = job
        self._handle = handle
        self._say = say
        self._note = note

    async def run(self) -> None:
        """Look as often as the policy's time asks for; end with the first stall that ends ranks."""
        pause = min(self._policy.seconds / 4, _LONGEST_PAUSE)
        reported: set[tuple[str, int, tuple[int, ...]]] = set()
        is_warned = False
        with Control(self._endpoint, job=self._job, timeout=_CALL_SECONDS) as control:
            while True:
                await asyncio.sleep(pause)
                try:
                    found = await asyncio.to_thread(self._look, control)
                except NotFound:  # no rank has joined
                    continue
                except AllhandsError as error:
                    if not is_warned:
                        await self._say(f"--on-stall cannot see the job: {error}")
                    is_warned = True
                    continue
                if found is None or (stall := found[0]).key in reported:
                    continue
                reported.add(stall.key)
                self._note("stalled", stall.verdict)
                await self._say(f"the job is stalled: {stall.verdict}\n{found[1]}")
                if self._policy.action != "report":
                    await self._end(control, stall)
                    return

    def _look(self, control: Control) -> tuple[Stall, Diagnosis] | None:
        """Diagnose the job if a call has taken so long; a heartbeat tells that for less."""
        is_late = any(
            one.operation and one.elapsed >= self._policy.seconds
            for member in control.members()
            if member.state == "joined"
            for one in member.operations
        )
        if not is_late:
            return None
        diagnosis = control.diagnose()
        stall = find_stall(diagnosis, self._policy.seconds)
        return None if stall is None else (stall, diagnosis)

    async def _end(self, control: Control, stall: Stall) -> None:
        restarts = self._policy.action == "restart"
        # First: what ranks fail of from now on is this.
        self._handle(JobStalled(stall.verdict, restarts))
        if restarts:
            return
        try:
            await asyncio.to_thread(control.abort, stall.verdict, by=f"{_BY} abort")
        except AllhandsError as error:
            await self._say(f"the job could not be aborted ({error}); its ranks are ended")
