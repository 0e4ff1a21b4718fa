"""Calls and messages over links that callers' threads carry out, and what may come between."""

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from allhands.api.default_world import default
from allhands.engine.links.native_calls import NativeCall
from programs.protocol import CheckedLabel, failure, hear, tell

LABEL = CheckedLabel("through the queue")
"""Sends calls by `NativeCall`: see `engine.direct_calls`."""


def _replace(run: Callable[[NativeCall, Any, float], bool]) -> list[int]:
    """Have every call in the core run so; return a list of an entry for each."""
    seen: list[int] = []

    def note(call: NativeCall, is_interrupted: Any, seconds: float) -> bool:
        seen.append(1)
        return run(call, is_interrupted, seconds)

    setattr(NativeCall, "run", note)  # noqa: B010
    return seen


def _warm_up(length: int) -> np.ndarray[Any, Any]:
    """Make calls until all links are there and lent."""
    x = np.ones(length, np.float32)
    for _ in range(5):
        ah.all_reduce(x, label=LABEL)
        ah.broadcast(x, 0, label=LABEL)
        ah.barrier()
    return x


_run = NativeCall.run


def die_within_a_call(length: int) -> None:
    """Rank 1 sends what it has to send at first, and is killed before it has heard anything."""
    ah.init_process_group(timeout=40, backend="socket")
    x = _warm_up(length)
    victim = ah.get_rank() == 1

    def run(call: NativeCall, is_interrupted: Any, seconds: float) -> bool:
        if not victim or len(seen) < 20:
            return _run(call, is_interrupted, seconds)
        _run(call, is_interrupted, 0.0)
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    def forever() -> None:
        while True:
            ah.all_reduce(x, label=LABEL)

    seen = _replace(run)
    tell("failed", **failure(forever), seen=len(seen))
    tell("next", **failure(lambda: ah.all_reduce(x)))
    os._exit(0)


def miss_a_call() -> None:
    """Rank 1 comes to a call after its deadline."""
    ah.init_process_group(timeout=40, backend="socket")
    x = _warm_up(8)
    if ah.get_rank() == 1:
        hear()
    told = failure(lambda: ah.all_reduce(x, timeout=0.5, label="step 7"))
    tell("late", **told)
    y = np.full(3, ah.get_rank() + 1.0)
    ah.all_reduce(y)
    tell("next", y=y.tolist())
    ah.destroy_process_group()


def differ_in_a_call() -> None:
    """Rank 1 calls with one element more."""
    ah.init_process_group(timeout=40, backend="socket")
    _warm_up(8)
    x = np.ones(8 + (ah.get_rank() == 1), np.float32)
    told = failure(lambda: ah.all_reduce(x))
    tell("unlike", **told, kept=bool((x == 1).all()))
    y = np.full(3, ah.get_rank() + 1.0)
    ah.all_reduce(y)
    tell("next", y=y.tolist())
    ah.destroy_process_group()


def die_within_messages() -> None:
    """Ranks send back and forth for ever."""
    ah.init_process_group(timeout=40, backend="socket")
    x = np.ones(8, np.float32)
    other = 1 - ah.get_rank()

    def exchange() -> None:
        for first in (0, 1):
            if ah.get_rank() == first:
                ah.send(x, other)
            else:
                ah.recv(x, other)

    def forever() -> None:
        while True:
            exchange()

    for _ in range(50):
        exchange()
    direct = default.group.order.direct_p2p
    assert direct is not None
    tell("running", direct=len(direct.records(100)))
    tell("failed", **failure(forever))
    os._exit(0)


def hand_over_at_any_time(count: int, verify: bool) -> None:
    """Ranks stop their calls in the core after other times, and go on."""
    ah.init_process_group(timeout=40, backend="socket", verify=verify)
    rank, size = ah.get_rank(), ah.get_world_size()
    _warm_up(8)
    rng = np.random.default_rng(rank)
    handed = 0

    def run(call: NativeCall, is_interrupted: Any, seconds: float) -> bool:
        nonlocal handed
        ended = _run(call, is_interrupted, float(rng.choice([0.0, 2e-5, 2e-4, 2e-3])))
        handed += not ended
        return ended

    seen = _replace(run)
    wrong = []
    for number in range(count):
        dtype = ("int32", "float32", "complex64", "float16")[number % 4]
        length = (1, 7, 1000, 30_000)[number // 4 % 4]
        base = (np.arange(length) % 5).astype(dtype)
        x = base + np.asarray(rank, dtype)
        ah.all_reduce(x, label=LABEL)
        wanted = base * np.asarray(size, dtype) + np.asarray(size * (size - 1) // 2, dtype)
        y = np.full(length, rank, dtype)
        ah.broadcast(y, number % size, label=LABEL)
        every = np.zeros((size, length), dtype)
        ah.all_gather_into_tensor(every, np.full(length, rank, dtype), label=LABEL)
        right = (
            (x == wanted).all()
            and (y == number % size).all()
            and (every == np.arange(size)[:, None]).all()
        )
        if not right:
            wrong.append(number)
    tell("done", wrong=wrong, handed=handed, seen=len(seen))
    ah.destroy_process_group()
