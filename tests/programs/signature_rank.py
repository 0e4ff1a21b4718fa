"""A rank of the benchmark of signatures: reads operation, bytes and count; prints seconds a call.

This is a script, and imports nothing of this tree: the package is that of the build on its path.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np

import allhands as ah


def make_call(operation: str, nbytes: int) -> Callable[[], object]:
    x = np.ones(nbytes // 4, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: ah.all_reduce(x, ah.ReduceOp.MAX),
        "broadcast": lambda: ah.broadcast(x),
        "barrier": ah.barrier,
    }
    return calls[operation]


def serve() -> None:
    ah.init_process_group(timeout=60)
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for line in sys.stdin:
        operation, nbytes, count = json.loads(line)
        key = operation, nbytes
        call = calls[key] if key in calls else calls.setdefault(key, make_call(*key))
        ah.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            call()
        print((time.perf_counter() - begun) / count, flush=True)


if __name__ == "__main__":
    serve()
