"""Backend of Ray's collective groups: actors are the ranks of a world.

`register()` on the driver and in every actor, then
`ray.util.collective.create_collective_group(actors, ..., backend="ALLHANDS")`. A coordinator runs
already, and ALLHANDS_URL names it in the environment of the actors: no token passes through Ray.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

from ray.util.collective import types
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from allhands.api.joining import join_world
from allhands.collectives.reduction import ReduceOp
from allhands.group.group import Group

NAME = "ALLHANDS"
JOB_PREFIX = "ray-"
"""Of the job of a collective group: its name comes behind it."""
_OPERATORS = {
    types.ReduceOp.SUM: ReduceOp.SUM,
    types.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    types.ReduceOp.MIN: ReduceOp.MIN,
    types.ReduceOp.MAX: ReduceOp.MAX,
}


def register() -> None:
    """Register the backend "ALLHANDS" in this process; again it does nothing."""
    from ray.util.collective.backend_registry import BackendRegistry

    if not BackendRegistry().is_registered(NAME):
        register_collective_backend(NAME, WorldGroup)


class WorldGroup(BaseGroup):  # type: ignore[misc]  # Ray's classes have no types
    """Collective group whose actors are the ranks of a world of their own.

    Arrays are NumPy's, torch's on the CPU, or of another library with writeable memory. A call
    that a dead actor does not come to raises `PeerFailed` on the others, which names it.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        """Join, and wait for the other actors; raises as `allhands.init_process_group` does."""
        super().__init__(world_size, rank, group_name)
        if not os.environ.get("ALLHANDS_URL"):
            raise ValueError(
                f"collective group {group_name!r} of Ray needs a coordinator: start `allhands "
                "serve` and set ALLHANDS_URL=ah://HOST:PORT, and ALLHANDS_TLS_DIR beyond one host, "
                "before `ray start` on each node, or in runtime_env={'env_vars': ...}"
            )
        self._world = join_world(
            None,
            itertools.count(),
            None,
            {"job": f"{JOB_PREFIX}{group_name}", "rank": rank, "world_size": world_size},
        )

    @property
    def _group(self) -> Group:
        return self._world.group.here

    def destroy_group(self) -> None:
        """Leave the world."""
        self._world.close()

    @classmethod
    def backend(cls) -> str:
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def allreduce(self, tensor: Sequence[Any], allreduce_options: Any = None) -> None:
        options = allreduce_options or types.AllReduceOptions
        self._group.all_reduce(_get_single(tensor), _OPERATORS[options.reduceOp]).wait()

    def barrier(self, barrier_options: Any = None) -> None:  # Ray's
        self._group.barrier().wait()

    def reduce(self, tensor: Sequence[Any], reduce_options: Any = None) -> None:
        options = reduce_options or types.ReduceOptions
        operator = _OPERATORS[options.reduceOp]
        self._group.reduce(_get_single(tensor), options.root_rank, operator).wait()

    def allgather(
        self,
        tensor_list: Sequence[Sequence[Any]],
        tensor: Sequence[Any],
        allgather_options: Any = None,  # Ray's
    ) -> None:
        self._group.all_gather(list(_get_single(tensor_list)), _get_single(tensor)).wait()

    def broadcast(self, tensor: Sequence[Any], broadcast_options: Any = None) -> None:
        options = broadcast_options or types.BroadcastOptions
        self._group.broadcast(_get_single(tensor), options.root_rank).wait()

    def reducescatter(
        self,
        tensor: Sequence[Any],
        tensor_list: Sequence[Sequence[Any]],
        reducescatter_options: Any = None,
    ) -> None:
        options = reducescatter_options or types.ReduceScatterOptions
        self._group.reduce_scatter(
            _get_single(tensor), list(_get_single(tensor_list)), _OPERATORS[options.reduceOp]
        ).wait()

    def send(self, tensor: Sequence[Any], send_options: Any) -> None:
        self._group.send(_get_single(tensor), send_options.dst_rank).wait()

    def recv(self, tensor: Sequence[Any], recv_options: Any) -> None:
        self._group.recv(_get_single(tensor), recv_options.src_rank).wait()


def _get_single(tensors: Sequence[Any]) -> Any:
    """Return the array of this actor; Ray's lists are for several devices of a process."""
    if len(tensors) != 1:
        raise ValueError(f"an actor has one array in a call, and not {len(tensors)}")
    return tensors[0]
