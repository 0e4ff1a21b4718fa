"""Which world of this package a process group of torch.distributed lives in.

The default group is the world that this process has met in by `ah://`; else it joins one, through
the store that PyTorch has met by. Further groups are parts of that world; where the default group
is of another backend, and has not met by `ah://`, each has a world of its own.
"""

import os
import time
from typing import Any

from torch.distributed import distributed_c10d

from allhands import config
from allhands.api.rendezvous import Grounds, meet_through
from allhands.api.sync import parent
from allhands.api.world import GroupOptions, NonMember, World
from allhands.torch.process_group import ProcessGroup
from allhands.torch.rendezvous import world_of
from allhands.torch.through import Through


def open_group(opts: Any) -> ProcessGroup:
    """Make the process group that `opts` describe, on each rank of it."""
    ranks = list(opts.global_ranks_in_group)
    timeout = opts.timeout.total_seconds()
    home = (_home() if ranks else None) or world_of(opts.store)
    if ranks and home is not None:
        group = home.new_group(ranks, options=GroupOptions(timeout=timeout))
        assert not isinstance(group, NonMember)  # PyTorch makes groups on their members alone
        return ProcessGroup(group, home, opts.group_id, opts.store, is_world=False)
    world = home or _join(opts.store, opts.group_rank, opts.group_size, timeout, not ranks)
    world.group.timeout = timeout
    return ProcessGroup(world.group, world, opts.group_id, opts.store, is_world=True)


def _home() -> World | None:
    """Return the world of the default group; None: that is of another backend."""
    default = distributed_c10d._get_default_group()
    return default.world if isinstance(default, ProcessGroup) else None


def _join(store: Any, rank: int, world_size: int, timeout: float, is_default: bool) -> World:
    until = time.monotonic() + timeout
    grounds = Grounds(
        url=os.environ.get("ALLHANDS_URL") or None,
        # A worker that torchrun starts again may come before its last world has ended.
        shares_job=is_default and "TORCHELASTIC_RUN_ID" not in os.environ,
        token=os.environ.get("ALLHANDS_TOKEN") or None,
        insecure=os.environ.get("ALLHANDS_INSECURE", "") == "1",
    )
    meeting = meet_through(Through(store, timeout), rank, world_size, timeout, grounds)
    settled = config.settle(
        os.environ,
        rank=rank,
        world_size=world_size,
        timeout=max(until - time.monotonic(), 1e-3),
        job=meeting.job,
        token=meeting.token,
        tls_ca=meeting.tls_ca,
        parent=parent(),
        place=meeting.place,
    )
    return World.join(settled)
