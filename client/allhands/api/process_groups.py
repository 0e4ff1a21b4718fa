"""Process groups of this process's world, with the methods of c10d."""

from allhands.api import default_world
from allhands.c10d import ProcessGroup
from allhands.group.non_member import NonMember


def process_group(group: default_world.AnyGroup = None) -> ProcessGroup:
    """Return a group, or the world, with c10d's methods: array lists, options.

    Raises:
        ValueError: this rank is not in the group.
        RuntimeError: `init_process_group` has not been called.
    """
    if isinstance(group, NonMember):
        raise ValueError(f"this rank does not belong to group {group.name!r}")
    return ProcessGroup(group or default_world.require_world().group)
