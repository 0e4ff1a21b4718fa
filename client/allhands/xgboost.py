"""XGBoost's tracker for the ranks of a world: addresses and ranks go through the world.

XGBoost's own collectives carry the training: it has no door for others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xgboost.collective import CommunicatorContext
from xgboost.tracker import RabitTracker

from allhands.api.coordinator_queries import status
from allhands.api.default_world import require_world
from allhands.api.objects import broadcast_object_list

_SECONDS = 300
"""For all ranks to come to the tracker, and to leave it."""


@contextmanager
def open_communicator(**arguments: Any) -> Iterator[None]:
    """Let XGBoost's ranks be those of the world within a block, which all ranks enter.

    Rank 0 starts the tracker, on the address at which the other ranks reach it.

    Args:
        arguments: others of `xgboost.collective.CommunicatorContext`.

    Raises:
        AllhandsError: a rank did not come to the beginning of the block.
        xgboost.core.XGBoostError: the tracker or a rank was not reached.
    """
    group = require_world().group
    tracker = None
    told: list[Any] = [None]
    if group.rank == 0:
        [host] = [one.address.rpartition(":")[0] for one in status().members if one.rank == 0]
        tracker = RabitTracker(group.size, host.strip("[]"), sortby="task", timeout=_SECONDS)
        tracker.start()
        told = [dict(tracker.worker_args())]
    try:
        broadcast_object_list(told, 0)
        # By their names XGBoost sorts its ranks, as texts.
        name = f"rank-{group.rank:08}"
        with CommunicatorContext(**told[0], dmlc_task_id=name, **arguments):
            yield
        if tracker is not None:
            tracker.wait_for(_SECONDS)
    finally:
        if tracker is not None:
            tracker.free()
