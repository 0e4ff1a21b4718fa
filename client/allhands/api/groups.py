"""Groups of some ranks of this process's world: functions to make groups.

Making a group talks to no other rank: its name comes from what its ranks agree on. A rank that is
not in the new group gets a `NonMember`; calls on that warn, do nothing and return None.
"""

from collections.abc import Sequence
from datetime import timedelta

import numpy as np

from allhands.api.calls import refuse_while_coalescing, resolve_group, wait_or_return
from allhands.api.default_world import AnyGroup, require_world
from allhands.api.world import NewGroupOptions
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.group.round_robin import RoundRobin
from allhands.tracebacks import trim_traceback


def new_group(
    ranks: Sequence[int] | None = None,
    tag: str | None = None,
    use_local_synchronization: bool = False,
    timeout: float | timedelta | None = None,
    *,
    on_failure: str = "raise",
    retryable: bool = False,
    verify: bool | None = None,
    allow_pickle: bool | None = None,
) -> Group | NonMember:
    """Make a group of some ranks of the world, in the order given; None: all.

    The ranks of the group must call this with the same arguments, and the same number of times;
    others may. Between groups of other ranks the order of the calls does not matter.

    Args:
        ranks: of the world; the first is rank 0 of the group.
        tag: with the same tag and ranks it is the same group each time, whatever else is given,
            until that is destroyed; without one (None, "") it is a new group each time.
        use_local_synchronization: take the ranks in ascending order, whatever the order given, so
            that each may name itself first. (That only members call this is allowed in any case.)
        timeout: seconds that a call may take; None: as in the world.
        on_failure, retryable, verify, allow_pickle: as for `init_process_group`; None: as there.

    Raises:
        ValueError: no ranks, a rank twice, or one that the world does not have.
        TypeError: a tag that is no text.
    """
    try:
        world = require_world()
        chosen = range(world.group.size) if ranks is None else ranks
        options = _make_options(timeout, on_failure, retryable, verify, allow_pickle)
        return world.new_group(chosen, tag, use_local_synchronization, options)
    except Exception as error:
        trim_traceback(error)
        raise


def split_group(
    color: int | None,
    key: int = 0,
    group: AnyGroup = None,
    *,
    timeout: float | timedelta | None = None,
) -> Group | NonMember:
    """Make a group of all ranks with equal `color`, ordered by `key`, then rank.

    All ranks of `group` must call this: it is a collective call on it, the `MPI_Comm_split` of MPI.

    Args:
        color: None or below 0: this rank will be in no group.
        key: where this rank comes in its group; equal keys keep the order of `group`.
        group: the group to split; None: the world.
        timeout: seconds that a call on the new group may take; None: as in the world.

    Raises:
        TypeError: a color or key that is no whole number of 64 bits.
    """
    try:
        refuse_while_coalescing(group, "split_group")
        told = np.array(
            [-1 if color is None else _check_int64(color, "color"), _check_int64(key, "key")],
            np.int64,
        )
        world, parent = require_world(), resolve_group(group, True, "split_group")
        if parent is None:
            return NonMember("no part of a group that this rank is not in")
        options = _make_options(timeout)
        everybody = np.empty((parent.size, 2), np.int64)
        wait_or_return(
            parent.here.all_gather_into_tensor(everybody, told, label="split_group"), False
        )
        if told[0] < 0:
            return NonMember(f"no part of {parent.name}")
        places = [place for place in range(parent.size) if everybody[place, 0] == told[0]]
        places.sort(key=lambda place: (int(everybody[place, 1]), place))
        return world.make_subgroup(parent, places, None, options)
    except Exception as error:
        trim_traceback(error)
        raise


def shrink_group(ranks_to_exclude: Sequence[int], group: AnyGroup = None) -> Group | NonMember:
    """Make a group of `group` without some ranks; excluded ranks need not call.

    It is for ranks that the program does not want, dead ones too; `Group.shrink` finds out by
    itself who is lost.

    Args:
        ranks_to_exclude: ranks of the world, of the group's.

    Raises:
        ValueError: a rank that is not in the group, none at all, or nobody would be left.
    """
    try:
        world, parent = require_world(), resolve_group(group, True, "shrink_group")
        if parent is None:
            return NonMember("no part of a group that this rank is not in")
        excluded = {int(rank) for rank in ranks_to_exclude}
        if not excluded or not excluded <= set(parent.ranks):
            raise ValueError(
                f"ranks_to_exclude must name ranks of group {parent.name!r}, which has "
                f"{list(parent.ranks)}, not {sorted(excluded)}"
            )
        places = [place for place, rank in enumerate(parent.ranks) if rank not in excluded]
        if not places:
            raise ValueError(f"ranks_to_exclude names all ranks of group {parent.name!r}")
        return world.make_subgroup(parent, places)
    except Exception as error:
        trim_traceback(error)
        raise


def new_subgroups(
    group_size: int,
    group: AnyGroup = None,
    *,
    tag: str | None = None,
    timeout: float | timedelta | None = None,
) -> tuple[Group | NonMember, list[Group | NonMember]]:
    """Cut a group into groups of `group_size` consecutive ranks.

    Returns:
        The one that this rank is in, and all of them, by their first rank.

    Raises:
        ValueError: the ranks cannot be shared out so.
    """
    try:
        world, parent = require_world(), resolve_group(group, True, "new_subgroups")
        if parent is None:
            absent = NonMember("no part of a group that this rank is not in")
            return absent, []
        if not 0 < group_size <= parent.size:
            raise ValueError(
                f"The arg 'group_size' ({group_size}) must not exceed the world size "
                f"({parent.size}), and be positive"
            )
        if parent.size % group_size:
            raise ValueError(
                f"The world size ({parent.size}) must be divisible by 'group_size={group_size}'"
            )
        options = _make_options(timeout)
        made = [
            world.make_subgroup(parent, range(at, at + group_size), tag, options)
            for at in range(0, parent.size, group_size)
        ]
        return made[parent.rank // group_size], made
    except Exception as error:
        trim_traceback(error)
        raise


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    *,
    timeout: float | timedelta | None = None,
) -> tuple[Group | NonMember, list[Group | NonMember]]:
    """Make several disjoint groups of ranks of the world.

    Returns:
        The one that this rank is in (a `NonMember` where it is in none), and all, as given.

    Raises:
        ValueError: no groups, a rank in two of them, or what `new_group` refuses.
    """
    try:
        world = require_world()
        owner: dict[int, int] = {}
        for at, ranks in enumerate(ranks_per_subgroup_list):
            for rank in ranks:
                if owner.setdefault(rank, at) != at:
                    raise ValueError(f"rank {rank} is in subgroups {owner[rank]} and {at}")
        if not owner:
            raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
        options = _make_options(timeout)
        made = [world.new_group(ranks, options=options) for ranks in ranks_per_subgroup_list]
        mine = owner.get(world.group.rank)
        return NonMember("no subgroup") if mine is None else made[mine], made
    except Exception as error:
        trim_traceback(error)
        raise


def round_robin(groups: Sequence[Group | NonMember]) -> RoundRobin | NonMember:
    """Return one group that deals calls in turn to groups of the same ranks.

    All ranks must give the groups in the same order. `destroy_process_group` of what is returned
    destroys them.

    Raises:
        ValueError: no groups, one twice, ranks that differ, or groups that are retryable or say
            what to do `on_failure`.
        TypeError: something else than groups.
    """
    members = [group for group in groups if isinstance(group, Group)]
    absent = [group for group in groups if isinstance(group, NonMember)]
    if len(members) + len(absent) != len(groups):
        raise TypeError("round_robin takes groups that new_group has made")
    if not groups or len(set(members)) != len(members):
        raise ValueError(f"round_robin needs groups, each of them once, not {list(groups)}")
    from allhands.membership.resilient_group import ResilientGroup  # which most ranks do not load

    if any(isinstance(group, ResilientGroup) for group in members):
        raise ValueError(
            "round_robin takes no groups that go on by themselves when they lose ranks: they would "
            "not do so together"
        )
    if len({group.ranks for group in groups}) > 1:
        raise ValueError(f"all groups must have the same ranks in the same order: {list(groups)}")
    return RoundRobin(members) if members else absent[0]


def _make_options(
    timeout: float | timedelta | None,
    on_failure: str = "raise",
    retryable: bool = False,
    verify: bool | None = None,
    allow_pickle: bool | None = None,
) -> NewGroupOptions:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return NewGroupOptions(seconds, on_failure, retryable, verify, allow_pickle)


def _check_int64(number: int, name: str) -> int:
    """Return a number that fits into 64 bits."""
    if not isinstance(number, int | np.integer) or not -(1 << 63) <= number < 1 << 63:
        raise TypeError(f"{name} must be a whole number of 64 bits, not {number!r}")
    return int(number)
