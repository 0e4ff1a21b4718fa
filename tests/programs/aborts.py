"""Ranks that end a call, a group or a world on purpose, and ranks blocked meanwhile."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell, until


def _be_ready(size: int) -> tuple[int, Any, npt.NDArray[np.float64]]:
    """Join, and make a group of so many ranks; return the rank, the group, and an array."""
    ah.init_process_group(timeout=40)
    group = ah.new_group(range(size))
    x = np.ones(1000)
    ah.all_reduce(x)
    if ah.get_rank() < size:
        ah.all_reduce(x, group=group)
    tell("ready", pid=os.getpid())
    hear()
    return ah.get_rank(), group, x


def abort_on_rank_1(scope: str) -> None:
    """Abort the world, or the group, on rank 1 during a call of the remaining ranks."""
    me, group, x = _be_ready(3)
    if me == 1:
        hear()
        if scope == "world":
            ah.abort("it diverged")
        else:
            group.abort("it diverged")
    tell("told", **failure(lambda: ah.all_reduce(x, group=group)))
    tell("later", **failure(lambda: ah.all_reduce(x, group=group)))
    tell("world", **failure(ah.barrier))
    tell("new", **failure(lambda: ah.barrier(ah.new_group([0, 1, 2]))))
    hear()
    os._exit(0)


def block_rank_0() -> None:
    me, _, _ = _be_ready(2)
    if me == 0:
        tell("told", **failure(ah.barrier))
    hear()
    os._exit(0)


def _cancel(x: npt.NDArray[np.float64]) -> None:
    work = ah.all_reduce(x, async_op=True)
    tell("begun")
    hear()
    work.cancel()
    failure(work.wait)


def _interrupt(x: npt.NDArray[np.float64]) -> None:
    group = ah.default_group()
    before = group.sequence

    def interrupt() -> None:
        hear()
        until(lambda: group.sequence > before)  # else there is no call yet to give up
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    tell("begun")
    with contextlib.suppress(KeyboardInterrupt):
        ah.all_reduce(x)


GIVING_UP: dict[str, Callable[[npt.NDArray[np.float64]], None]] = {
    "cancelled": _cancel,
    "Ctrl-C": _interrupt,
}
"""How a rank gives a call up, by the reason that its peers are told."""


def give_up_on_rank_0(reason: str, length: int) -> None:
    """Give a call up on rank 0, which rank 1 is in, and to which rank 2 comes late."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    x = np.ones(length)
    ah.all_reduce(x)
    if me == 0:
        GIVING_UP[reason](x)
    elif me == 1:
        tell("begun")
        tell("told", **failure(lambda: ah.all_reduce(x)))
    else:
        tell("begun")
        hear()
        tell("told", **failure(lambda: ah.all_reduce(x)))
    hear()
    y = np.full(5, me + 1.0)
    ah.all_reduce(y)
    tell("next", values=y.tolist())
    ah.destroy_process_group()


def raise_without_abort() -> None:
    ah.init_process_group(timeout=20, abort_on_exception=False)
    ah.barrier()
    if ah.get_rank() == 1:
        raise LookupError("no such file as this")
    tell("failed", **failure(ah.barrier))


def come_late_to_a_monitored_barrier(late: list[int], names_all: bool) -> None:
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    ah.monitored_barrier()
    if me in late:
        hear()
    tell("told", **failure(lambda: ah.monitored_barrier(None, 0.7, names_all, label="step 7")))
    x = np.full(3, me + 1.0)
    ah.all_reduce(x)
    ah.monitored_barrier(timeout=20)
    tell("next", values=x.tolist())
    ah.destroy_process_group()
