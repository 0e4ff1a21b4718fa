"""split_group: split a group without communication.

`torch.distributed.split_group` asks for an accelerator before it asks the backend, so `patches`
redirects it here for groups of allhands.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from allhands.api.world import NewGroupOptions
from allhands.group.non_member import NonMember
from allhands.torch import pg_registry
from allhands.torch.process_group import ProcessGroup


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    group_desc: str | None = None,
) -> ProcessGroup | None:
    """Split a group into several; return this rank's new group, None if in none.

    It takes what PyTorch's function of that name takes. The ranks of each part must call it with
    the same ranks, and the same number of times; others may.

    Args:
        parent_pg: the group; None: the default group.
        split_ranks: for each part its ranks, as ranks of the parent, in the order of the part.
        timeout: how long a call on the part may take; None: as on the parent.
        group_desc: what the part is for; None: that it is a part of the parent.

    Raises:
        ValueError: no parts; one without ranks; a rank that the parent does not have, or one twice,
            in one part or in two; or no group that torch.distributed knows.
        TypeError: a group of another backend.
    """
    parent = pg_registry.get_default_group() if parent_pg is None else parent_pg
    if not isinstance(parent, ProcessGroup):
        raise TypeError(f"split_group works on groups of backend 'allhands', not on {parent!r}")
    known = pg_registry.get_ranks(parent)
    parts = _check_parts(split_ranks, parent)
    mine = next((part for part in parts if parent.rank() in part), None)
    if mine is None:
        return None
    limit = parent.group.timeout if timeout is None else timeout.total_seconds()
    group = parent.world.make_subgroup(parent.group, mine, None, NewGroupOptions(timeout=limit))
    assert not isinstance(group, NonMember)
    store = dist.PrefixStore(f"{group.name}/", parent.get_group_store())
    split = ProcessGroup(group, parent.world, group.name, store, is_world=False)
    of_world = {place: rank for rank, place in known.items()}
    mapping = {of_world[place]: at for at, place in enumerate(mine)}
    pg_registry.register_group(split, parent, mapping, group_desc or f"{parent.group_desc}:split")
    return split


def _check_parts(parts: Sequence[Sequence[int]] | None, parent: ProcessGroup) -> list[list[int]]:
    if not parts:
        raise ValueError("split_ranks must name the ranks of at least one part")
    found = [list(part) for part in parts]
    named = [place for part in found for place in part]
    if not all(found):
        raise ValueError(f"split_ranks has a part without ranks: {found}")
    if strangers := [place for place in named if not 0 <= place < parent.size()]:
        raise ValueError(
            f"split_ranks names {strangers}, and ranks of group {parent.group_name!r} go from 0 to "
            f"{parent.size() - 1}"
        )
    if len(set(named)) != len(named):
        raise ValueError(f"split_ranks names a rank twice: {found}")
    return found
