"""Messages from rank to rank over shared memory: in order and whole, on every route."""

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, tell, until


def shared(length: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    return ah.empty(length, dtype)


def content(sender: int, tag: int, number: int, length: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a message; no two messages are alike."""
    seed = ((sender * 64 + tag) * 100_003 + number) % (1 << 31)
    words = np.arange(-(-length // 4), dtype=np.uint32) * 2654435761 + seed * 40503 % (1 << 32)
    return words.view(np.uint8)[:length]


def length_of(sender: int, tag: int, number: int) -> int:
    marks = (0, 1, 23, 24, 25, 64, 3000, 16383, 16384, 65536, 65537, 100_000, 300_000)
    return marks[(sender * 31 + tag * 17 + number * 7) % len(marks)]


def exchange_around_limits(limits: list[int]) -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    right, left = (me + 1) % n, (me - 1) % n
    makers: tuple[Callable[..., npt.NDArray[Any]], ...] = (np.empty, shared)
    for make in makers:
        for limit in limits:
            for length in (limit - 1, limit, limit + 1):
                x, y = make(length, np.uint8), make(length, np.uint8)
                x[:] = content(me, 0, length, length)
                y[:] = 0
                work = ah.isend(x, right, tag=limit)
                got = ah.recv(y, left, tag=limit)
                faults.compare(y, content(left, 0, length, length), make.__name__, length, got)
                faults.compare(got, left)
                work.wait()
                # Both at once, the large ones too, and the other way round.
                into = ah.irecv(y, right)
                ah.send(x, left)
                into.wait()
                faults.compare(y, content(right, 0, length, length), "back", length)
                faults.compare(into.source_rank(), right)
    tell("done", faults=faults)
    ah.destroy_process_group()


def explain_messages(size: int, middle: str, large: str) -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    ah.send(np.zeros(1), 1) if me == 0 else ah.recv(np.zeros(1), 0)
    said = []
    ways: list[tuple[Callable[..., Any], int]] = [
        (np.empty, 8),
        (np.empty, size),
        (np.empty, 6 << 20),
        (shared, 1 << 18),
    ]
    for make, length in ways:
        x = make(length, np.uint8)
        work = ah.irecv(x, 0) if me else ah.isend(x, 1)
        work.wait()
        said.append(work.explain().partition("over shared memory, ")[2].partition(":")[0])
    faults.compare(said, ["eager", middle, large, "direct"], said)
    tell("done", faults=faults)
    ah.destroy_process_group()


def receive_tags_in_any_order() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    order = random.Random(me)
    for make in (np.empty, shared):
        works, tags = [], list(range(40))
        for tag in tags:
            for peer in range(n):
                if peer != me:
                    x = make(length_of(me, tag, 0), np.uint8)
                    x[:] = content(me, tag, 0, len(x))
                    works.append(ah.isend(x, peer, tag=tag))
        order.shuffle(tags)
        for tag in tags:
            for peer in range(n):
                if peer != me:
                    y = np.zeros(length_of(peer, tag, 0), np.uint8)
                    ah.recv(y, peer, tag=tag)
                    faults.compare(y, content(peer, tag, 0, len(y)), peer, tag)
        for work in works:
            work.wait()
    tell("done", faults=faults)
    ah.destroy_process_group()


def exchange_from_threads() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    COUNT = 800

    def sending(tag):
        order, works = random.Random(tag), []
        for number in range(COUNT):
            length = length_of(me, tag, number)
            x = shared(length) if number % 5 == 0 else np.empty(length, np.uint8)
            x[:] = content(me, tag, number, length)
            if order.random() < 0.5:
                ah.send(x, 1 - me, tag=tag)
            else:
                works.append(ah.isend(x, 1 - me, tag=tag))
        for work in works:
            work.wait()

    def receiving(tag):
        order, begun = random.Random(-tag), []
        for number in range(COUNT):
            y = np.zeros(length_of(1 - me, tag, number), np.uint8)
            source = None if order.random() < 0.3 else 1 - me
            if order.random() < 0.5:
                ah.recv(y, source, tag=tag)
                faults.compare(y, content(1 - me, tag, number, len(y)), tag, number)
            else:
                begun.append((number, y, ah.irecv(y, source, tag=tag)))
            if len(begun) > 20 or number == COUNT - 1:
                for at, one, work in begun:
                    work.wait()
                    faults.compare(one, content(1 - me, tag, at, len(one)), tag, at)
                begun.clear()

    threads = [
        threading.Thread(target=act, args=[tag])
        for tag in (1, 2, 3)
        for act in (sending, receiving)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("done", faults=faults)
    ah.destroy_process_group()


def receive_from_any_rank() -> None:
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    me = ah.get_rank()
    faults = Faults()
    COUNT = 300
    if me == 0:
        seen = dict.fromkeys(range(1, n), 0)
        for _ in range(COUNT * (n - 1)):
            y = np.zeros(30_000, np.int64)
            sender = ah.recv(y)
            faults.compare(
                y, np.arange(30_000) + sender * 1000 + seen[sender], sender, seen[sender]
            )
            seen[sender] += 1
        faults.compare(list(seen.values()), [COUNT] * (n - 1))
    else:
        for number in range(COUNT):
            x = np.arange(30_000) + me * 1000 + number
            ah.send(x, 0)
    tell("done", faults=faults)
    ah.destroy_process_group()


def send_ahead() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    if me == 0:
        works = [ah.isend(content(0, 1, number, 5000), 1, tag=1) for number in range(3000)]
        ah.send(np.ones(3), 1, tag=2)
        for work in works:
            work.wait()
    else:
        x = np.zeros(3)
        ah.recv(x, 0, tag=2)  # behind three times what may be kept here
        faults.compare(x, np.ones(3), x)
        for number in range(3000):
            y = np.zeros(5000, np.uint8)
            ah.recv(y, 0, tag=1)
            faults.compare(y, content(0, 1, number, 5000), number)
    tell("done", faults=faults)
    ah.destroy_process_group()


def send_to_a_busy_rank() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    # This message makes both ranks' ShmP2P; after it rank 1 makes no call of its own.
    ah.send(np.ones(1), 1) if me == 0 else ah.recv(np.zeros(1), 0)
    if me == 0:
        for number in range(2000):
            ah.send(content(0, 0, number, 1000), 1)
        ah.store().set("sent", "all")
    else:
        until(lambda: ah.store().check(["sent"]))
        for number in range(2000):
            y = np.zeros(1000, np.uint8)
            ah.recv(y, 0)
            faults.compare(y, content(0, 0, number, 1000), number)
    tell("done", faults=faults)
    ah.destroy_process_group()


def send_any_dtype() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    record = np.dtype([("key", "<i2"), ("value", ">f8"), ("name", "S3")])
    for dtype in (record, ">i4", "U3", "M8[s]", np.complex128, np.float16, np.bool_):
        for length in (1, 5, 30_000):
            x = (np.arange(17 * length) % 251).astype(np.uint8).repeat(3)
            x = np.resize(x.view(np.uint8), length * np.dtype(dtype).itemsize).view(dtype)
            if me == 0:
                wide = np.zeros((length, 2), dtype)
                wide[:, 1] = x
                ah.send(wide[:, 1], 1)
                ah.send(x[::-1], 1)
            else:
                y = np.zeros((length, 1), dtype)
                ah.recv(y, 0)
                faults.compare(y[:, 0].tobytes(), x.tobytes(), dtype, length)
                ah.recv(y, 0)
                faults.compare(y[::-1, 0].tobytes(), x.tobytes(), dtype, length, "backwards")
    scalar = np.array(7.0 if me == 0 else 0.0)
    ah.send(scalar, 1) if me == 0 else ah.recv(scalar, 0)
    faults.compare(scalar[()], 7.0)
    tell("done", faults=faults)
    ah.destroy_process_group()


def exchange_in_groups() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    pair = ah.new_group([2, 0])
    x = np.full(5, float(me))
    for group in (None, pair):
        if me == 2:
            ah.send(x + (10 if group else 0), 0, group=group)
        if me == 0:
            got = [np.zeros(5), np.zeros(5)]
            if group:
                faults.compare(ah.recv(got[0], None, group=pair), 2)
                faults.compare(ah.recv(got[1], 2), 2)
                faults.compare(got[0], np.full(5, 12.0), "pair")
                faults.compare(got[1], np.full(5, 2.0), "world")
    tell("done", faults=faults)
    ah.destroy_process_group()


def mix_with_collectives(collective_first: bool) -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    group = ah.new_group()
    x, y = np.full(4, float(me)), np.zeros(4)
    works = [ah.isend(x + number, 1 - me, group) for number in range(50)]
    if collective_first:
        ah.all_reduce(y, group=group)
    into = [np.zeros(4) for _ in range(50)]
    works += [ah.irecv(one, 1 - me, group) for one in into[:25]]
    for one in into[25:]:
        ah.recv(one, 1 - me, group)
    for work in works:
        work.wait()
    ah.all_reduce(y, group=group)
    for number, one in enumerate(into):
        faults.compare(one, np.full(4, 1.0 - me + number), number, one)
    tell("done", faults=faults)
    ah.destroy_process_group()


def exchange_with_asyncio() -> None:
    faults = []

    async def main():
        async with ah.aio.connect(timeout=20) as world:
            me = world.rank
            for length in (3, 30_000, 3_000_000):
                x, y = np.arange(length) + me, np.zeros(length, np.int64)
                heard = asyncio.Event()
                work = world.group.recv(y, 1 - me)
                loop = asyncio.get_running_loop()
                work.get_future().add_done_callback(lambda _: loop.call_soon_threadsafe(heard.set))
                await world.send(x, 1 - me)
                await heard.wait()
                if not (y == np.arange(length) + 1 - me).all() or not work.is_success():
                    faults.append(length)
                rooms = [np.zeros(5) for _ in range(20)]
                works: list[Awaitable[Any]] = [world.recv(one, None, 3) for one in rooms]
                works += [world.send(np.full(5, 1.0 * number), 1 - me, 3) for number in range(20)]
                await asyncio.gather(*works)
                if [one[0] for one in rooms] != list(range(20)):
                    faults.append(length)

    asyncio.run(main())
    tell("done", faults=faults)


def send_and_leave() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    ah.barrier()
    if me == 0:
        for number in range(20):
            ah.isend(content(0, 0, number, 2000), 1)
    else:
        until(lambda: failure(lambda: ah.send(np.ones(1), 0, tag=9))["error"] == "PeerFailed")
        for number in range(20):
            y = np.zeros(2000, np.uint8)
            ah.recv(y, 0 if number % 2 else None)
            faults.compare(y, content(0, 0, number, 2000), number)
        faults.compare(failure(lambda: ah.recv(y, 0))["error"], "PeerFailed")
    tell("done", faults=faults)
    ah.destroy_process_group()


def fork_a_child() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    faults = Faults()
    x = np.full(3, float(me))
    work = ah.irecv(np.zeros(3), 1 - me, tag=5)
    ah.send(x, 1 - me)
    pid = os.fork()
    if pid == 0:
        said = [failure(lambda: act(x, 1 - me, timeout=1)) for act in (ah.send, ah.recv, ah.isend)]
        os._exit(sum(one["error"] != "ForkedProcess" for one in said))
    faults.compare(os.waitpid(pid, 0)[1], 0, "child")
    ah.recv(x, 1 - me)
    faults.compare(x, np.full(3, 1.0 - me), x)
    ah.send(x, 1 - me, tag=5)
    work.wait()
    tell("done", faults=faults)
    ah.destroy_process_group()
