"""Whole jobs: worlds joined in every way, and used by many threads."""

import asyncio
import contextlib
import os
import threading

import numpy as np
import psutil

import allhands as ah
from programs.protocol import failure, hear, tell, until


def every_collective() -> None:
    ah.init_process_group(timeout=30)
    n, me = ah.get_world_size(), ah.get_rank()
    rng = [np.random.default_rng(rank) for rank in range(n)]
    for length in (0, 1, 1001, 300_000):
        every = [one.integers(-50, 50, length).astype(np.float32) for one in rng]
        x = every[me].copy()
        ah.all_reduce(x)
        assert np.array_equal(x, sum(every)), "all_reduce"
        x = every[me].copy()
        ah.all_reduce(x, ah.ReduceOp.MAX)
        assert np.array_equal(x, np.max(every, axis=0)), "max"
        x = every[me].astype(np.float64)
        ah.all_reduce(x, ah.ReduceOp.AVG)
        assert np.allclose(x, np.mean(every, axis=0)), "avg"
        for root in range(n):
            x = every[me].copy()
            ah.broadcast(x, root)
            assert np.array_equal(x, every[root]), "broadcast"
            x = every[me].copy()
            ah.reduce(x, root)
            assert np.array_equal(x, sum(every) if me == root else every[me]), "reduce"
            outs = [np.empty(length, np.float32) for _ in range(n)] if me == root else None
            ah.gather(every[me], outs, root)
            assert outs is None or all(map(np.array_equal, outs, every)), "gather"
            x = np.empty(length, np.float32)
            ah.scatter(x, [one + 1 for one in every] if me == root else None, root)
            assert np.array_equal(x, every[me] + 1), "scatter"
        outs = [np.empty(length, np.float32) for _ in range(n)]
        ah.all_gather(outs, every[me])
        assert all(map(np.array_equal, outs, every)), "all_gather"
        out = np.empty((n, length), np.float32)
        ah.all_gather_into_tensor(out, every[me])
        assert np.array_equal(out, np.stack(every)), "all_gather_into_tensor"
        out = np.empty(length, np.float32)
        ah.reduce_scatter(out, [every[me] * (j + 1) for j in range(n)])
        assert np.array_equal(out, sum(every) * (me + 1)), "reduce_scatter"
        ah.reduce_scatter_tensor(out, np.concatenate([every[me] * (j + 1) for j in range(n)]))
        assert np.array_equal(out, sum(every) * (me + 1)), "reduce_scatter_tensor"
        outs = [np.empty(length, np.float32) for _ in range(n)]
        ah.all_to_all(outs, [every[me] + 100 * j for j in range(n)])
        assert all(np.array_equal(outs[j], every[j] + 100 * me) for j in range(n)), "all_to_all"
    give, take = [me + j for j in range(n)], [me + j for j in range(n)]
    x = np.repeat(np.arange(n), give).astype(np.int64) * 10 + me
    out = np.empty(sum(take), np.int64)
    ah.all_to_all_single(out, x, take, give)
    want = [np.full(take[j], me * 10 + j) for j in range(n)]
    assert np.array_equal(out, np.concatenate(want)), "all_to_all_single"
    if n > 1:
        right, left = (me + 1) % n, (me - 1) % n
        for length in (5, 200_000):
            work = ah.isend(np.full(length, me), right, tag=9)
            x = np.empty(length, np.int64)
            assert ah.recv(x, left if length == 5 else None, tag=9) == left
            assert (x == left).all()
            work.wait()
    ah.barrier()
    tell("done", rank=me, shared="shared memory" in ah.default_group().explain())
    ah.destroy_process_group()


def call_from_threads() -> None:
    ah.init_process_group(timeout=30)
    groups = [ah.new_group() for _ in range(3)] + [ah.new_group([0, 2]), ah.new_group([2, 1])]
    wrong = []

    def use(number, group):
        for step in range(40):
            x = np.full(7, float(number * 1000 + step))
            ah.all_reduce(x, group=group)
            if not (x == (number * 1000 + step) * ah.get_world_size(group)).all():
                wrong.append((number, step, x.tolist()))

    mine = [(at, group) for at, group in enumerate(groups) if ah.get_rank(group) >= 0]
    threads = [threading.Thread(target=use, args=one) for one in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    works = [ah.all_reduce(np.full(3, float(at)), async_op=True) for at in range(200)]
    sums = [work.result()[0] for work in works]
    assert sums == [3.0 * at for at in range(200)], sums
    tell("done", wrong=wrong, subgroup=[ah.get_rank(groups[3]), ah.get_rank(groups[4])])
    ah.destroy_process_group()


def call_from_asyncio() -> None:
    async def main():
        async with ah.aio.connect(timeout=20) as world:
            x = np.arange(4.0)
            assert await world.all_reduce(x) is x
            assert x.tolist() == [0.0, 2.0, 4.0, 6.0]
            if world.rank == 0:
                await world.send(np.arange(3), 1)
            else:
                assert await world.recv(np.empty(3, np.int64)) == 0
            try:
                async with asyncio.timeout(0.2):
                    await world.barrier() if world.rank == 0 else await asyncio.sleep(1)
            except TimeoutError:
                pass
            if world.rank == 1:  # the call that rank 0 gave up has its number nevertheless
                with contextlib.suppress(ah.GroupAborted):
                    await world.barrier(timeout=0.3)
            await world.barrier()
            return world.size

    tell("done", size=asyncio.run(main()))


def join_twice(method: str | None, is_reachable: bool) -> None:
    for again in range(2):
        ah.init_process_group(method, timeout=20)
        x = np.ones(3)
        ah.all_reduce(x)
        if ah.get_rank() == 0 and not again and is_reachable:
            # The others are back, at this very coordinator, before this rank has left.
            until(lambda: len(ah.connect().jobs()) == 2)
        ah.destroy_process_group()
    tell("done", x=x.tolist())


def join_again_in_one_job() -> None:
    ah.init_process_group(timeout=30)
    rank, job = ah.get_rank(), ah.connect()
    if rank == 0:
        until(lambda: any(one.kind == "refused" for one in job.events()))
    ah.destroy_process_group()
    ah.init_process_group(timeout=30)
    x = np.ones(3)
    ah.all_reduce(x)
    refused = [one.text for one in job.events() if one.kind == "refused"] if rank else []
    tell("done", x=x.tolist(), refused=refused)
    ah.destroy_process_group()


def be_alone() -> None:
    ah.init_process_group()
    x = np.arange(3.0)
    ah.all_reduce(x)
    tell("done", x=x.tolist(), size=ah.get_world_size(), table=str(ah.status()))


def join_for_a_rank(url: str) -> None:
    ah.init_process_group(f"{url}/assigned", world_size=3, timeout=20)
    x = np.zeros(3, np.int64)
    x[ah.get_rank()] = os.getpid()
    ah.all_reduce(x)
    tell("done", rank=ah.get_rank(), pids=x.tolist())
    ah.destroy_process_group()


def try_to_join() -> None:
    tell("joined", **failure(lambda: ah.init_process_group(timeout=2)))
    os._exit(0)


def hold() -> None:
    ah.init_process_group(timeout=20)
    tell("in")
    hear()
    os._exit(0)


def try_to_join_for_long() -> None:
    tell("out", **failure(lambda: ah.init_process_group(timeout=600)))
    os._exit(0)


def try_to_join_shortly() -> None:
    tell("out", **failure(lambda: ah.init_process_group(timeout=1)))
    os._exit(0)


def try_to_join_of_unknown_size() -> None:
    tell("out", **failure(lambda: ah.init_process_group(timeout=3)))
    os._exit(0)


def join_and_leave() -> None:
    ah.init_process_group(timeout=20)
    tell("done", size=ah.get_world_size())
    ah.destroy_process_group()


def move_a_large_array() -> None:
    ah.init_process_group(timeout=50)
    x = np.ones(32 << 20, np.float32)  # 128 MiB
    y = np.full_like(x, 2.0)
    parts = [np.ones(24 << 20, np.float32) for _ in range(4)] if ah.get_rank() == 0 else None
    ah.all_reduce(np.ones(1 << 20))
    before = psutil.Process().memory_info().rss
    peak, stop = [before], threading.Event()

    def watch():
        while not stop.wait(0.002):
            peak[0] = max(peak[0], psutil.Process().memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    ah.all_reduce(x)
    ah.reduce(x, 0)
    ah.broadcast(x, 0)
    if ah.get_rank() == 1:
        ah.recv(y, 0)
    elif ah.get_rank() == 0:
        ah.send(x, 1)
    ah.gather(x[: 24 << 20], parts, 0)
    stop.set()
    thread.join()
    tell("done", extra=peak[0] - before, right=bool((x == 16.0).all()))
    ah.destroy_process_group()


def tell_ports() -> None:
    ah.init_process_group(timeout=20)
    own = psutil.Process().net_connections("tcp")
    tell("at", ports=[one.laddr.port for one in own if one.status == "LISTEN"])
    hear()
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist())
    ah.destroy_process_group()


def call_beside_large_ones() -> None:
    ah.init_process_group(timeout=40)
    size = ah.get_world_size()
    groups = [ah.new_group(range(size)) for _ in range(3)]
    wrong = []

    def small(group, seed):
        rng = np.random.default_rng(seed)
        for turn in range(400):
            x = np.full(int(rng.integers(1, 300)), turn, np.int64)
            if rng.integers(4):
                ah.all_reduce(x, group=group)
            else:
                ah.all_reduce(x, group=group, async_op=True).wait()
            if (x != size * turn).any():
                wrong.append((seed, turn))

    def large(group):
        for turn in range(6):
            x = np.full(700_000, turn, np.float32)
            ah.all_reduce(x, group=group)
            if (x != size * turn).any():
                wrong.append(("large", turn))

    threads = [threading.Thread(target=small, args=(groups[at], at)) for at in range(2)]
    threads.append(threading.Thread(target=large, args=(groups[2],)))
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong, wrong[:5]
    tell("done")
    ah.destroy_process_group()


def wait_for_a_peer() -> None:
    ah.init_process_group(timeout=30, heartbeat_window=1.0)
    x = np.ones(4, np.float32)
    ah.all_reduce(x)
    if ah.get_rank() == 0:
        tell("waiting", **failure(lambda: ah.all_reduce(x, timeout=0.5)))
        ah.all_reduce(x)
    else:
        hear()
        ah.all_reduce(x)  # whose messages are here
        ah.all_reduce(x)
    tell("done")
    ah.destroy_process_group()


def make_a_world_three_times() -> None:
    for attempt in range(3):
        ah.init_process_group("env://")
        x = np.full(1000, ah.get_rank() + 1.0)
        ah.all_reduce(x)
        tell("sum", of=x[0], attempt=attempt)
        ah.destroy_process_group()
        assert not ah.is_initialized()


def tell_place() -> None:
    ah.init_process_group()
    x = np.array([ah.get_rank() * 10 + ah.get_node_local_rank()])
    ah.all_reduce(x)
    tell("place", rank=ah.get_rank(), size=ah.get_world_size(), sum=int(x[0]))
