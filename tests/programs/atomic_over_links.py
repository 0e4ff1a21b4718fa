"""Calls over links that are all or nothing, on their callers' threads, and what comes between."""

import os
import random
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import numpy as np

import allhands as ah
from allhands.engine.direct_calls import DirectCalls
from allhands.membership.resilient import ResilientSubmitter
from allhands.runtime.loop_thread import LoopThread
from programs.counts import count_calls
from programs.protocol import failure, hear, tell, until


def _join(*, verify: bool = False) -> tuple[int, int]:
    ah.init_process_group(backend="socket", timeout=30, retryable=True, verify=verify)
    x = np.zeros(3)
    for _ in range(5):
        ah.all_reduce(x)
        for root in range(ah.get_world_size()):
            ah.broadcast(x, root)
            ah.reduce(x, root)
    return ah.get_rank(), ah.get_world_size()


def _submitter() -> Any:
    return ah.default_group().submitter


def _check_all_reduce(me: int, size: int, number: int, begins: bool) -> bool:
    x = np.full(5, me + number)
    work = ah.all_reduce(x, async_op=begins)
    _wait(work)
    return bool((x == size * (size - 1) // 2 + size * number).all())


def _check_broadcast(me: int, size: int, number: int, begins: bool) -> bool:
    x = np.full(2000, 1000 * me + number)
    _wait(ah.broadcast(x, number % size, async_op=begins))
    return bool((x == 1000 * (number % size) + number).all())


def _check_reduce(me: int, size: int, number: int, begins: bool) -> bool:
    x, root = np.full(5, me + number), number % size
    _wait(ah.reduce(x, root, async_op=begins))
    return bool(
        (x == (size * (size - 1) // 2 + size * number if me == root else me + number)).all()
    )


def _check_all_gather(me: int, size: int, number: int, begins: bool) -> bool:
    x, y = np.full(5, me + number), np.empty((size, 5), np.int64)
    _wait(ah.all_gather_into_tensor(y, x, async_op=begins))
    return bool((y == np.arange(number, number + size).reshape(size, 1)).all())


def _check_barrier(me: int, size: int, number: int, begins: bool) -> bool:
    _wait(ah.barrier(async_op=begins))
    return True


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


_CHECKS = (_check_all_reduce, _check_broadcast, _check_reduce, _check_all_gather, _check_barrier)


def mix_calls(seed: int, calls: int, verify: bool) -> None:
    """Make calls that each rank takes another way, after a pause or not, in an order drawn alike.

    What is begun goes through the queue. Barriers behind calls are declined by the core at times.
    """
    barriers = count_calls(ResilientSubmitter, "_begin_confirmation")
    me, size = _join(verify=verify)
    alike, own, wrong = random.Random(seed), random.Random(seed + me), []
    barriers.clear()
    queued, handed = (
        count_calls(ResilientSubmitter, "_attempt"),
        count_calls(DirectCalls, "hand_over"),
    )
    prepare = DirectCalls.prepare

    def decline_at_times(self: DirectCalls) -> bool:
        return own.random() < 0.7 and prepare(self)

    DirectCalls.prepare = decline_at_times  # type: ignore[method-assign]
    for number in range(calls):
        if own.random() < 0.05:
            time.sleep(0.005)
        if own.random() < 0.2:  # the core asks whether it may go on
            _submitter().executor.turns += 1
        check = alike.choice(_CHECKS)
        if not check(me, size, number, own.random() < 0.1):
            wrong.append((check.__name__, number))
    ended = _submitter().order.latest_sequence
    told = {"queued": len(queued), "handed": len(handed), "confirmed": len(barriers)}
    tell("done", wrong=wrong, ended=ended, calls=calls, **told)
    ah.destroy_process_group()


def queue_behind_a_call() -> None:
    """Queue a call in one thread while another waits in one, to which a rank comes late."""
    me, _ = _join()
    x, y = np.full(3, 1.0), np.full(3, 10.0)
    if me == 0:
        core = _submitter()._callers_calls.core
        first = threading.Thread(target=ah.all_reduce, args=(x,))
        first.start()
        until(_is_under_way)
        work = ah.all_reduce(y, async_op=True, label="second")
        assert work is not None
        until(lambda: core.is_awaited or not core.is_busy)
        tell("queued", was_open=not work.is_completed())
        first.join()
        work.wait()
    else:
        hear()
        ah.all_reduce(x)
        ah.all_reduce(y, label="second")
    z = np.full(3, 100.0)
    ah.all_reduce(z)
    tell("done", sums=[float(one[0]) for one in (x, y, z)])
    ah.destroy_process_group()


def interrupt_a_call(count: int) -> None:
    """Ctrl-C on rank 0 in a call to which the other has not come."""
    me, _ = _join()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = np.full(count, me + 1.0)
    told: dict[str, Any] = {}
    if me == 0:
        threading.Thread(target=_interrupt_next).start()
        try:
            ah.all_reduce(x)
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt"}
    else:
        hear()
        told = failure(lambda: ah.all_reduce(x))
    tell("interrupted", x=np.unique(x).tolist(), **told)
    y = np.full(3, 1.0)
    ah.all_reduce(y)
    ah.all_reduce(y)
    tell("done", y=y.tolist())
    ah.destroy_process_group()


def _interrupt_next() -> None:
    """Interrupt the next call, once it has begun."""
    until(_is_under_way)
    os.kill(os.getpid(), signal.SIGINT)


def _is_under_way() -> bool:
    """Say whether the loop has a call: what the core does not end, or has declined."""
    return bool(_submitter().engine.progress.operation)


def count_delays(calls: int) -> None:
    """Count in each call that the core makes how often the handlers of signals are put off."""
    _join()
    delays, counts = count_calls(LoopThread, "delay_signals"), []
    others = [count_calls(ResilientSubmitter, name) for name in ("_attempt", "_begin_confirmation")]
    x = np.full(3, 1.0)
    for _ in range(calls):
        before = [len(seen) for seen in others]
        delays.clear()
        ah.all_reduce(x)
        if before == [len(seen) for seen in others]:
            counts.append(len(delays))
    tell("done", usual=sorted(counts)[len(counts) // 2])
    ah.destroy_process_group()


_CALLS = 12
"""Some of which the core may decline while the loop's thread is busy."""


def interrupt_at(operation: str, moment: str, kind: str, which: int) -> None:
    """Interrupt rank 0 as a function of the engine is entered or returns for the n-th time.

    The other rank comes late, so that calls are handed over: of an all_reduce the call itself, of a
    broadcast from rank 0 the barrier behind it.
    """
    me, _ = _join()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = 0

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        if event == kind and frame.f_code.co_name == moment:
            seen += 1
            if seen == which:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)

    outcomes, wrong, result = [], [], 3.0 if operation == "all_reduce" else 1.0
    for number in range(_CALLS):
        x = np.full(50, me + 1.0)
        if me == 1:
            time.sleep(0.01)
        elif number == 1:
            sys.setprofile(interrupt)
        try:
            if operation == "all_reduce":
                ah.all_reduce(x)
            else:
                ah.broadcast(x, 0)
        except KeyboardInterrupt:
            outcomes.append("interrupted")
        except ah.AllhandsError as error:
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("done")
        if not (x == x[0]).all() or x[0] not in (me + 1.0, result):
            wrong.append(x.tolist())
        outcomes[-1] += f" {x[0] == result}"
    sys.setprofile(None)
    tell("done", outcomes=outcomes, wrong=wrong, seen=seen)
    ah.destroy_process_group()


def pass_on_a_message(rounds: int) -> None:
    """Interrupt rank 0 as a message is passed on that came before what its call waits for."""
    me, _ = _join()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen, wrong = 0, []

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal seen
        if event == "call" and frame.f_code is DirectCalls.deliver.__code__:
            seen += 1
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    for number in range(rounds):
        x, y = np.full(3, 1.0), np.zeros(3)
        ah.barrier()
        try:
            if me == 1:
                ah.send(np.full(3, float(number)), 0)
            else:
                sys.setprofile(interrupt)
            ah.all_reduce(x)
        except (KeyboardInterrupt, ah.AllhandsError):
            pass
        finally:
            sys.setprofile(None)
        if me == 0:
            ah.recv(y, 1)
            if not (y == number).all():
                wrong.append(y.tolist())
    tell("done", seen=seen, wrong=wrong)
    ah.destroy_process_group()


def wait_in_a_handler(attempts: int) -> None:
    """Have the handler of a signal leave the group, once it comes in a call that holds the loop."""
    me, _ = _join()
    core: Any = sys.modules["allhands._native"]
    errors: list[str] = []

    def leave(_number: int, _frame: object) -> None:
        if core.is_in_gate():  # else it would be done
            try:
                ah.destroy_process_group()
            except RuntimeError as error:
                errors.append(str(error))

    signal.signal(signal.SIGALRM, leave)
    wrong = 0
    for _ in range(attempts):
        x = np.full(3, 1.0)
        ah.barrier()
        if me == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            time.sleep(0.01)
        ah.all_reduce(x)
        wrong += not (x == 2.0).all()
    signal.setitimer(signal.ITIMER_REAL, 0)
    tell("done", errors=errors, wrong=wrong)
    ah.destroy_process_group()
