"""Who is measured: allhands, and what people would use instead."""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import allhands as ah

Vector = NDArray[np.float32]


class Peer(Protocol):
    """A way to sum an array over all ranks, in place."""

    name: str

    def all_reduce(self, x: Vector) -> None: ...

    def close(self) -> None: ...


class Allhands:
    """This package, through its public calls."""

    name = "allhands"

    def all_reduce(self, x: Vector) -> None:
        ah.all_reduce(x)

    def close(self) -> None:
        """Nothing: the run itself stands on this world."""


class Gloo:
    """torch.distributed with Gloo, on tensors that share the arrays' memory."""

    name = "gloo"

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", rank=ah.get_rank(), world_size=ah.get_world_size())
        self._torch, self._dist = torch, dist

    def all_reduce(self, x: Vector) -> None:
        self._dist.all_reduce(self._torch.from_numpy(x))

    def close(self) -> None:
        self._dist.destroy_process_group()


PEERS: dict[str, Callable[[], Peer]] = {"gloo": Gloo}
