"""Submission for callers that block: calls run on their own threads where possible."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.engine.inline_limits import WAITED
from allhands.engine.routes import Caller, Route
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.waiting import StartedWork, start_and_wait_for_end, wait_for_end
from allhands.engine.work.work import Work
from allhands.group.lent_loop import LentLoopSubmitter
from allhands.group.queued import Attempt


class InlineSubmitter(LentLoopSubmitter):
    """Carries calls out on their callers' threads; those that cannot be are queued, and waited for.

    So handlers of signals find no call under way that nobody would end.
    """

    caller = Caller.BLOCKS
    limits = WAITED

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        """Carry a composite call out here, where possible and next in turn.

        As one call of the core over shared memory, else step by step over links.
        """
        core_call, comm = composite.core_call, self.order.comm
        seconds = self.order.clip_timeout(timeout)
        if comm is not None and core_call is not None and seconds > 0 and not self.engine.verifies:
            run = partial(core_call.run, comm, 0, seconds, time.monotonic() + seconds, label)
            staging = composite.staging
            if (ended := run() if staging is None else staging.carry_out(run)) is not None:
                return CompletedWork.from_comm(comm, label, self.engine.name, ended[0])
        return super().start_composite(composite, timeout, label)

    def _map_attempts(self) -> Mapping[Route, Attempt]:
        return {**super()._map_attempts(), Route.INLINE: self._run_over_comm}

    def _run_over_comm(self, call: PrimitiveCall, seconds: float, label: str | None) -> Work | None:
        """Carry a call out over shared memory; None: it is not next in turn, or expired."""
        comm = self.order.comm
        if comm is None or seconds <= 0:
            return None
        run = partial(call.request.run, comm, 0, seconds, time.monotonic() + seconds, label)
        if not (run() if call.staging is None else call.staging.carry_out(run)):
            return None
        return CompletedWork.from_comm(comm, label, self.engine.name, call.result)

    def _begin(self, start: Callable[[], StartedWork]) -> StartedWork:
        """Start a call likewise, and wait for its end."""
        return start_and_wait_for_end(start)

    def _settle(self, work: Work) -> None:
        """Wait for the end of a call."""
        wait_for_end(work)
