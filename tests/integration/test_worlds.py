"""Whole jobs: real processes, a real coordinator, real links."""

import os
import signal

import pytest

from allhands.testing.until import poll_until
from support.ranks.addresses import free_port
from support.ranks.processes import BACKENDS, Cluster, Job, Process


def results(ranks: list[Process], what: str = "done") -> list[dict[str, object]]:
    told = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, rank.errors
    return told


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_gives_the_right_numbers(job: Job, size: int, backend: str) -> None:
    ranks = job(
        size,
        """
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
        """,
    )
    told = results(ranks)
    assert [one["rank"] for one in told] == list(range(size))
    assert [one["shared"] for one in told] == [backend == "auto"] * size


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_and_groups_share_one_process(job: Job) -> None:
    ranks = job(
        3,
        """
        ah.init_process_group(timeout=30)
        me = ah.get_rank()
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
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        works = [ah.all_reduce(np.full(3, float(at)), async_op=True) for at in range(200)]
        sums = [work.result()[0] for work in works]
        assert sums == [3.0 * at for at in range(200)], sums
        tell("done", wrong=wrong, subgroup=[ah.get_rank(groups[3]), ah.get_rank(groups[4])])
        ah.destroy_process_group()
        """,
    )
    told = results(ranks)
    assert [one["wrong"] for one in told] == [[], [], []]
    assert [one["subgroup"] for one in told] == [[0, -1], [-1, 1], [1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_asyncio_face_runs_the_same_calls(job: Job) -> None:
    ranks = job(
        2,
        """
        import asyncio

        async def main():
            async with ah.aio.connect(timeout=20) as world:
                x = np.arange(4.0)
                assert (await world.all_reduce(x) is x) and x.tolist() == [0.0, 2.0, 4.0, 6.0]
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
                    try:
                        await world.barrier(timeout=0.3)
                    except ah.GroupAborted:
                        pass
                await world.barrier()
                return world.size

        tell("done", size=asyncio.run(main()))
        """,
    )
    assert [told["size"] for told in results(ranks)] == [2, 2]


@pytest.mark.parametrize("where", ["env", "tcp", "file"])
def test_rank_0_hosts_the_coordinator_where_there_is_none(cluster: Cluster, where: str) -> None:
    port = free_port()
    method = {
        "env": "None",
        "tcp": f"'tcp://127.0.0.1:{port}'",
        "file": f"'file://{cluster.runtime}/meet'",
    }
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)} if where == "env" else {}
    ranks = cluster.world(
        3,
        f"""
        for again in range(2):
            ah.init_process_group({method[where]}, timeout=20)
            x = np.ones(3)
            ah.all_reduce(x)
            if ah.get_rank() == 0 and not again and {where != "file"}:
                # The others are back, at this very coordinator, before this rank has left.
                until(lambda: len(ah.connect().jobs()) == 2)
            ah.destroy_process_group()
        tell("done", x=x.tolist())
        """,
        **variables,
    )
    assert [told["x"] for told in results(ranks)] == [[3.0] * 3] * 3
    assert list((cluster.runtime / "allhands").iterdir()) == []


def test_a_process_without_a_launcher_is_a_world_of_one(cluster: Cluster) -> None:
    alone = cluster.start(
        """
        ah.init_process_group()
        x = np.arange(3.0)
        ah.all_reduce(x)
        tell("done", x=x.tolist(), size=ah.get_world_size(), table=str(ah.status()))
        """
    )
    told = alone.expect("done")
    assert told["x"] == [0.0, 1.0, 2.0]
    assert told["size"] == 1
    assert "running" in told["table"]
    assert alone.ended() == 0


def test_ranks_may_be_assigned(cluster: Cluster) -> None:
    url = cluster.daemon()
    script = f"""
    ah.init_process_group("{url}/assigned", world_size=3, timeout=20)
    x = np.zeros(3, np.int64)
    x[ah.get_rank()] = os.getpid()
    ah.all_reduce(x)
    tell("done", rank=ah.get_rank(), pids=x.tolist())
    ah.destroy_process_group()
    """
    ranks = [cluster.start(script) for _ in range(3)]
    told = results(ranks)
    assert sorted(one["rank"] for one in told) == [0, 1, 2]  # type: ignore[type-var]
    assert all(one["pids"] == told[0]["pids"] for one in told)


def test_a_duplicate_rank_and_another_world_size_are_refused_by_name(cluster: Cluster) -> None:
    url = cluster.daemon() + "/strict"
    join = 'tell("joined", **failure(lambda: ah.init_process_group(timeout=2)))\nos._exit(0)'
    first = cluster.start(join, RANK="0", WORLD_SIZE="2", ALLHANDS_URL=url)
    # Who comes first is not known: one of the two is refused, and names the other.
    second = cluster.start(join, RANK="0", WORLD_SIZE="2", ALLHANDS_URL=url)
    third = cluster.start(join, RANK="1", WORLD_SIZE="3", ALLHANDS_URL=url)
    other = cluster.start(join, RANK="2", WORLD_SIZE="2", ALLHANDS_URL=url)
    told = other.expect("joined")
    assert told["error"] == "ValueError", told
    assert "rank 2" in told["text"]
    assert "world of 2" in told["text"]
    outcomes = [one.expect("joined") for one in (first, second, third)]
    refused = [one for one in outcomes if one["error"] == "JoinRefused"]
    assert len(refused) == 2, outcomes
    for one in refused:
        assert "pid" in one["text"], one


def test_who_joins_while_the_daemon_shuts_down_is_refused_and_does_not_wait(
    cluster: Cluster,
) -> None:
    url = cluster.daemon()
    daemon = cluster.started[-1]
    holder = cluster.start(
        'ah.init_process_group(timeout=20)\ntell("in")\nhear()\nos._exit(0)',
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/running",
    )
    holder.expect("in")
    daemon.child.send_signal(signal.SIGTERM)
    poll_until(lambda: any("the coordinator is going down" in line for line in holder.errors))
    late = cluster.start(  # by far more time than this test has
        'tell("out", **failure(lambda: ah.init_process_group(timeout=600)))\nos._exit(0)',
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/late",
    )
    told = late.expect("out")
    assert told["error"] == "JoinRefused", told
    assert "the coordinator is shutting down (it got SIGTERM)" in told["text"]
    assert daemon.child.poll() is None, "it was refused while the daemon drained"


def test_a_job_that_nobody_else_joins_times_out_with_names(cluster: Cluster) -> None:
    url = cluster.daemon()
    holder = cluster.start(
        'ah.init_process_group(timeout=20)\ntell("in")\nhear()\nos._exit(0)',
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/right",
    )
    holder.expect("in")
    lost = cluster.start(
        'tell("out", **failure(lambda: ah.init_process_group(timeout=1)))\nos._exit(0)',
        RANK="1",
        WORLD_SIZE="3",
        ALLHANDS_URL=url + "/wrong",
    )
    told = lost.expect("out")
    assert told["error"] == "CollectiveTimeout", told
    assert told["ranks"] == [0, 2]
    assert "never joined: 0, 2 of 3" in told["text"]
    absent = told["verdict"]["absent"]
    assert [(one["rank"], one["state"]) for one in absent] == [
        (0, "never joined"),
        (2, "never joined"),
    ]
    assert "'right'" in told["text"]


def test_a_job_whose_size_no_rank_says_names_the_variable(cluster: Cluster) -> None:
    lost = cluster.start(
        'tell("out", **failure(lambda: ah.init_process_group(timeout=3)))\nos._exit(0)',
        JOB_COMPLETION_INDEX="0",
        ALLHANDS_URL=cluster.daemon() + "/indexed",
    )
    told = lost.expect("out")
    assert told["error"] == "CollectiveTimeout", told
    assert "no rank said how many there are; set WORLD_SIZE" in told["text"]
    assert "there: rank 0" in told["text"]
    assert lost.ended() == 0
    assert any("still waiting in job indexed" in line for line in lost.errors), lost.errors


def test_ranks_of_an_indexed_job_take_their_size_from_a_variable(cluster: Cluster) -> None:
    url = cluster.daemon() + "/indexed"
    ranks = [
        cluster.start(
            'ah.init_process_group(timeout=20)\ntell("done", size=ah.get_world_size())\n'
            "ah.destroy_process_group()",
            JOB_COMPLETION_INDEX=str(index),
            WORLD_SIZE="2",
            ALLHANDS_URL=url,
        )
        for index in range(2)
    ]
    assert [one["size"] for one in results(ranks)] == [2, 2]


def test_no_coordinator_and_no_token_are_told_apart(cluster: Cluster) -> None:
    url = cluster.daemon()
    script = 'tell("out", **failure(lambda: ah.init_process_group(timeout=1)))\nos._exit(0)'
    nobody = cluster.start(script, RANK="0", WORLD_SIZE="1", ALLHANDS_URL="ah://127.0.0.1:1/job")
    told = nobody.expect("out")
    assert told["error"] == "CoordinatorUnavailable", told
    assert "127.0.0.1:1" in told["text"]
    stranger = cluster.start(
        script, RANK="0", WORLD_SIZE="1", ALLHANDS_URL=url + "/job", ALLHANDS_TOKEN="guess"
    )
    told = stranger.expect("out")
    assert told["error"] == "Unauthenticated", told


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_large_array_moves_in_bounded_memory(job: Job) -> None:
    ranks = job(
        4,
        """
        import psutil
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
        """,
    )
    for told in results(ranks):
        assert told["right"]
        extra = told["extra"]
        assert isinstance(extra, int)
        assert extra < 48 << 20, f"{extra / 2**20:.0f} MiB beside the arrays"


def test_the_job_goes_on_while_strangers_knock(cluster: Cluster) -> None:
    import socket

    url = cluster.daemon()
    ranks = cluster.world(
        2,
        """
        import psutil
        ah.init_process_group(timeout=20)
        own = psutil.Process().net_connections("tcp")
        tell("at", ports=[one.laddr.port for one in own if one.status == "LISTEN"])
        hear()
        x = np.ones(3)
        ah.all_reduce(x)
        tell("done", x=x.tolist())
        ah.destroy_process_group()
        """,
        ALLHANDS_URL=url + "/job",
    )
    ports = [int(url.rpartition(":")[2])]
    for rank in ranks:
        listening = rank.expect("at")["ports"]
        assert len(listening) == 2  # for gRPC and for raw sockets
        ports += listening
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
            stranger.sendall(os.urandom(5000))
            stranger.settimeout(10)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    for rank in ranks:
        rank.say()
    assert [told["x"] for told in results(ranks)] == [[2.0] * 3] * 2


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_small_calls_on_several_threads_pass_beside_large_ones(job: Job, backend: str) -> None:
    ranks = job(
        3,
        """
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
        """,
    )
    results(ranks)


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_a_call_that_waits_for_its_peer_lets_the_loop_go(job: Job, backend: str) -> None:
    ranks = job(
        2,
        """
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
        """,
    )
    told = ranks[0].expect("waiting")
    assert (told["error"], told["seq"], told["ranks"]) == ("CollectiveTimeout", 2, [1])
    ranks[1].say()
    results(ranks)
