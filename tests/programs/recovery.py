"""Worlds with recovery in process after kills, stops, replacements and growth."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from allhands.membership.resilient import ResilientSubmitter
from allhands.runtime.loop_thread import LoopThread
from programs.protocol import failure, hear, tell


def sum_of(value: float, length: int = 5, **more: Any) -> float:
    """Return the sum of all ranks' values."""
    x = np.full(length, float(value))
    ah.all_reduce(x, **more)
    assert (x == x[0]).all()
    return float(x[0])


def whereabouts() -> dict[str, int]:
    return {"rank": ah.get_rank(), "size": ah.get_world_size()}


def sum_until_shrunk() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink")
    mine = 10.0 ** ah.get_rank()
    sum_of(mine, 1 << 20)
    tell("running")
    while ah.get_world_size() == 6:
        before = sum_of(mine, 1 << 20)
    # Made in the middle of it, or before and given up: either way by four.
    tell("shrunk", sum=sum_of(mine, 1 << 20), last=before, **whereabouts())
    hear()


def send_before_and_after_a_loss() -> None:
    """Send around a ring, with one rank less after a while; then hear nothing in time."""
    ah.init_process_group(timeout=30, on_failure="shrink")

    def send_around() -> list[int]:
        rank, size = ah.get_rank(), ah.get_world_size()
        heard = []
        for number in range(20):
            x, y = np.full(3, 100 * rank + number), np.zeros(3, np.int64)
            sending = ah.isend(x, (rank + 1) % size)
            ah.recv(y, (rank - 1) % size)
            sending.wait()
            heard.append(int(y[0]) - number)
        return heard

    told = {"before": send_around(), "rank_before": ah.get_rank()}
    tell("running", is_direct=ah.default_group().order.direct_p2p is not None)
    while ah.get_world_size() == 4:
        sum_of(1)
    told |= {"after": send_around(), "is_direct": ah.default_group().order.direct_p2p is not None}
    ah.default_group().timeout = 0.3
    missed = failure(lambda: ah.recv(np.zeros(3), (ah.get_rank() + 1) % 3, tag=5))
    tell("shrunk", **told, **missed, **whereabouts())
    hear()


def retry_a_sum() -> None:
    ah.init_process_group(timeout=30, retryable=True)
    x = np.arange(100_000.0) + ah.get_rank()
    kept = x.copy()
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    try:
        ah.all_reduce(x)
    except ah.PeerFailed as error:
        intact = bool((x == kept).all()) and error.outputs_intact
        tell("failed", intact=intact, ranks=error.failed_ranks)
        ah.retry(error)
        tell("retried", right=bool((x == 2 * np.arange(100_000.0) + 2).all()), **whereabouts())
    hear()


def retry_a_broadcast() -> None:
    ah.init_process_group(timeout=30, retryable=True)
    _lose_a_rank_of_a_broadcast()


def _lose_a_rank_of_a_broadcast() -> None:
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    x = np.full(3, 10.0 * ah.get_rank())
    try:
        ah.broadcast(x, src=2)
    except ah.PeerFailed as error:
        ah.retry(error)
    tell("retried", root=x[0], size=ah.get_world_size())
    hear()


class _SlowHandOver:
    """A loop's thread that takes a failed call over before the thread that made it goes on."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thread, name)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        self._thread.call(function, *arguments)
        if function.__name__ == ResilientSubmitter._submit_failed.__name__:
            self._thread.run(_turn_loop())
            tell("taken over")


async def _turn_loop() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def retry_a_broadcast_taken_over_at_once() -> None:
    """Retry a broadcast whose failure the loop gets to before the caller's thread goes on."""
    ah.init_process_group(timeout=30, retryable=True)
    submitter = ah.default_group().submitter
    assert isinstance(submitter, ResilientSubmitter)
    submitter.executor = _SlowHandOver(submitter.executor)  # type: ignore[assignment]  # as it looks
    _lose_a_rank_of_a_broadcast()


def shrink_by_hand() -> None:
    ah.init_process_group(timeout=30)
    group = ah.default_group()
    tell("agreed", all=group.agree(True), one_not=group.agree(ah.get_rank() != 2))
    told = failure(lambda: ah.barrier() if ah.get_rank() != 2 else hear())
    flag = group.agree(True)
    rest = group.shrink()
    x = np.full(3, float(ah.get_rank()))
    ah.all_reduce(x, group=rest)
    y = np.full(3, float(rest.rank))
    ah.broadcast(y, src=2, group=rest)
    if rest.rank == 0:
        ah.send(np.full(2, 7.0), dst=2, group=rest)
    if rest.rank == 2:
        z = np.zeros(2)
        sender = ah.recv(z, src=None, group=rest)
        assert (sender, z[0]) == (0, 7.0)
    tell("shrunk", error=told["error"], flag=flag, sum=x[0], root=y[0], rank=rest.rank)
    hear()


def revoke_and_shrink(retryable: bool) -> None:
    ah.init_process_group(timeout=30, retryable=retryable)
    group = ah.default_group()
    if ah.get_rank() == 1:
        group.revoke("the loss is no number")
    x = np.ones(2)
    try:
        ah.all_reduce(x)
    except ah.GroupAborted as error:
        told = [error.by.split(" (")[0], error.reason, float(x.sum())]
    group = group.shrink()
    ah.all_reduce(x, group=group)
    tell("shrunk", told=told, size=group.size, sum=x[0])
    hear()


def join_late(mode: str) -> None:
    ah.init_process_group(timeout=30, on_failure=mode, max_size=8)
    tell("joined", sum=sum_of(100), **whereabouts())
    hear()


def grow() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink", max_size=8)
    sum_of(1)
    tell("running")
    ah.default_group().grow(2)
    tell("grown", sum=sum_of(1), **whereabouts())
    part = ah.new_group([3, 0])
    x = np.ones(3)
    if ah.get_rank() in (0, 3):
        ah.all_reduce(x, group=part)
    hear()


def go_on_with_a_replacement() -> None:
    ah.init_process_group(timeout=30, on_failure="wait")
    x = np.full(5, 1.0)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    told = failure(lambda: ah.all_reduce(x))
    assert (x == 1).all()
    tell("replaced", error=told["error"], sum=sum_of(1), **whereabouts())
    hear()


def queue_calls_before_a_replacement() -> None:
    """Queue a sum behind a sum that loses rank 1: at once on rank 0, after the loss on rank 2.

    Rank 2 makes the second call before asking for the end of the first.
    """
    ah.init_process_group(timeout=30, on_failure="wait")
    x, y = np.full(5, 1.0), np.full(5, 50.0)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    works = [ah.all_reduce(x, async_op=True)]
    if ah.get_rank() == 2:
        ended = threading.Event()
        works[0].get_future().add_done_callback(lambda _: ended.set())
        assert ended.wait(30)
    works.append(ah.all_reduce(y, async_op=True))
    errors = [end(work) for work in works]
    intact = bool((x == 1).all() and (y == 50).all())
    tell("replaced", errors=errors, intact=intact, sum=sum_of(1))
    hear()


def mismatch_and_meet() -> None:
    ah.init_process_group(timeout=30, retryable=True)
    x = np.full(4 + ah.get_rank(), 1.0)
    try:
        ah.all_reduce(x)
    except ah.CollectiveMismatch as error:
        table = [error.table[rank] for rank in range(2)]
    ah.monitored_barrier(timeout=20)
    if ah.get_rank() == 1:
        tell("late", error=failure(lambda: ah.monitored_barrier(timeout=1))["error"])
    else:
        told = failure(lambda: ah.monitored_barrier(timeout=0.5))
        tell("late", error=told["error"])
    tell("told", table=table, sum=sum_of(2), kept=bool((x == 1).all()))
    hear()


def cancel_a_retryable_call(which: int) -> None:
    ah.init_process_group(timeout=30, retryable=True)
    ah.barrier()
    if ah.get_rank() == 1:
        hear()
    arrays = [np.full(3, number + 1.0) for number in range(3)]
    works = [ah.all_reduce(x, async_op=True) for x in arrays]
    if ah.get_rank() == 0:
        works[which].cancel()
        tell("cancelled")
    ended: list[str | None] = []
    for work in works:
        try:
            work.wait()
            ended.append(None)
        except ah.AllhandsError as error:
            ended.append(type(error).__name__)
    tell("ended", errors=ended, sums=[float(x[0]) for x in arrays], next=sum_of(5))
    hear()


def fall_below_the_least_size() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink", min_size=3)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    for _ in range(2):
        tell("failed", **failure(lambda: sum_of(1)))
    hear()


def gather_after_a_loss() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink")
    sum_of(1)
    tell("running")
    if ah.get_rank() == 0:
        hear()
    outputs = [np.full(2, -1.0) for _ in range(3)]
    told = failure(lambda: ah.all_gather(outputs, np.ones(2)))
    intact = all((one == -1).all() for one in outputs)
    gone = failure(lambda: ah.broadcast(np.ones(2), src=0))["error"]
    tell("changed", error=told["error"], intact=intact, gone=gone, sum=sum_of(1))
    hear()


def end(work: ah.Work | None) -> str | None:
    """Wait for a work; return the name of the error."""
    assert work is not None
    told = failure(work.wait)
    return None if told["error"] is None else str(told["error"])


def gather_in_a_queue_before_a_loss(fresh_rank: int) -> None:
    """Queue calls with an item for each of three ranks behind a sum that loses rank 0.

    `fresh_rank` makes its gather after the loss instead, with as many items as there are then.
    """
    ah.init_process_group(timeout=30, on_failure="shrink")
    sum_of(1)
    tell("running")
    if ah.get_rank() == 0:
        hear()
    me = ah.get_rank()
    is_fresh = me == fresh_rank
    first, last = np.ones(4), np.full(4, 2.0)
    outputs = [np.full(2, -1.0) for _ in range(2 if is_fresh else 3)]
    works = [ah.all_reduce(first, async_op=True)]
    if is_fresh:
        works[0].wait()
    works.append(ah.all_gather(outputs, np.full(2, float(me)), async_op=True))
    works.append(ah.all_reduce(last, async_op=True))
    errors = [end(work) for work in works]
    intact = all((one == -1).all() for one in outputs)
    sums = [float(first[0]), float(last[0])]
    again = [np.zeros(2) for _ in range(ah.get_world_size())]
    ah.all_gather(again, np.full(2, float(me)))
    tell("ended", errors=errors, intact=intact, sums=sums, again=[one[0] for one in again])
    hear()


CALLS_WITH_BLOCKS: dict[str, Callable[[list[Any], Any], object]] = {
    "all_gather": lambda blocks, x: ah.all_gather(blocks, x),
    "gather": lambda blocks, x: ah.gather(x, blocks if ah.get_rank() == 0 else None, dst=0),
    "scatter": lambda blocks, x: ah.scatter(x, blocks if ah.get_rank() == 0 else None, src=0),
    "reduce_scatter": lambda blocks, x: ah.reduce_scatter(x, blocks),
    "all_to_all": lambda blocks, x: ah.all_to_all(blocks, [x, x, x]),
    "scatter_v": lambda blocks, x: ah.scatter_v(blocks if ah.get_rank() == 0 else None, src=0),
}


def retry_with_blocks(operation: str) -> None:
    """Retry a call made for three ranks with the two survivors."""
    ah.init_process_group(timeout=30, retryable=True)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 1:
        hear()
    blocks, x = [np.full(2, -1.0) for _ in range(3)], np.full(2, 7.0)
    told: dict[str, Any] = {"error": "none lost"}
    try:
        CALLS_WITH_BLOCKS[operation](blocks, x)
    except ah.PeerFailed as failed:
        error = failed
        told = failure(lambda: ah.retry(error))
    intact = bool((np.array(blocks) == -1).all() and (x == 7).all())
    size = ah.get_world_size()
    tell("retried", error=told["error"], intact=intact, size=size, sum=sum_of(1))
    hear()


def be_expelled_while_stopped() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink", heartbeat_window=1)
    sum_of(1)
    tell("running")
    if ah.get_rank() == 2:
        tell("awake", **failure(lambda: [sum_of(9, 1 << 18) for _ in range(10**6)]))
        hear()
    while ah.get_world_size() == 3:
        sum_of(1, 1 << 18)
    tell("shrunk")
    wrong = 0
    for number in range(300):
        wrong += int(sum_of(number, 1 << 14) != 2 * number)
    tell("right", wrong=wrong)
    hear()


def train_a_state() -> None:
    ah.init_process_group(timeout=30, on_failure="shrink", max_size=8)
    state = ah.State(total=np.zeros(1000), step=0, note="")

    def train(state):
        while state.step < 60 or ah.get_world_size() != 3:
            x = np.full(1000, 1.0)
            ah.all_reduce(x)
            state.total += x / ah.get_world_size()
            state.step += 1
            state.note = f"step {state.step}"
            if state.step == 20:
                tell("there", rank=ah.get_rank())
                hear()
            state.commit()
        return state

    state.run(train)
    exact = bool((state.total == state.step).all())
    tell("done", step=state.step, exact=exact, note=state.note, size=ah.get_world_size())
    hear()
