"""Recovery with the remaining ranks in the same processes: `recover`, `shrink_group`.

Either gives a new default group in the place of the old one. All other groups end with that, as in
PyTorch's own `shrink_group`: they name ranks of a world that has been numbered anew. Programs make
them again, and what holds a group: DistributedDataParallel, device meshes, process group arguments.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from allhands.api.world import NewGroupOptions
from allhands.deadlines import to_seconds
from allhands.engine.failures.call_errors import ErrorFactory
from allhands.errors import AllhandsError, CoordinatorUnavailable
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.torch import pg_registry
from allhands.torch.process_group import ProcessGroup

logger = logging.getLogger(__name__)


def failure() -> AllhandsError | None:
    """Return the reason for failing calls on the default group; None: no known failure.

    Where an error has come through PyTorch's C++, as from `backward()` of DistributedDataParallel,
    its class is lost: what was raised is a RuntimeError with the text. This tells whether it is of
    a kind that `recover` is for: `PeerFailed`, or `GroupAborted` by another rank that recovers.
    """
    default = _get_default("failure")
    return default.world.get_failure(default.group)


def recover(*, timeout: timedelta | float | None = None) -> ProcessGroup:
    """Continue with the remaining ranks; return the new default group.

    Every rank that is left must call it, after `PeerFailed` or `GroupAborted`: those that have not
    heard of the loss, because they call on a group without the lost rank, are released from that
    by who calls it first. Ranks keep their order and are numbered from 0. What tensors hold is
    theirs to settle: some ranks may have made a step that others have not.

    Args:
        timeout: how long to wait for the others, a timedelta or seconds; None: as the group says.

    Raises:
        RuntimeError: the default group is of another backend.
        CollectiveTimeout: a rank that is there did not call it. Calls on the groups that there are
            raise GroupAborted; it may be tried again.
        MembershipChanged: this process is no member any more.
        CoordinatorUnavailable: who could tell who is left is gone itself.
    """
    old = _get_default("recover")
    others = pg_registry.list_other_groups(old)
    released = (
        f"rank {old.rank()} calls allhands.torch.recover(): every rank that is left must, to go on"
    )
    for one in [*others, old]:
        _abort_group(one, released)
    limit = old.group.timeout if timeout is None else to_seconds(timeout)
    try:
        shrunk = old.group.shrink(timeout=limit)
    except CoordinatorUnavailable as error:
        raise CoordinatorUnavailable(
            f"nobody can tell who is left: {error}. Where a rank hosts the coordinator, as rank 0 "
            "does if nothing else is said, a world does not outlive it: start `allhands serve` "
            "beside the ranks, and set ALLHANDS_URL for them"
        ) from error
    shrunk.timeout = old.group.timeout
    return _replace_default(old, shrunk, others, "allhands.torch.recover()")


def shrink_group(
    ranks_to_exclude: Sequence[int], group: ProcessGroup | None = None, *, aborts: bool = False
) -> ProcessGroup:
    """Exclude ranks from a group; return the smaller group that replaces it.

    The implementation of `torch.distributed.shrink_group` for this backend: all remaining ranks
    must call it with the same ranks, the excluded must not. A shrunk default group is replaced by
    the new group, and all other groups end; otherwise only the group itself ends.

    Args:
        ranks_to_exclude: ranks of the group.
        group: None: the default group.
        aborts: end calls of the group that are under way, on all its ranks, as SHRINK_ABORT does.

    Raises:
        TypeError: no list of ints; or the group is of another backend.
        ValueError: no ranks, one twice, one that the group does not have, or nobody would be left.
        RuntimeError: this rank is one of them.
    """
    default = _get_default("shrink_group")
    old = default if group is None else group
    if not isinstance(old, ProcessGroup):
        raise TypeError(f"shrink_group works on groups of backend 'allhands', not on {old!r}")
    ranks = pg_registry.get_ranks(old)
    excluded = _check_excluded(ranks_to_exclude, old)
    places = [place for place in range(old.size()) if place not in excluded]
    part = old.world.make_subgroup(
        old.group, places, None, NewGroupOptions(timeout=old.group.timeout)
    )
    assert not isinstance(part, NonMember)
    if old is default:
        return _replace_default(
            old, part, pg_registry.list_other_groups(old), "allhands.torch.shrink_group()"
        )
    store = dist.PrefixStore(f"{part.name}/", old.get_group_store())
    new = ProcessGroup(part, old.world, part.name, store, is_world=False)
    left = [rank for rank, place in ranks.items() if place not in excluded]
    mapping = {rank: place for place, rank in enumerate(left)}
    pg_registry.register_group(new, old, mapping, f"{old.group_desc}:shrunk")
    pg_registry.forget_group(old)
    old.retire(_make_failure(old, new, "allhands.torch.shrink_group()"))
    return new


def _replace_default(
    old: ProcessGroup, group: Group, others: Sequence[Any], call: str
) -> ProcessGroup:
    """Replace the default group; nothing here depends on other ranks."""
    held = pg_registry.get_lasting_store(old)
    store = dist.PrefixStore(f"{group.name}/", held)
    new = ProcessGroup(group, old.world, group.name, store, is_world=True)
    new.owned_store, old.owned_store = held, None
    pg_registry.replace_default(old, new)
    why = _make_failure(old, new, call)
    ended = sorted(one.group_name for one in others)
    lost = _find_lost(old, new)
    for one in others:
        if isinstance(one, ProcessGroup):
            one.retire(why)
    old.retire(why)
    logger.warning(
        "%s: rank %d of %d goes on as rank %d of %d, without ranks %s; other groups that ended: %s",
        call,
        old.rank(),
        old.size(),
        new.rank(),
        new.size(),
        lost,
        ", ".join(ended) or "none",
    )
    return new


def _make_failure(old: ProcessGroup, new: ProcessGroup, call: str) -> ErrorFactory:
    """Make the error of later calls on a replaced group."""
    text = (
        f"{call} has put group {new.group_name!r} of {new.size()} ranks in the place of the one of "
        f"{old.size()}, and groups made before have ended: make them anew, and what holds one, "
        "such as DistributedDataParallel or a DeviceMesh"
    )
    return lambda what: AllhandsError(f"{what} cannot run: {text}")


def _find_lost(old: ProcessGroup, new: ProcessGroup) -> list[int]:
    left = set(new.group.members)
    return [rank for rank, member in enumerate(old.group.members) if member not in left]


def _abort_group(group: Any, reason: str) -> None:
    """Abort a group on all its ranks."""
    if isinstance(group, ProcessGroup):
        group.abort(reason)
        return
    try:
        group.abort()
    except RuntimeError as error:  # not every backend can
        logger.warning("group %s could not be aborted: %s", group.group_name, error)


def _get_default(caller: str) -> ProcessGroup:
    if (default := pg_registry.get_default_group()) is None:
        name = distributed_c10d.get_backend()
        raise RuntimeError(f"{caller} needs a default group of backend 'allhands', not of {name!r}")
    return default


def _check_excluded(ranks: Iterable[int], group: ProcessGroup) -> set[int]:
    """Return checked ranks of a group."""
    if not isinstance(ranks, list | tuple) or not all(isinstance(one, int) for one in ranks):
        raise TypeError(f"ranks_to_exclude must be a list of ints, not {ranks!r}")
    chosen = set(ranks)
    strangers = sorted(one for one in chosen if not 0 <= one < group.size())
    if not chosen or len(chosen) != len(list(ranks)) or strangers or len(chosen) == group.size():
        raise ValueError(
            f"ranks_to_exclude must name some, not all, ranks of group {group.group_name!r}, which "
            f"go from 0 to {group.size() - 1}, each once, not {ranks}"
        )
    if group.rank() in chosen:
        raise RuntimeError(
            f"rank {group.rank()} is in ranks_to_exclude {ranks}: only the others call shrink_group"
        )
    return chosen
