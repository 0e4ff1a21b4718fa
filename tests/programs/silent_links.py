"""Ranks with a broken pair, while both ranks of the pair reach the coordinator."""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

import allhands as ah
from programs.protocol import failure, hear, tell


class _Notes(logging.Handler):
    """Reports each warning of silent links, and the count."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.begun = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        facts = getattr(record, "allhands", {})
        if str(facts.get("event", "")).startswith("silent links"):
            self.count += 1
            tell(
                "warned",
                event=facts["event"],
                pairs=facts["pairs"],
                text=record.getMessage(),
                seconds=time.monotonic() - self.begun,
            )


def _listen() -> _Notes:
    notes = _Notes()
    logging.getLogger("allhands").addHandler(notes)
    return notes


def _all_reduce(x: npt.NDArray[Any]) -> None:
    ah.all_reduce(x)


def _all_to_all(x: npt.NDArray[Any]) -> None:
    ah.all_to_all_single(np.ones_like(x), x)
    ah.barrier()


def _asynchronous(x: npt.NDArray[Any]) -> None:
    ah.all_reduce(x, async_op=True).wait()


def _broadcast(x: npt.NDArray[Any]) -> None:
    ah.broadcast(x, src=1)
    ah.barrier()


def _message(x: npt.NDArray[Any]) -> None:
    if ah.get_rank() == 1:
        ah.recv(x, src=2)
    if ah.get_rank() == 2:
        ah.send(x, dst=1)
    ah.barrier()


def _any_source(x: npt.NDArray[Any]) -> None:
    if ah.get_rank() == 1:
        ah.recv(x, src=None)
    if ah.get_rank() == 2:
        ah.send(x, dst=1)
    ah.barrier()


CALLS: dict[str, Callable[[npt.NDArray[Any]], None]] = {
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "asynchronous": _asynchronous,
    "broadcast": _broadcast,
    "message": _message,
    "any_source": _any_source,
}


def call_twice(window: float, call: str, length: int) -> None:
    """Make a call, then a second on command; report the end of the second."""
    notes = _listen()
    ah.init_process_group(timeout=50, heartbeat_window=window)
    x = np.ones(length)
    CALLS[call](x)
    tell("ready", pid=os.getpid())
    hear()
    notes.begun = time.monotonic()
    failed = failure(lambda: CALLS[call](x))
    tell("ended", warned=notes.count, **failed)
    hear()
    os._exit(0)


def hold_the_interpreter() -> None:
    notes = _listen()
    ah.init_process_group(timeout=50)
    x, y = np.ones(3), np.ones(3)
    ah.all_to_all_single(y, x)
    if ah.get_rank() == 2:
        ctypes.PyDLL(None).usleep(3_500_000)  # with the GIL
    ah.all_to_all_single(y, x)
    tell("ended", warned=notes.count)
    ah.destroy_process_group()


def call_over_slow_links() -> None:
    notes = _listen()
    ah.init_process_group(timeout=50, heartbeat_window=2)
    x = np.ones(1 << 18)
    ah.barrier()
    tell("ready")
    hear()
    ah.all_reduce(x)
    ah.barrier()
    tell("ended", warned=notes.count)
    hear()
    os._exit(0)


def run_one_call_ahead() -> None:
    _listen()
    ah.init_process_group(timeout=50)
    x = np.ones(3)
    for root in range(3):
        ah.broadcast(x, src=root)
    tell("ready")
    hear()

    def call_two() -> None:
        ah.broadcast(x, src=2, timeout=2.5)
        ah.all_reduce(x, timeout=2.5)

    tell("ended", **failure(call_two))
    hear()
    os._exit(0)


def call_once_a_link_is_cut(timeout: float) -> None:
    """Report the ends of all connections; call after some are cut."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    pair = ah.new_group([0, 1])
    x = np.ones(1 << 18)
    for _ in range(3):
        ah.all_reduce(x)
    ends = [
        (one.laddr.port, one.raddr.port)
        for one in psutil.Process().net_connections("tcp")
        if one.status == "ESTABLISHED"
    ]
    tell("linked", ends=ends)
    hear()
    tell("failed", **failure(lambda: ah.all_reduce(x, timeout=timeout)))
    if me != 2:
        y = np.ones(3)
        tell("pair", **failure(lambda: ah.all_reduce(y, group=pair)))
    hear()
    os._exit(0)
