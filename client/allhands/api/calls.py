"""Steps common to the module-level calls: resolve the group and its ranks, wait for the work."""

import warnings
from collections.abc import Callable
from typing import Any

from allhands.api.default_world import AnyGroup, require_world
from allhands.engine.work.waiting import wait_or_abandon
from allhands.engine.work.work import Work
from allhands.errors import InvalidArgument
from allhands.group.coalescing import CoalescedWork
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.options import CallOptions, check_options
from allhands.runtime.signal_mask import DelayedSignals


def resolve_group(
    group: AnyGroup, async_op: bool, operation: str, options: CallOptions | None = None
) -> Group | None:
    """Return the group to call on; outside the group warn and return None.

    Unless `async_op`, the call runs on this thread where nothing else is under way.

    Raises:
        TypeError: one of the options is none of a call.
    """
    if options:
        check_options(operation, options)
    if isinstance(group, NonMember):
        warnings.warn(
            f"{operation} does nothing here: this rank does not belong to group {group.name!r}",
            stacklevel=3,
        )
        return None
    found = group or require_world().group
    if found.coalescer is not None and (instead := found.coalescer.redirect()) is not None:
        return instead
    return found if async_op else found.here


def refuse_while_coalescing(group: AnyGroup, action: str) -> None:
    """Refuse an action that needs results of calls still being collected.

    Raises:
        RuntimeError: this thread is in a block of `coalescing` on the group.
    """
    if isinstance(group, NonMember):
        return
    found = group or require_world().group
    if found.coalescer is not None and found.coalescer.redirect() is not None:
        raise RuntimeError(
            f"{action} needs at once what its calls give, and those on group {found.name!r} are "
            "collected here: do it outside of the block of coalescing()"
        )


def find_root(group: AnyGroup, root: int | None, group_root: int | None, name: str) -> int:
    """Return the group rank of a root, from either rank, the world's 0 by default; -1: none.

    Raises:
        ValueError: both ranks are given.
    """
    if group_root is not None:
        _refuse_both_ranks(root, group_root, name)
        return group_root
    rank = root or 0
    if group is None:
        return rank
    return group.ranks.index(rank) if isinstance(group, Group) and rank in group.ranks else -1


def resolve_root(group: Group, root: int | None, group_root: int | None, name: str) -> int:
    """Return the group rank of a root, from either rank; the world's 0 by default.

    Raises:
        ValueError: both ranks are given, or the root is not in the group.
    """
    if group_root is None:
        return to_group_rank(group, root or 0, name)
    _refuse_both_ranks(root, group_root, name)
    return check_group_rank(group, group_root, name)


def to_group_rank(group: Group, rank: int, name: str) -> int:
    """Convert a world rank to a group rank."""
    if rank not in group.ranks:
        raise InvalidArgument(
            f"invalid root rank: {name}={rank} is not part of group {group.name!r}, "
            f"whose ranks are {list(group.ranks)}"
        )
    return group.ranks.index(rank)


def check_group_rank(group: Group, group_rank: int, name: str) -> int:
    """Return a rank of a group."""
    if not 0 <= group_rank < group.size:
        raise InvalidArgument(
            f"invalid rank: group_{name}={group_rank} is not part of group {group.name!r}, "
            f"whose ranks go from 0 to {group.size - 1}"
        )
    return group_rank


def resolve_dst(group: Group, dst: int | None, group_dst: int | None) -> int:
    """Return the group rank of a receiver, from either `dst` or `group_dst`."""
    _refuse_both_ranks(dst, group_dst, "dst")
    if dst is not None:
        return to_group_rank(group, dst, "dst")
    if group_dst is None:
        raise ValueError("no receiver: give dst, a rank of the world, or group_dst, of the group")
    return check_group_rank(group, group_dst, "dst")


def resolve_src(group: Group, src: int | None, group_src: int | None) -> int | None:
    """Return the group rank of a sender; None: any sender."""
    _refuse_both_ranks(src, group_src, "src")
    if group_src is not None:
        return check_group_rank(group, group_src, "src")
    return None if src is None else to_group_rank(group, src, "src")


def _refuse_both_ranks(rank: int | None, group_rank: int | None, name: str) -> None:
    if rank is not None and group_rank is not None:
        raise ValueError(
            f"give {name}, a rank of the world, or group_{name}, a rank of the group: one of them, "
            f"not {name}={rank} and group_{name}={group_rank}"
        )


def wait_or_return(work: Work, async_op: bool) -> Work | None:
    """Wait for a call, or return its work with `async_op`; Ctrl-C ends the call.

    One that is collected is not waited for: it is made when its block ends.
    """
    if async_op:
        return work
    if isinstance(work, CoalescedWork):
        return None
    wait_or_abandon(work)
    return None


def start_and_wait(start: Callable[[], Work]) -> Work:
    """Start a message and wait for it, unless it is collected; Ctrl-C at any time ends it.

    `start` must not wait: handlers of signals run only once there is a work to abandon.
    """
    with DelayedSignals() as delayed:
        work = start()
        if not isinstance(work, CoalescedWork):
            wait_or_abandon(work, delayed)
        return work


def wait_result(work: Work, async_op: bool) -> Any:
    """Return the result of a call, or its work with `async_op`."""
    return work if async_op else wait_or_return(work, False) or work.result()
