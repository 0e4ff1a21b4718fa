"""Recovery of groups that lost ranks, for callers on any thread."""

from allhands.engine.group_engine import GroupEngine
from allhands.membership.reform import GroupChangeRequest, MembershipChanger
from allhands.runtime.loop_thread import LoopThread


class RecoveryService:
    """The `Recovery` of a world's groups."""

    def __init__(self, changer: MembershipChanger, thread: LoopThread) -> None:
        self._changer = changer
        self._thread = thread

    def agree(self, group: str, flag: bool, timeout: float) -> bool:
        asking = self._changer.decide_group_change(
            group, GroupChangeRequest("agree", flag), timeout
        )
        return self._thread.run(asking).flag

    def shrink(self, group: str, timeout: float, default: float) -> GroupEngine:
        return self._thread.run(self._change_group(group, "shrink", 0, timeout, default))

    def grow(self, group: str, count: int, timeout: float, default: float) -> GroupEngine:
        return self._thread.run(self._change_group(group, "grow", count, timeout, default))

    async def _change_group(
        self, group: str, kind: str, wanted: int, timeout: float, default: float
    ) -> GroupEngine:
        decided = await self._changer.decide_group_change(
            group, GroupChangeRequest(kind, wanted=wanted), timeout
        )
        return await self._changer.apply_group_change(decided, default)
