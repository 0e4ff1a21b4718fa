"""Several process groups of the same ranks used in rotation."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from allhands.api.groups import round_robin as join_groups
from allhands.group.non_member import NonMember
from allhands.torch.process_group import ProcessGroup


def round_robin(groups: Sequence[Any]) -> Any:
    """Return a group that deals calls in turn to groups from `torch.distributed.new_group`.

    See `ah.round_robin`. The result has the methods of a process group, and is one to
    `torch.distributed`'s functions; ranks outside of the groups get `new_group`'s value for
    non-members. Its `shutdown` ends only itself: each of the groups is destroyed separately.

    Raises:
        ValueError: no groups, one twice, or ranks that differ.
        TypeError: groups of another backend.
    """
    absent = dist.GroupMember.NON_GROUP_MEMBER
    members = [group for group in groups if group is not absent]
    for group in members:
        if not isinstance(group, ProcessGroup):
            raise TypeError(f"round_robin takes groups of the backend allhands, not {group!r}")
    if groups and not members:
        return absent
    if len(members) != len(groups):
        raise ValueError(f"all groups must have the same ranks: {list(groups)}")
    made = join_groups([group.group for group in members])
    assert not isinstance(made, NonMember)  # of groups that this rank is in
    first = members[0]
    return ProcessGroup(made, first.world, made.name, first.get_group_store(), is_world=False)
