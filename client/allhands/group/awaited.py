"""Submission for callers on event loops of their own: short calls over links on their threads."""

from allhands.engine.inline_limits import AWAITED
from allhands.engine.routes import Caller
from allhands.group.lent_loop import LentLoopSubmitter


class AwaitedSubmitter(LentLoopSubmitter):
    """Begins short calls over links as `BegunSubmitter` does; its callers never block."""

    caller = Caller.AWAITS
    limits = AWAITED
