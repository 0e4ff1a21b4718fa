"""Ranks of groups with calls that are all or nothing, in the moments before all have confirmed."""

import signal
import threading
import time
from typing import Any

import numpy as np

import allhands as ah
from allhands.collectives.reduction import ReduceOp
from allhands.collectives.request import CollectiveRequest
from programs.protocol import failure, hear, tell, until


def meet(**policy: Any) -> int:
    """Join, and make each rooted call once, so that roots and senders wait for nobody after that.

    Returns this rank.
    """
    ah.init_process_group(timeout=30, **policy)
    for _ in range(2):
        ah.barrier()
        ah.broadcast(np.ones(3), 0)
        ah.reduce(np.ones(3), 2)
    ah.barrier()
    return ah.get_rank()


def compute_without_confirming(x: np.ndarray[Any, Any]) -> None:
    """Make the next call of the group, an all_reduce, and not the barrier behind it."""
    comm: Any = ah.default_group().submitter.engine.order.comm
    call = CollectiveRequest(
        "all_reduce", x.dtype, x.size, targets=(x,), op=ReduceOp.SUM, shape=x.shape
    )
    assert call.run(comm, comm.take_number(), 30, time.monotonic() + 30, None)


def die_before_confirming(mode: str) -> None:
    policy: Any = {"retryable": True} if mode == "raise" else {"on_failure": mode}
    me = meet(**policy)
    x = np.full(5, 10.0**me)
    if me == 1:
        compute_without_confirming(x)
        tell("computed")
        hear()
    told = failure(lambda: ah.all_reduce(x))
    tell("ended", error=told["error"], sum=float(x[0]))
    y = np.full(5, 1.0)
    told = failure(lambda: ah.all_reduce(y))
    tell("next", error=told["error"], sum=float(y[0]))
    hear()


def lose_a_rank_that_one_did_not_need() -> None:
    """Broadcast from rank 0; rank 1 is killed, rank 3 comes after that, rank 2 has it before."""
    me = meet(retryable=True)
    tell("running")
    if me in (1, 3):
        hear()
    if me == 3:
        engine: Any = ah.default_group().submitter.engine
        until(lambda: engine.get_next_error() is not None)
    x = np.full(3, 10.0 * (me + 1))
    again: Any = None
    try:
        if me == 2:
            threading.Thread(target=tell_when_confirming).start()
        ah.broadcast(x, 0)
    except ah.PeerFailed as error:
        again = error
    tell("failed", x=float(x[0]), intact=again is not None and again.outputs_intact)
    ah.retry(again)
    tell("retried", x=float(x[0]), size=ah.get_world_size())
    hear()


def tell_when_confirming() -> None:
    engine: Any = ah.default_group().submitter.engine
    number = engine.progress.sequence
    while engine.progress.operation != "barrier" or engine.progress.sequence == number:
        time.sleep(0.001)
    tell("confirming")


def reduce_with_a_late_rank() -> None:
    """Reduce to rank 2, which gives up before rank 1 comes; rank 0 has sent its part by then."""
    me = meet(retryable=True)
    x = np.full(3, 1.0)
    if me == 1:
        hear()
    told = failure(lambda: ah.reduce(x, 2, timeout=0.5 if me == 2 else 20.0))
    tell("ended", error=told["error"], text=told["text"], x=float(x[0]))
    ah.all_reduce(x)
    tell("next", sum=float(x[0]))
    hear()


def interrupt_a_confirmation() -> None:
    """Ctrl-C on rank 0, whose part of a broadcast is done while the others have not come."""
    me = meet(retryable=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = np.full(3, float(me))
    told: dict[str, Any] = {}
    if me == 0:
        threading.Thread(target=tell_when_confirming).start()
        try:
            ah.broadcast(x, 0)
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt"}
        tell("interrupted", **told)
    else:
        hear()
        ah.broadcast(x, 0)
    y = np.full(3, 1.0)
    ah.all_reduce(y)
    ah.all_reduce(y)
    tell("next", x=float(x[0]), sum=float(y[0]), returned=count_returned())
    hear()


def count_returned() -> int:
    """Return how many calls of the group are known to be done on all ranks."""
    submitter: Any = ah.default_group().submitter
    submitter._take_counts()
    return int(submitter._returned_calls)


def sum_until_killed(waits: bool) -> None:
    """Call until the group has shrunk; tell how many calls had all ranks. Rank 2 may queue its."""
    ah.init_process_group(timeout=30, on_failure="shrink")
    me, x, sums = ah.get_rank(), np.zeros(2), list[float]()
    while not sums or sums[-1] > 1101.5:
        x[:] = 10.0**me
        if waits or me != 2:
            ah.all_reduce(x)
        else:
            work = ah.all_reduce(x, async_op=True)
            assert work is not None
            work.wait()
        sums.append(float(x[0]))
        if len(sums) == 50:
            tell("running")
    full = sums.count(1111.0)
    tell("shrunk", full=full, others=[one for one in sums if one != 1111.0])
    x[:] = 1
    ah.all_reduce(x)
    tell("next", sum=float(x[0]), size=ah.get_world_size())
    hear()
