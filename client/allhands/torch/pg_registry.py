"""PyTorch's registry of process groups: lookup and replacement.

PyTorch has no public way to do that. Its own `shrink_group`, for NCCL, uses the functions that are
used here.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.distributed import distributed_c10d

from allhands.torch.process_group import ProcessGroup
from allhands.torch.rendezvous.init_method import WorldStore

_NAMES_PER_GENERATION: Final = 1 << 20
"""More groups than a program makes: those after a loss have names that none had before."""


def get_default_group() -> ProcessGroup | None:
    """Return the default group; None: of another backend.

    Raises:
        ValueError: there is none.
    """
    default = distributed_c10d._get_default_group()
    return default if isinstance(default, ProcessGroup) else None


def list_other_groups(default: ProcessGroup) -> list[Any]:
    """Return all groups except the default, of any backend."""
    return [one for one in distributed_c10d._world.pg_map if one is not default]


def get_ranks(group: Any) -> Mapping[int, int]:
    """Return the group rank of each world rank in a group.

    Raises:
        ValueError: torch.distributed knows no such group.
    """
    found: Mapping[int, int] | None = distributed_c10d._world.pg_group_ranks.get(group)
    if found is None:
        raise ValueError(f"{group} is not registered: it was destroyed, or has been replaced")
    return found


def register_group(
    group: ProcessGroup, template: Any, ranks: Mapping[int, int], description: str
) -> None:
    """Register a group with PyTorch as one of the same backend as `template`."""
    backend, _ = distributed_c10d._world.pg_map[template]
    config = distributed_c10d._world.pg_backend_config[template]
    group.setGroupDesc(description)
    distributed_c10d._register_pg_in_world(
        group,
        backend_name=backend,
        store=group.get_group_store(),
        group_name=group.group_name,
        backend_config=config,
        rank_mapping=dict(ranks),
        add_to_default_tag=True,
    )


def replace_default(old: ProcessGroup, new: ProcessGroup) -> None:
    """Replace the default group everywhere, with the new world ranks.

    Groups that are known beside the old one are known no more.
    """
    gone = [*list_other_groups(old), old]
    new.generation = old.generation + 1
    register_group(new, old, {rank: rank for rank in range(new.size())}, old.group_desc)
    distributed_c10d._update_default_pg(new)
    for one in gone:
        forget_group(one)
    distributed_c10d._world.group_count = new.generation * _NAMES_PER_GENERATION
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # what was compiled holds the ranks, size and names of before


def forget_group(group: Any) -> None:
    """Remove a group from torch.distributed without ending the group."""
    distributed_c10d._cleanup_process_group_global_state(group)


def get_lasting_store(default: ProcessGroup) -> Any:
    """Return the default group's own store, else a store of its job at the coordinator.

    The store of PyTorch's rendezvous may be gone with the rank that hosted it.
    """
    return default.owned_store or WorldStore(default.world, default.group.timeout)
