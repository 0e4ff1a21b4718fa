"""JAX on a world: `jax.distributed` finds it, and collectives take and return JAX arrays.

Once this is imported and the world is joined, `jax.distributed.initialize()` needs no arguments.
The collectives may be called inside of `jax.jit` too: there they are callbacks, which run in the
order of the program on each process. They have no derivatives, and are not batched by `jax.vmap`.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.clusters import ClusterEnv  # private, and the documented way all the same
from jax.experimental import io_callback

from allhands import functional
from allhands.api import collectives
from allhands.api.coordinator_queries import status
from allhands.api.default_world import find_world, require_world
from allhands.api.objects import broadcast_object_list
from allhands.collectives.reduction import ReduceOp
from allhands.parallel.expand import GroupLike, resolve


class AllhandsCluster(ClusterEnv):  # type: ignore[misc]  # JAX's class has no types
    """Processes of JAX that are the ranks of a world; JAX asks it once this is imported."""

    name = "allhands"

    @classmethod
    def is_env_present(cls) -> bool:
        return find_world() is not None

    @classmethod
    def get_coordinator_address(
        cls, timeout_secs: int | None = None, override_coordinator_port: str | None = None
    ) -> str:
        """Return HOST:PORT of JAX's own coordinator; a call of all processes.

        Process 0 serves it, on the address at which the others reach that process, and on a free
        port or JAX_COORDINATOR_PORT.
        """
        told = [""]
        if require_world().group.rank == 0:
            [host] = [one.address.rpartition(":")[0] for one in status().members if one.rank == 0]
            told = [f"{host}:{override_coordinator_port or _find_free_port(host.strip('[]'))}"]
        broadcast_object_list(told, 0, timeout=timeout_secs)
        return told[0]

    @classmethod
    def get_process_count(cls) -> int:
        return require_world().group.size

    @classmethod
    def get_process_id(cls) -> int:
        return require_world().group.rank

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """Return LOCAL_RANK, which chooses the device of a process; None: it has all devices."""
        local = os.environ.get("LOCAL_RANK", "")
        return int(local) if local.isdecimal() else None


def all_reduce(
    x: Any, op: ReduceOp | str = "sum", group: GroupLike = None, *, timeout: float | None = None
) -> jax.Array:
    """Return the combination of the arrays of all processes, of the shape and dtype of `x`.

    Args:
        x: array of JAX or NumPy, of one shape and dtype on all processes; it is not changed.
        op: reduction, or its name.
        group: as for `allhands.functional`; None: all processes.
        timeout: seconds; None: the group's.

    Raises:
        AllhandsError: as the calls of `allhands` do; inside of `jit` JAX raises an error of its
            own, with that as its text.
    """
    return _call(lambda y: functional.all_reduce(y, op, group, timeout=timeout), x, np.shape(x))


def broadcast(
    x: Any, src: int, group: GroupLike = None, *, timeout: float | None = None
) -> jax.Array:
    """Return the array of the group's process `src`; arguments and errors are `all_reduce`'s."""
    return _call(lambda y: functional.broadcast(y, src, group, timeout=timeout), x, np.shape(x))


def all_gather(x: Any, group: GroupLike = None, *, timeout: float | None = None) -> jax.Array:
    """Return the arrays of all processes, of shape (processes, *shape); see `all_reduce`."""
    return _call(
        lambda y: functional.all_gather_tensor(y[np.newaxis], 0, group, timeout=timeout),
        x,
        (_count(group), *np.shape(x)),
    )


def reduce_scatter(
    x: Any, op: ReduceOp | str = "sum", group: GroupLike = None, *, timeout: float | None = None
) -> jax.Array:
    """Return this process's part of the combination, of shape (rows / processes, ...).

    The rows of `x`, its first dimension, are shared out; see `all_reduce`.

    Raises:
        ValueError: the processes cannot share the rows equally.
    """
    rows, *rest = np.shape(x)
    return _call(
        lambda y: functional.reduce_scatter_tensor(y, op, 0, group, timeout=timeout),
        x,
        (_share(rows, group), *rest),
    )


def all_to_all(x: Any, group: GroupLike = None, *, timeout: float | None = None) -> jax.Array:
    """Return the parts that all processes have for this one, of the shape of `x`.

    The rows of `x` are shared out: process j gets the j-th part; see `all_reduce`.

    Raises:
        ValueError: the processes cannot share the rows equally.
    """
    _share(np.shape(x)[0], group)
    return _call(
        lambda y: functional.all_to_all_single(y, None, None, group, timeout=timeout),
        x,
        np.shape(x),
    )


def barrier(name: str, *, timeout: float | None = None) -> None:
    """Wait until all processes have come to the barrier of that name; not inside of `jit`.

    It takes the place of `jax.experimental.multihost_utils.sync_global_devices`.

    Raises:
        CollectiveTimeout: processes did not come in time; all of them are named, with their state.
        CollectiveMismatch: another process is at a barrier of another name.
    """
    collectives.barrier(timeout=timeout, label=name)


def _call(function: Callable[[Any], Any], x: Any, shape: tuple[int, ...]) -> jax.Array:
    if not isinstance(x, jax.core.Tracer):
        return jax.numpy.asarray(function(np.asarray(x)))
    expected = jax.ShapeDtypeStruct(shape, x.dtype)
    result: jax.Array = io_callback(
        lambda y: np.asarray(function(np.asarray(y))), expected, x, ordered=True
    )
    return result


def _count(group: GroupLike) -> int:
    return resolve(group, "", "expand_group", {}).size


def _share(rows: int, group: GroupLike) -> int:
    share, rest = divmod(rows, _count(group))
    if rest:
        raise ValueError(f"{rows} rows cannot be shared equally by {_count(group)} processes")
    return share


def _find_free_port(host: str) -> int:
    with socket.create_server((host, 0), family=_get_family(host)) as server:
        port: int = server.getsockname()[1]
        return port


def _get_family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
