"""Silent ranks, ranks with a fault, and the news received by their peers."""

import ctypes
import logging
import os
import time

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell


class _Warnings(logging.Handler):
    """Log handler with a report of each warning about silent ranks."""

    def emit(self, record: logging.LogRecord) -> None:
        told = getattr(record, "allhands", {})
        if told.get("event") == "stall" and told["states"]:
            tell("named", states=told["states"], text=record.getMessage())


def read_a_large_pickle() -> None:
    # Keeps the interpreter until there is something to read.
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)


def call_once_more(is_first: bool) -> None:
    """Make a first or second call on command; one rank holds the interpreter."""
    logging.getLogger("allhands").addHandler(_Warnings())
    ah.init_process_group(timeout=100)
    x = np.ones(3)
    if not is_first:
        ah.all_reduce(x)
    tell("ready")
    order = hear()
    if order == "hold":
        tell("holding")
        read_a_large_pickle()
    x[:] = ah.get_rank()
    ah.all_reduce(x)
    tell("sum", right=bool((x == 3).all()))
    hear()
    ah.barrier()
    tell("done")
    hear()
    os._exit(0)


def suffer(window: float, length: int, timeout: float) -> None:
    """Let rank 2 obey the test during a call of the remaining ranks."""
    ah.init_process_group(timeout=30, heartbeat_window=window or None)
    x = np.ones(length)
    pair = ah.new_group([1, 2])
    ah.all_reduce(x)
    tell("ready", pid=os.getpid())
    order = hear()
    if ah.get_rank() == 2:
        if order == "exit":
            os._exit(3)
        if order == "sleep":
            time.sleep(3600)
        if order == "skip":
            # The others are in the call that this rank leaves out.
            failure(lambda: ah.barrier(group=pair, timeout=20))
        if order == "raise":
            raise LookupError("no such file as this")
        if order == "leave":
            ah.destroy_process_group()
            hear()
    tell("failed", **failure(lambda: ah.all_reduce(x, timeout=timeout)))
    hear()
    os._exit(0)


def come_too_late(length: int) -> None:
    ah.init_process_group(timeout=30)
    x = np.ones(length)
    ah.all_reduce(x)
    tell("ready")
    hear()
    # The late one's deadline passes when the coordinator is asked by nobody else any more.
    timeout = 8 if ah.get_rank() == 2 else 1
    tell("failed", **failure(lambda: ah.all_reduce(x, timeout=timeout)))
    hear()
    os._exit(0)
