"""Submission for callers that go on: short calls over links begin on their threads."""

from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.primitive import CallTimeout
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.engine.direct_calls import hold_if_waiting
from allhands.engine.inline_limits import AWAITED, WAITED, InlineLimits
from allhands.engine.routes import Caller
from allhands.engine.work.work import Work
from allhands.group.lent_loop import LentLoopSubmitter
from allhands.runtime.loop_thread import LoopThread


class BegunSubmitter(LentLoopSubmitter):
    """Begins short calls over links on their callers' threads; where peers come at once they end.

    All others are queued, and so are those behind a call that is under way.
    """

    caller = Caller.GOES_ON

    @property
    def limits(self) -> InlineLimits:
        """Limits of a call of this thread: if it waits at once for all it begins, as of those."""
        links = self.order.links
        return WAITED if links is not None and links.is_held() else AWAITED

    def start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        return self._hold_if_waiting(super().start(call, timeout, label))

    def start_composite(
        self, composite: CompositeCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        return self._hold_if_waiting(super().start_composite(composite, timeout, label))

    def _hold_if_waiting(self, work: Work) -> Work:
        """Have the thread held in its next calls over links, if it waits for this one at once."""
        # The communicator may come at any time, and with it the links go.
        links, executor = self.order.links, self.executor
        if links is not None and isinstance(executor, LoopThread) and not work.has_ended:
            hold_if_waiting(links, work, executor.help_waiting)
        return work
