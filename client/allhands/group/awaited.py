"""Submission for callers on event loops of their own: short calls over links on their threads."""

from collections.abc import Callable

from allhands.engine.inline_limits import AWAITED
from allhands.engine.operation import Operation
from allhands.engine.routes import Caller
from allhands.engine.work.work import Work
from allhands.group.lent_loop import LentLoopSubmitter


class AwaitedSubmitter(LentLoopSubmitter):
    """Begins short calls over links on their callers' threads; where peers come at once they end.

    All others are queued, and so are those behind a call that is under way.
    """

    caller = Caller.AWAITS
    limits = AWAITED

    def _borrow_loop(self, create: Callable[[], Operation]) -> Work | None:
        if self.order.latest_sequence != self.engine.progress.last_ended:
            return None
        return super()._borrow_loop(create)
