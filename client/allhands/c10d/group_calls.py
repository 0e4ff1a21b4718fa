"""Start of the calls of a process group: inline, collected or queued."""

from typing import Any, Generic

from allhands.c10d.buffer_adapter import BufferAdapter, CallWork
from allhands.c10d.fixed_result import FixedResultCollectives
from allhands.c10d.options import Options
from allhands.collectives.composite_call import CompositeCall
from allhands.collectives.signature import Result
from allhands.engine.work.completed import CompletedWork
from allhands.engine.work.work import Work
from allhands.group.group import Group


class GroupCalls(Generic[CallWork]):
    """Calls on a group whose arguments and works an adapter translates."""

    def __init__(self, group: Group, adapter: BufferAdapter[Any, CallWork]) -> None:
        self.group = group
        self.adapter = adapter

    def rank(self) -> int:
        """Return this process's place in the group."""
        return self.group.rank

    def size(self) -> int:
        return self.group.size

    def _get_group(self) -> Group:
        """Return the group that runs the caller's calls."""
        return self.group

    def _select_group(self, options: Options) -> Group:
        """Return the group to call on, or the group collecting its calls."""
        group = self._get_group()
        if group.coalescer is not None and (instead := group.coalescer.redirect()) is not None:
            return instead
        return group if options.asyncOp else group.here

    def _try_inline(
        self, options: Options, result: Result, name: str, *arguments: object
    ) -> Work | None:
        """Make a blocking call on the caller's thread, or queue it; None: not started.

        What goes by it is looked at there; what does not is checked, and told what is wrong.
        """
        group = self._get_group()
        if group.coalescer is not None:
            return None
        if (direct := group.order.direct_calls) is None:
            return None
        if options.asyncOp:
            start = getattr(direct, f"start_{name}")
            work: Work | None = start(*arguments, options.seconds, options.label, result)
            return work
        if not getattr(direct, name)(*arguments, options.seconds, options.label):
            return None
        return CompletedWork.from_comm(direct, options.label, group.name, result)

    def _try_inline_lists(
        self, options: Options, result: Result, name: str, one: Any, other: Any, *more: object
    ) -> Work | None:
        """Make such a call of one array a rank, whose arguments are in lists, perhaps empty ones.

        Lists that say more than that are left to the checks.
        """
        given: list[object] = []
        for argument in (one, other):
            if not isinstance(argument, list | tuple) or len(argument) > 1:
                return None
            given.append(argument[0] if argument else None)
        return self._try_inline(options, result, name, *given, *more)

    def _bind_result(self, options: Options, result: Result) -> FixedResultCollectives:
        return FixedResultCollectives(self._select_group(options), result)

    def _start_composite(self, options: Options, composite: CompositeCall) -> Work:
        return self._select_group(options).submitter.start_composite(
            composite, options.seconds, options.label
        )
