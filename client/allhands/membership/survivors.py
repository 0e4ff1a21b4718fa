"""What ranks of a group do together that have lost some, for callers on any thread."""

from allhands.group.group import Group
from allhands.membership.reform import Proposal, Regrouper
from allhands.runtime.loop_thread import LoopThread


class Survivors:
    """The `Recovery` of a world's groups."""

    def __init__(self, regrouper: Regrouper, thread: LoopThread) -> None:
        self._regrouper = regrouper
        self._thread = thread

    def agree(self, group: str, flag: bool, timeout: float) -> bool:
        asking = self._regrouper.reform(group, Proposal("agree", flag), timeout)
        return self._thread.run(asking).flag

    def shrink(self, group: str, timeout: float, default: float) -> Group:
        return self._thread.run(self._regroup(group, "shrink", 0, timeout, default))

    def grow(self, group: str, count: int, timeout: float, default: float) -> Group:
        return self._thread.run(self._regroup(group, "grow", count, timeout, default))

    async def _regroup(
        self, group: str, kind: str, wanted: int, timeout: float, default: float
    ) -> Group:
        decided = await self._regrouper.reform(group, Proposal(kind, wanted=wanted), timeout)
        engine = await self._regrouper.regroup(decided, default)
        return Group(engine, self._thread, default, self)
