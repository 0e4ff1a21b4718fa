"""Failing calls over shared memory with a deferred wait."""

import signal
import sys
import threading
from typing import Any

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell, until

SMALL, LARGE = 3, 100_000
LENGTHS = {"SMALL": SMALL, "LARGE": LARGE, "BLOCKS": SMALL, "ARRAYS": SMALL}


def begin(kind: str, **more: Any) -> ah.Work:
    """Begin a sum in which each rank counts one more than the rank before."""
    x = np.full(LENGTHS[kind], ah.get_rank() + 1.0)
    work: ah.Work
    match kind:
        case "BLOCKS":
            work = ah.reduce_scatter_v([x] * ah.get_world_size(), async_op=True, **more)
        case "ARRAYS":
            work = ah.all_gather_v(x, async_op=True, **more)
        case _:
            work = ah.all_reduce(x, async_op=True, **more)
    assert work is not None
    return work


def add_up(work: ah.Work) -> list[float]:
    """Return the last two numbers of a sum, when it is there."""
    found = work.result()
    total = np.sum(found, axis=0) if isinstance(found, list) else np.asarray(found)
    return [float(one) for one in total[-2:]]


def is_next_right() -> bool:
    n = ah.get_world_size()
    x = np.full(SMALL, ah.get_rank() + 1.0)
    ah.all_reduce(x)
    return bool((x == n * (n + 1) / 2).all())


def wait_past_the_deadline(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 0:
        work = begin(kind, timeout=0.3)
        tell("failed", **failure(work.wait), again=failure(work.wait)["error"])
        hear()
    else:
        hear()
    ah.destroy_process_group()


def wait_for_a_dead_rank(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 1:
        tell("here")
        hear()
    works = [begin(kind) for _ in range(3)]
    tell("begun")
    tell("failed", all=[failure(work.wait) for work in works])
    ah.destroy_process_group()


def wait_for_a_rank_that_left(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    works = [begin(kind) for _ in range(1 if me else 4)]
    works[0].wait()
    tell("failed", all=[failure(work.wait) for work in works[1:]])
    hear()
    ah.destroy_process_group()


def cancel_calls(kind: str, is_waited_for: bool) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 0:
        works = [begin(kind) for _ in range(3)]
        said = []
        if is_waited_for:
            waiting = [
                threading.Thread(target=lambda one=one: said.append(failure(one.wait)))
                for one in works[:2]
            ]
            for one in waiting:
                one.start()
        for work in works[1::-1]:
            work.cancel()
        if is_waited_for:
            for one in waiting:
                one.join()
        tell("cancelled", all=[failure(one.wait) for one in works[:2]] + said)
        hear()
        works[2].wait()
        tell("last", sum=add_up(works[2]))
    else:
        hear()
        for _ in range(2):
            tell("told", **failure(begin(kind).wait))
        tell("last", sum=add_up(begin(kind)))
    tell("next", fine=is_next_right())
    ah.destroy_process_group()


def cancel_an_ended_call(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    work = begin(kind)
    if me == 2:
        hear()  # it has given its part, and not seen the end
    until(work.is_completed)
    work.cancel()
    tell("cancelled")
    if me != 2:
        hear()
    tell("next", fine=is_next_right(), error=str(work.exception()))
    ah.destroy_process_group()


def interrupt_a_wait(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    if me == 0:
        work = begin(kind)
        main = threading.get_ident()

        def watch():
            until(lambda: sys._current_frames()[main].f_code.co_name in ("_end", "_run", "wait"))
            tell("waits")

        try:
            threading.Thread(target=watch, daemon=True).start()
            work.wait()
        except KeyboardInterrupt:
            tell("interrupted")
        tell("ended", **failure(work.wait))
    else:
        hear()
        tell("ended", **failure(begin(kind).wait))
    tell("next", fine=is_next_right())
    ah.destroy_process_group()


def ring_at_any_moment() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator

    class Rang(BaseException):
        pass

    armed = []

    def ring(*_):
        if armed:  # else it was late
            raise Rang

    signal.signal(signal.SIGALRM, ring)
    random = np.random.default_rng(me)
    rang, failed, wrong = 0, 0, 0
    for at in range(400):
        x = np.full((SMALL, LARGE)[at % 4 == 3], me + 1.0)
        works = [ah.all_reduce(x, async_op=True)]
        if at % 3 == 0:
            works.append(ah.broadcast(np.zeros(SMALL), 0, async_op=True))
        try:
            try:
                armed.append(at)
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                works[-1].wait()
            finally:
                armed.clear()
        except Rang:
            rang += 1
        except ah.AllhandsError:
            pass
        armed.clear()
        told = [failure(work.wait)["error"] for work in works]
        failed += told[0] is not None
        wrong += told[0] is None and not (x == 3).all()
        assert {*told} <= {None, "AllhandsError", "GroupAborted"}, told
    tell("done", rang=rang, failed=failed, wrong=wrong, fine=is_next_right())
    ah.destroy_process_group()


def call_something_else(kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()  # from here on there is a communicator
    work = begin(kind, **({} if me == 0 else {"op": ah.ReduceOp.MAX}))
    tell("failed", **failure(work.wait))
    hear()
    ah.destroy_process_group()
