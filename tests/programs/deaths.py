"""Ranks that die, stop, lag or leave, and the observing ranks."""

import atexit
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell


def _leave() -> None:
    ah.destroy_process_group()
    sys.exit()


def _raise() -> None:
    raise LookupError("no such file as this")


LEAVING: dict[str, Callable[[], None]] = {
    "left": _leave,
    "raised": _raise,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
"""How a rank goes, by what is said of it."""


def call_forever(length: int, window: float | None = None) -> None:
    ah.init_process_group(timeout=40, heartbeat_window=window)
    x = np.ones(length, np.float32)
    ah.all_reduce(x)
    tell("running", pid=os.getpid())

    def forever():
        while True:
            ah.all_reduce(x)

    told = failure(forever)
    tell("failed", **told)
    hear()
    os._exit(0)


def call_late() -> None:
    ah.init_process_group(timeout=20)
    if ah.get_rank() == 1:
        hear()
    x = np.full(5, 1.0)
    if ah.get_rank() != 1:
        tell("late", **failure(lambda: ah.all_reduce(x, timeout=1, label="step 7")))
        hear()
    else:
        tell("late", **failure(lambda: ah.all_reduce(x, timeout=0.5, label="step 7")))
    y = np.full(5, ah.get_rank() + 1.0)
    ah.all_reduce(y)
    tell("sum", values=y.tolist())
    ah.destroy_process_group()


def interrupt_a_barrier() -> None:
    ah.init_process_group(timeout=50)
    if ah.get_rank() == 0:
        try:
            tell("blocked", pid=os.getpid())
            ah.barrier()
        except KeyboardInterrupt:
            tell("interrupted")
            os._exit(3)
    hear()


def leave_by_an_exception() -> None:
    ah.init_process_group(timeout=20)
    ah.barrier()
    if ah.get_rank() == 1:
        raise LookupError("no such file as this")
    tell("failed", **failure(ah.barrier))


def send_and_leave() -> None:
    ah.init_process_group(timeout=20)
    if ah.get_rank() == 0:
        for size in (3, 3_000_000):
            ah.isend(np.full(size, size, np.int32), 1)
        tell("sent")
        ah.destroy_process_group()
        tell("left")
    else:
        hear()
        for size in (3, 3_000_000):
            x = np.zeros(size, np.int32)
            assert ah.recv(x, 0) == 0
            assert (x == size).all()
        tell("received")
        tell("gone", **failure(lambda: ah.recv(np.zeros(1), 0)))


def give_up_and_leave() -> None:
    ah.init_process_group(timeout=40)
    if ah.get_rank() == 0:
        ah.all_reduce(np.ones(3), timeout=0.5)
    hear()
    tell("failed", **failure(lambda: ah.all_reduce(np.ones(3))))


def follow_the_first_to_leave(going: str) -> None:
    heard = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record):
            if "rank 1 " in record.getMessage() and "is lost" in record.getMessage():
                heard.set()

    logging.getLogger("allhands").addHandler(Ear())
    ah.init_process_group(timeout=40)
    ah.barrier()
    tell("ready")
    if ah.get_rank() == 2:
        hear()
        LEAVING[going]()
    if ah.get_rank() == 1:
        failure(ah.barrier)
        os._exit(1)
    assert heard.wait(30)
    tell("blocked", **failure(ah.barrier))
    tell("message", **failure(lambda: ah.recv(np.ones(3), 2)))
    tell("made since", **failure(lambda: ah.new_group([0, 1, 2]).barrier().wait()))


def end_slowly(way: str) -> None:
    """Rank 1 goes, and looks before its end whether rank 0, which fails of that, has ended."""
    first: list[int] = []

    def look() -> None:
        poll = select.poll()
        poll.register(os.pidfd_open(first[0]), select.POLLIN)
        tell("looked", is_gone=bool(poll.poll(500)))

    is_second = os.environ["RANK"] == "1"
    if is_second:
        atexit.register(look)  # before the world has its own: so it is called after that
    ah.init_process_group(timeout=40)
    pids = [np.zeros(1, np.int64) for _ in range(2)]
    ah.all_gather(pids, np.array([os.getpid()]))
    first.append(int(pids[0][0]))
    if is_second:
        LEAVING[way]()
    ah.barrier()
