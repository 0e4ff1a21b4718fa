"""Processes with a shared store in a file, or at a port."""

import os
import signal
from typing import Any

import numpy as np

import allhands as ah
from allhands.stores import CoordinatorStore, FakeStore, Store
from programs.protocol import hear, tell

KINDS: tuple[type[Store], ...] = (
    CoordinatorStore,
    FakeStore,
    ah.FileStore,
    ah.HashStore,
    ah.PrefixStore,
    ah.TCPStore,
)
"""Read by the type checker: each keeps the contract."""

KEPT: list[ah.FileStore] = []
"""Stores that are open until the process ends."""


def open_and_wait(path: str) -> None:
    """Open the store of a world of three; keep it open until the next command."""
    store = ah.FileStore(path, 3)
    tell("open")
    hear()
    store.close()


def open_and_end(path: str) -> None:
    """Open the store of a world of three, and end without a close."""
    KEPT.append(ah.FileStore(path, 3))
    tell("open")


def count_in_a_file(path: str) -> None:
    store = ah.FileStore(path, 2, 30)
    store.set("theirs", b"hello")
    tell("got", value=store.get("ours").decode(), sum=[store.add("n", 1) for _ in range(200)][-1])


def write_for_ever(path: str) -> None:
    store = ah.FileStore(path, -1, 30)
    tell("ready")
    for number in range(1_000_000):
        value = str(number) * 20_000
        store.multi_set(["a", "b"], [value, value])
        store.append("log", "x")
        store.add("done", 1)


def die_at_a_statement(path: str, moment: str) -> None:
    store = ah.FileStore(path, -1, 30)

    def die(statement):
        if statement.startswith(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    store._database._sql.set_trace_callback(die)
    store.multi_set(["a", "b"], ["new", "new"])
    tell("alive")


def fork_a_child(path: str) -> None:
    store = ah.FileStore(path, 1)
    store.set("key", b"parent")
    if not (idle := os.fork()):
        store.close()
        os._exit(0)
    os.waitpid(idle, 0)
    if not (pid := os.fork()):
        ok = store.get("key") == b"parent"
        store.set("key", b"child")
        store.close()
        os._exit(0 if ok else 1)
    tell("child", status=os.waitpid(pid, 0)[1], value=store.get("key").decode())


def host_a_store(port: int) -> None:
    with ah.TCPStore("localhost", port, 2, True, 20) as store:
        store.set("key", b"value")
        tell("seen", value=store.get("answer").decode())


def meet_twice(rank: int, path: str, kind: str, port: int) -> None:
    whole: Any = (
        ah.FileStore(path, 2) if kind == "file" else ah.TCPStore("127.0.0.1", port, 2, rank == 0)
    )
    store = ah.PrefixStore("here", whole)
    sums = []
    for turn in range(2):
        ah.init_process_group(store=store, rank=rank, world_size=2, timeout=20)
        x = np.array([rank + 1.0 + turn])
        ah.all_reduce(x)
        sums.append(float(x[0]))
        ah.destroy_process_group()
    ah.store_based_barrier(rank, store, "end", 2)
    tell("done", sums=sums, number=rank)
    hear()
