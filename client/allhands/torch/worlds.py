"""Which world of this package a process group of torch.distributed lives in.

The default group is the world that this process has met in by `ah://`; else it joins one, through
the store that PyTorch has met by. Further groups are parts of that world; where the default group
is of another backend, and has not met by `ah://`, each has a world of its own.
"""

import os
import time
from typing import Any

from allhands import config
from allhands.api.joining import identify_parent_process
from allhands.api.world import NewGroupOptions, World
from allhands.coordinator.endpoint import is_insecure
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.membership.store_rendezvous import StoreRendezvousHints, rendezvous_via_store
from allhands.torch.pg_registry import get_default_group
from allhands.torch.process_group import ProcessGroup
from allhands.torch.rendezvous import fake
from allhands.torch.rendezvous.init_method import find_world
from allhands.torch.rendezvous.store_adapter import TorchStoreAdapter
from allhands_proto.tls_files import apply_tls_directory


def open_group(opts: Any) -> ProcessGroup:
    """Make the process group described by `opts`, on each rank of the group."""
    ranks = list(opts.global_ranks_in_group)
    timeout = opts.timeout.total_seconds()
    if ranks and (home := _find_parent_world(opts.store)) is not None:
        world, whole = home
        group = world.make_subgroup(whole, ranks, None, NewGroupOptions(timeout=timeout))
        assert not isinstance(group, NonMember)  # PyTorch makes groups on their members alone
        return ProcessGroup(group, world, opts.group_id, opts.store, is_world=False)
    place = opts.store, opts.group_rank, opts.group_size, timeout
    met = None if ranks else find_world(opts.store)
    world = met or fake.join_fake_world(*place) or _join(*place, not ranks)
    world.group.timeout = timeout
    return ProcessGroup(world.group, world, opts.group_id, opts.store, is_world=True)


def _find_parent_world(store: Any) -> tuple[World, Group] | None:
    """Return the world and group of new groups; None: each group has its own world."""
    if (default := get_default_group()) is not None:
        return default.world, default.group
    met = find_world(store)
    return None if met is None else (met, met.group)


def _join(store: Any, rank: int, world_size: int, timeout: float, is_default: bool) -> World:
    until = time.monotonic() + timeout
    grounds = StoreRendezvousHints(
        url=os.environ.get("ALLHANDS_URL") or None,
        # A worker that torchrun starts again may come before its last world has ended.
        shares_job=is_default and "TORCHELASTIC_RUN_ID" not in os.environ,
        token=apply_tls_directory(os.environ).get("ALLHANDS_TOKEN") or None,
        insecure=is_insecure(os.environ),
    )
    meeting = rendezvous_via_store(
        TorchStoreAdapter(store, timeout), rank, world_size, timeout, grounds
    )
    settled = config.resolve_config(
        os.environ,
        rank=rank,
        world_size=world_size,
        timeout=max(until - time.monotonic(), 1e-3),
        job=meeting.job,
        token=meeting.token,
        tls=meeting.tls_ca,
        tls_name=meeting.tls_name,
        tls_pair=meeting.tls_pair,
        insecure=meeting.insecure,
        parent=identify_parent_process(),
        rendezvous=meeting.place,
    )
    return World.join(settled)
