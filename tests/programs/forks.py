"""Forked children of ranks, of stores and of former ranks."""

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import find_coordinator
from allhands.testing import run_threads
from programs.protocol import failure, tell, until

HANG_SECONDS = 40


class Forked:
    """A forked child: runs `body`, reports the result, and ends as interpreters end."""

    def __init__(self, body: Callable[..., Any], *arguments: Any) -> None:
        self.reading, writing = os.pipe()
        in_thread = threading.current_thread() is not threading.main_thread()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(HANG_SECONDS)
        gc.enable()
        gc.collect()
        try:
            said = body(*arguments)
        except Exception:
            said = {"raised": traceback.format_exc()}
        gc.collect()
        os.write(writing, json.dumps(said).encode())
        os.close(writing)
        if in_thread:
            os._exit(0)
        sys.exit(0)

    def ended(self) -> tuple[int, Any]:
        """Wait for the child's end; return status and report."""
        with open(self.reading, "rb") as told:
            said = told.read()
        status = os.waitpid(self.pid, 0)[1]
        return status, json.loads(said or "null")


def world(path: str, rank: int, size: int) -> float:
    """Be a rank of a world with a rendezvous in a file; return the sum of all ranks."""
    ah.init_process_group(f"file://{path}", rank=rank, world_size=size, timeout=20)
    x = np.array([rank + 1.0])
    ah.all_reduce(x)
    ah.destroy_process_group()
    return float(x[0])


def children_of(path: str) -> list[tuple[int, Any]]:
    """Let two children make a world; return the exit statuses."""
    children = [Forked(world, path, rank, 2) for rank in range(2)]
    return [child.ended() for child in children]


def fork_after_a_world() -> None:
    folder = tempfile.mkdtemp()
    first = world(folder + "/first", 0, 1)
    tell("children", ended=children_of(folder + "/second"), first=first)
    tell("again", first=world(folder + "/third", 0, 1))


def fork_within_a_world() -> None:
    ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
    x = np.ones(3)
    ah.all_reduce(x)
    ended = children_of(tempfile.mkdtemp() + "/store")
    ah.all_reduce(x)
    tell("children", ended=ended, parents=list(x))
    ah.destroy_process_group()


def fork_within_a_child() -> None:
    folder = tempfile.mkdtemp()

    def generation(depth):
        mine = world(f"{folder}/{depth}", 0, 1)
        below = Forked(generation, depth - 1).ended() if depth else None
        return [mine, below, world(f"{folder}/{depth}-again", 0, 1)]

    tell("told", all=generation(2))


def fork_threads_of_ranks() -> None:
    folder = tempfile.mkdtemp()

    def body(rank):
        x = np.ones(2)
        ah.all_reduce(x)
        ended = children_of(folder + "/inside") if rank == 0 else None
        ah.all_reduce(x)
        return [list(x), ended]

    inside = run_threads(2)(body)
    tell("told", inside=inside, after=children_of(folder + "/after"))


def fork_workers_of_a_store(by: str) -> None:
    store = ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
    store.set("from", b"launcher")

    def worker(rank):
        mine = store if by == "store" else ah.TCPStore("127.0.0.1", store.port, timeout=20)
        found = mine.get("from").decode()
        ah.init_process_group(store=mine, rank=rank, world_size=2, timeout=20)
        x = np.array([rank + 1.0])
        ah.all_reduce(x)
        mine.set(f"from {rank}", b"worker")
        ah.destroy_process_group()
        mine.close()
        return [found, x[0]]

    workers = [Forked(worker, rank) for rank in range(2)]
    ended = [one.ended() for one in workers]
    store.wait(["from 0", "from 1"])
    tell("workers", ended=ended, kept=store.get("from").decode())


def fork_before_collecting(port: int) -> None:
    gc.collect()
    gc.disable()  # what the world leaves is there when the child is forked
    ah.init_process_group(f"tcp://127.0.0.1:{port}", rank=0, world_size=1, timeout=20)
    ah.barrier()
    ah.destroy_process_group()
    tell("child", ended=Forked(lambda: 1).ended())


def close_what_is_inherited(port: int) -> None:
    ah.init_process_group(f"tcp://127.0.0.1:{port}", rank=0, world_size=1, timeout=20)
    ah.barrier()
    store = ah.TCPStore("127.0.0.1", 0, is_master=True, timeout=20)
    client = ah.TCPStore("127.0.0.1", store.port, timeout=20)
    client.set("key", b"1")

    def child():
        nonlocal store, client
        ah.destroy_process_group()
        store.close()
        store = client = None  # the last references here
        return gc.collect() >= 0

    ended = Forked(child).ended()
    ah.barrier()
    tell("child", ended=ended, key=client.get("key").decode())
    ah.destroy_process_group()


def call_what_is_inherited() -> None:
    ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
    me = ah.get_rank()
    x, y = np.full(3, me + 1.0), np.full(3, me + 1.0)
    ah.barrier()
    part = ah.new_group([0, 1])
    ah.barrier(part)
    sent = ah.irecv(np.zeros(2), 1 - me, tag=9)
    call = ah.all_reduce_init(y)
    keys = ah.connect()
    if me == 1:  # so that the call of the other one is in flight while its child looks at it
        keys.get("looked", wait=True)
    posted = ah.all_reduce(x, async_op=True)

    def child():
        world = ah.default_group()
        in_flight = {
            "a call in flight": lambda: posted.wait(),
            "its result": lambda: posted.result(),
            "its future": lambda: posted.get_future().wait(),
        }
        told = {
            "a plain call": lambda: ah.all_reduce(np.ones(3)),
            "a call behind": lambda: ah.all_reduce(np.ones(3), async_op=True),
            "a large call": lambda: ah.all_reduce(np.ones(1 << 20)),
            "a gather": lambda: ah.all_gather(list(np.ones((2, 3))), np.ones(3)),
            "an object": lambda: ah.broadcast_object_list([None]),
            "a message": lambda: ah.send(np.ones(3), 1 - me),
            "a monitored barrier": lambda: ah.monitored_barrier(),
            "a part": lambda: ah.barrier(part),
            "a method": lambda: world.all_reduce(np.ones(3)).wait(),
            "a prepared call": lambda: call.start(),
            **(in_flight if me == 0 else {}),
            "a message in flight": lambda: sent.wait(timeout=5),
            "memory": lambda: ah.empty(10),
            "a new group": lambda: ah.new_group(),
            "an abort": lambda: ah.abort("because"),
        }
        known = ah.is_initialized(), ah.get_rank(), ah.get_world_size()
        said = {name: failure(act) for name, act in told.items()}
        bad = {
            name: one
            for name, one in said.items()
            if one["error"] != "ForkedProcess" or "init_process_group()" not in one["text"]
        }
        ah.destroy_process_group(part)
        ah.destroy_process_group()
        return [known == (True, me, 2), bad, ah.is_initialized()]

    ended = Forked(child).ended()
    if me == 0:
        keys.put("looked", b"")
    posted.wait()
    call.start()
    call.wait()
    ah.send(np.ones(2), 1 - me, tag=9)
    sent.wait()
    ah.barrier(part)
    tell("told", child=ended, sums=[list(x), list(y)])
    ah.destroy_process_group()


def wait_for_what_is_inherited() -> None:
    ah.init_process_group(timeout=20, backend=os.environ["ALLHANDS_BACKEND"])
    me = ah.get_rank()
    x = np.full(3, me + 1.0)
    ah.barrier()
    call = ah.all_reduce_init(x)
    call.start()
    ended = Forked(lambda: [failure(call.wait)["error"], list(x)]).ended()
    call.wait()
    tell("told", child=ended, sum=list(x))
    ah.destroy_process_group()


def close_an_inherited_client() -> None:
    control = ah.connect()
    control.put("key", b"1")
    waiting = threading.Thread(target=lambda: got.append(control.get("late", wait=True)))
    got = []
    waiting.start()
    until(lambda: not control._kv_pool._idle)
    ended = Forked(control.close).ended()
    control.put("late", b"2")
    waiting.join()
    tell("told", child=ended, got=[one.decode() for one in got])


def call_by_grpc_in_a_child() -> None:
    endpoint = find_coordinator(None, os.environ)
    control = Control(endpoint, job="job", use_lines=False)
    control.put("key", b"1")
    ended = Forked(lambda: [control.get("key").decode(), control.add("n", 1)]).ended()
    tell("told", child=ended, n=control.add("n", 1))


def fork_without_memory_files() -> None:
    folder = tempfile.mkdtemp()
    world(folder + "/first", 0, 1)

    def child():
        def refuse(*_):
            raise OSError("no memory for files")

        os.memfd_create = refuse
        return failure(lambda: world(folder + "/second", 0, 1))

    tell("told", child=Forked(child).ended())
