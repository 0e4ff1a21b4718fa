"""Messages over shared memory: late, mismatched, cancelled, or with a killed peer."""

import os
import random
import signal
import sys
import time

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell


def array(kind: str, length: int, value: int = 0) -> npt.NDArray[np.uint8]:
    """Return an array of bytes of one value, in shared memory if `kind` says so."""
    x = ah.empty(length, np.uint8) if kind == "shared" else np.empty(length, np.uint8)
    x[:] = value
    return x


def share_memory() -> None:
    """Find the way; from here on messages of both ranks go over shared memory."""
    me = ah.get_rank()
    if me < 2:
        ah.send(np.ones(1), 1) if me == 0 else ah.recv(np.ones(1), 0)
    ah.barrier()


def give_up_a_late_message(asynchronous: bool, kind: str, length: int) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()

    def late(sync, started):
        if asynchronous:
            return failure(lambda: started(timeout=0.05, label="mine").wait())
        return failure(lambda: sync(timeout=0.05, label="mine"))

    x, y = array(kind, length, 1 + me), array(kind, length, 9)
    tell(
        "recv",
        **late(
            lambda **m: ah.recv(y, 1 - me, tag=4, **m), lambda **m: ah.irecv(y, 1 - me, tag=4, **m)
        ),
    )
    ah.barrier()
    if length > 8 and me == 0:
        tell("send", **late(lambda **m: ah.send(x, 1, **m), lambda **m: ah.isend(x, 1, **m)))
        x[:] = 77  # it is ours again: nobody may ever get that
    ah.barrier()
    if me == 0:
        x[:] = 5
        ah.send(x, 1)
    else:
        ah.recv(y, 0)
    tell("next", right=bool((y == (5 if me else 9)).all()))
    ah.destroy_process_group()


def exchange_unlike_messages(length: int, kind: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    for number, (dtype, size) in enumerate([(np.uint8, length + 8), (np.int64, length // 8)]):
        x = array(kind, length, 1)
        y = np.full(size, 9, dtype)
        try:
            ah.send(x, 1, tag=number) if me == 0 else ah.recv(y, 0, tag=number)
            tell("ended")
        except ah.CollectiveMismatch as error:
            table = {str(rank): said for rank, said in error.table.items()}
            tell("refused", table=table, kept=bool((y == 9).all()))
        y = array(kind, length, 9)
        ah.send(x, 1, tag=number) if me == 0 else ah.recv(y, 0, tag=number)
        tell("next", right=bool((y == (1 if me else 9)).all()))
    ah.destroy_process_group()


def exchange_forever(kind: str, length: int, call: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    x = array(kind, length, 1)
    tell("running")

    def forever():
        while True:
            (ah.send if (call == "send") == (me == 0) else ah.recv)(x, 1 - me)

    if me == 1:
        forever()
    tell("failed", **failure(forever))
    tell("next", **failure(lambda: ah.isend(x, 1).wait()))
    ah.destroy_process_group()


def cancel_a_message(kind: str, length: int) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    x, y, z = array(kind, length, 1), array(kind, length, 9), array("plain", length)
    if me == 0:
        work = ah.irecv(y, 1)
        work.cancel()
        tell("cancelled", **failure(work.wait))
        ah.barrier()
        ah.barrier()
        ah.recv(z, 1)
        tell("done", right=bool((z == 1).all() and (y == 9).all()))
    else:
        ah.barrier()  # nothing of ours may be on its way into y before it was given up
        if length > 8:
            work = ah.isend(array(kind, length, 3), 0)
            work.cancel()
            tell("cancelled", **failure(work.wait))
        ah.barrier()
        ah.send(x, 0)
        tell("done", right=True)
    ah.destroy_process_group()


def cancel_on_both_sides(kind: str, length: int) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    gone, kept, got = array(kind, length), array(kind, length), array("plain", length)
    said, draw = [], random.Random(me)
    for _turn in range(300):
        gone[:] = 3
        kept[:] = 9
        ah.barrier()
        work = ah.irecv(kept, 1) if me == 0 else ah.isend(gone, 0)
        until = time.perf_counter() + draw.random() * 3e-4
        while time.perf_counter() < until:
            pass
        work.cancel()
        told = failure(work.wait)
        gone[:] = 7  # it is ours again: nobody may ever get that
        if me == 0:
            value = 3 if told["error"] is None else 9
            undefined = told["error"] is not None and told["intact"] is False
            said.append(undefined or bool((kept == value).all()))
        ah.barrier()
        ah.recv(got, 1) if me == 0 else ah.send(array(kind, length, 1), 0)
        if me == 0:
            said.append(bool((got == 1).all()))
    tell("done", right=all(said))
    ah.destroy_process_group()


def interrupt_a_message(call: str) -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    x = array("plain", 6 << 20 if call == "send" else 1_300_000, me)
    if me == 0:
        try:
            tell("waiting")
            ah.irecv(x, 1).wait() if call == "irecv" else getattr(ah, call)(x, 1)
            tell("ended")
        except KeyboardInterrupt:
            tell("interrupted")
        x[:] = 4
    ah.barrier()
    if me == 0:
        ah.send(x, 1) if call == "send" else None
    elif call == "send":
        ah.recv(x, 0)
        assert (x == 4).all()
    tell("done")
    ah.destroy_process_group()


def interrupt_a_message_once_started(call: str) -> None:
    """Interrupt a message after its start, before anybody waits for it."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    x = array("plain", 6 << 20, me)

    def interrupt(frame, event, _argument):
        if event == "return" and frame.f_code.co_name == "start_p2p":
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    if me == 0:
        sys.setprofile(interrupt)
        try:
            ah.send(x, 1) if call == "send" else ah.recv(x, 1)
            tell("ended")
        except KeyboardInterrupt:
            tell("interrupted")
        x[:] = 4
    ah.barrier()
    if (me == 0) == (call == "send"):
        ah.send(array("plain", 6 << 20, 5), 1 - me)
    else:
        y = array("plain", 6 << 20)
        ah.recv(y, 1 - me)
        assert (y == 5).all()
    assert me or (x == 4).all()
    tell("done")
    ah.destroy_process_group()


def message_in_an_unfinished_group() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    if me == 0:
        group = ah.new_group()
        tell("early", **failure(lambda: ah.send(np.ones(3), 1, group, timeout=0.1)))
        work = ah.isend(np.full(3, 5.0), 1, group)
        tell("sent")
        work.wait()
    else:
        hear()
        group = ah.new_group()
        x = np.zeros(3)
        ah.recv(x, 0, group)
        tell("got", x=x.tolist())
    ah.destroy_process_group()


def message_in_a_destroyed_group() -> None:
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    share_memory()
    pair = ah.new_group([0, 1])
    x = np.full(3, float(me))
    ah.send(x, 1, pair) if me == 0 else ah.recv(x, 0, pair)
    ah.barrier(pair)
    ah.destroy_process_group(pair)
    for act in (ah.send, ah.recv, lambda *all: ah.isend(*all).wait()):
        tell("refused", **failure(lambda: act(x, 1 - me, pair)))
    ah.barrier()
    ah.destroy_process_group()
