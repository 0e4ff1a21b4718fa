"""Plain calls of two ranks that the native core takes."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from programs.protocol import hear, tell, until

SECONDS = 0.05


def exchange_messages() -> None:
    """Send each way of giving the rank, by the core and by the function, to each of both."""
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    send: Any = ah.send
    recv: Any = ah.recv
    wrong = []
    world = ah.default_group()
    for number, (out, into) in enumerate(
        (a, b) for a in (send, send.__wrapped__) for b in (recv, recv.__wrapped__)
    ):
        for args, keywords in (
            ((1 - me,), {}),
            ((1 - me, None, 7), {}),
            ((1 - me,), {"group": world, "tag": 3}),
            ((), {("group_dst", "group_src")[me]: 1 - me}),
            ((), {("dst", "src")[me]: 1 - me, "label": "one"}),
        ):
            x = np.full(4, float(number))
            if me == 0:
                out(x, *args, **keywords)
            else:
                y = np.zeros(4)
                came_from = into(y, *args, **keywords)
                if came_from != 0 or (x != y).any():
                    wrong.append([number, str(args), str(keywords), came_from])
    tell("done", wrong=wrong)
    ah.destroy_process_group()


def fail(call: Callable[[], object]) -> dict[str, Any]:
    try:
        call()
    except Exception as error:
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return {
            "error": type(error).__name__,
            "frames": [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)],
            "behind": [] if behind is None else [repr(behind)],
        }
    raise AssertionError("the call did not fail")


def fail_in_the_core() -> None:
    """Make calls on rank 0, for which rank 1 does not come."""
    ah.init_process_group(timeout=30)
    ah.barrier()
    x, failed = np.ones(3), {}
    groups = [ah.new_group([0, 1]) for _ in range(4)]
    for group in groups:
        ah.barrier(group)
    if ah.get_rank() == 0:  # messages of a group go by the core from the first one on
        ah.recv(x, 1, groups[2])
    else:
        ah.send(x, 0, groups[2])
    if ah.get_rank() == 0:
        a, b, c, d = groups
        failed = {
            "barrier": fail(lambda: ah.barrier(a, timeout=SECONDS)),
            "all_reduce": fail(lambda: ah.all_reduce(x, group=b, timeout=SECONDS)),
            "recv": fail(lambda: ah.recv(x, 1, c, timeout=SECONDS)),
        }
        d.timeout = SECONDS
        failed["all_gather_v"] = fail(lambda: ah.all_gather_v(x, d))
    tell("done", failed=failed)
    hear()
    ah.destroy_process_group()


def interrupt_a_barrier() -> None:
    ah.init_process_group(timeout=30)
    ah.barrier()

    def interrupt() -> None:
        ah.barrier()

    direct: Any = ah.default_group().order.direct_calls
    main = threading.get_ident()

    def stop() -> None:
        until(lambda: (inside := direct.inline_call()) is not None and inside[0] == main)
        os.kill(os.getpid(), signal.SIGINT)

    if ah.get_rank() == 0:
        thread = threading.Thread(target=stop)
        thread.start()
        try:
            interrupt()
        except KeyboardInterrupt as error:
            thread.join()
            walked = traceback.walk_tb(error.__traceback__)
            tell("interrupted", frames=[frame.f_code.co_name for frame, _ in walked])
    hear()
    ah.destroy_process_group()
