"""Resilient groups, as callers see them: they keep their identity when ranks are lost or come."""

from typing import Any

from allhands.collectives.primitive import CallTimeout
from allhands.engine.work.work import Work
from allhands.group.group import Group
from allhands.membership.queued_call import FailurePolicy
from allhands.membership.reform import MembershipChanger
from allhands.membership.resilient import ResilientSubmitter
from allhands.runtime.loop_thread import LoopThread


class ResilientGroup(Group):
    """A group with atomic calls, at the cost of copies of outputs and of barriers."""

    def __init__(
        self, group: Group, changer: MembershipChanger, thread: LoopThread, policy: FailurePolicy
    ) -> None:
        self._resilient_submitter = ResilientSubmitter(group, changer, thread, policy)
        self._set_up(self._resilient_submitter, None, group.recovery, group.objects)
        self._resilient_submitter.set_method_caller(self._call_again)
        self._changer = changer
        self._policy = policy

    @property
    def epoch(self) -> int:
        """The membership's version as far as this rank has heard; grows with every change."""
        return self._changer.epoch

    @property
    def waiting(self) -> int:
        """How many processes wait to be taken in by `grow`."""
        return self._changer.newcomer_count

    def shrink(self, *, timeout: CallTimeout = None) -> Group:
        """Continue with the remaining ranks; return the group itself. See `Group.shrink`."""
        self._resilient_submitter.change_ranks("shrink", 0, timeout)
        return self

    def grow(self, count: int, *, timeout: CallTimeout = None) -> Group:
        """Take in newcomers; return the group itself. See `Group.grow`."""
        if count < 1:
            raise ValueError(f"a group grows by at least one rank, not {count}")
        self._resilient_submitter.change_ranks("grow", count, timeout)
        return self

    def admit(self, *, timeout: CallTimeout = None) -> Group:
        """Admit the workers waiting now, if any; return the group itself.

        All ranks that are left must call it; errors as of `grow`.
        """
        self._resilient_submitter.change_ranks("admit", 0, timeout)
        return self

    def shrink_if_manual(self) -> None:
        """Go on with the ranks that are left where the group does not do so by itself."""
        if self._policy.on_failure == "raise":
            self.shrink()

    def _call_again(self, name: str, arguments: tuple[Any, ...]) -> Work:
        """Make a call with the arguments that the core had for it."""
        *own, timeout, label = arguments
        work: Work = getattr(self, name)(*own, timeout=timeout, label=label)
        return work

    async def wait_idle(self) -> None:
        """Return when every call made so far has ended; on the loop."""
        await self._resilient_submitter.wait_idle()
