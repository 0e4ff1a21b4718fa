"""Which world of this package a process group of torch.distributed lives in.

The default group joins a world, through the store that PyTorch has met by. Further groups are parts
of that world; where the default group is of another backend, each has a world of its own.
"""

import os
import time
from typing import Any

from allhands import config
from allhands.api.rendezvous import meet_through
from allhands.api.sync import parent
from allhands.api.world import GroupOptions, NonMember, World
from allhands.torch import fakes
from allhands.torch.bookkeeping import default_group
from allhands.torch.process_group import ProcessGroup
from allhands.torch.through import Through


def open_group(opts: Any) -> ProcessGroup:
    """Make the process group that `opts` describe, on each rank of it."""
    ranks = list(opts.global_ranks_in_group)
    timeout = opts.timeout.total_seconds()
    if ranks and (whole := default_group()) is not None:
        group = whole.world.part(whole.group, ranks, None, GroupOptions(timeout=timeout))
        assert not isinstance(group, NonMember)  # PyTorch makes groups on their members alone
        return ProcessGroup(group, whole.world, opts.group_id, opts.store, is_world=False)
    alone = fakes.world(opts.store, opts.group_rank, opts.group_size, timeout)
    world = alone or _join(opts.store, opts.group_rank, opts.group_size, timeout)
    return ProcessGroup(world.group, world, opts.group_id, opts.store, is_world=True)


def _join(store: Any, rank: int, world_size: int, timeout: float) -> World:
    until = time.monotonic() + timeout
    place = meet_through(Through(store, timeout), rank, world_size, timeout)
    settled = config.settle(
        os.environ,
        init_method=place.init_method,
        rank=rank,
        world_size=world_size,
        timeout=max(until - time.monotonic(), 1e-3),
        token=place.token,
        tls_ca=place.tls_ca,
        parent=parent(),
    )
    world = World.join(settled)
    world.group.timeout = timeout
    return world
