"""Links between ranks, broken or late in the middle of a message."""

import os
import signal

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell


def stop_within_a_message(links: str, victim: int) -> None:
    ah.init_process_group(timeout=40, backend=links)
    tell("here", pid=os.getpid())
    x = np.ones(16 << 20, np.float32)  # 64 MiB: more than the network holds
    if ah.get_rank() == victim:
        ah.barrier()
        hear()
        # It stops itself: the first part of the message may go, not the last.
        if victim == 1:
            ah.irecv(x, 0)
        else:
            ah.isend(x, 1)
        tell("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        ah.barrier()
        tell("ready")
        tell("failed", **failure(lambda: ah.send(x, 1) if victim else ah.recv(x, 0)))
        tell("next", **failure(lambda: ah.all_reduce(x)))


def time_out_within_a_call(links: str) -> None:
    ah.init_process_group(timeout=40, backend=links)
    tell("here", pid=os.getpid())
    x = np.ones(16 << 20, np.float32)
    ah.all_reduce(x)
    if ah.get_rank() == 1:
        hear()
        y = np.ones(16 << 20, np.float32)
        tell("late", **failure(lambda: ah.all_reduce(y, timeout=0.5)))
    else:
        y = np.ones(16 << 20, np.float32)
        tell("late", **failure(lambda: ah.all_reduce(y, timeout=0.5)))
        y[:] = 7.0  # it is this rank's own again
    ah.all_reduce(x)
    tell("right", value=float(x.min()), other=float(x.max()))
    ah.destroy_process_group()
