"""Whole jobs: real processes, a real coordinator, real links."""

import contextlib
import os
import signal
import socket
from functools import partial
from typing import Any

import pytest

from allhands.testing.poll import poll_until
from programs import worlds
from support.ranks.addresses import free_port
from support.ranks.processes import BACKENDS, Cluster, Job, Process


def results(ranks: list[Process], what: str = "done") -> list[dict[str, Any]]:
    told = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, rank.errors
    return told


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_gives_the_right_numbers(job: Job, size: int, backend: str) -> None:
    ranks = job(
        size,
        worlds.every_collective,
    )
    told = results(ranks)
    assert [one["rank"] for one in told] == list(range(size))
    assert [one["shared"] for one in told] == [backend == "auto"] * size


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_and_groups_share_one_process(job: Job) -> None:
    ranks = job(
        3,
        worlds.call_from_threads,
    )
    told = results(ranks)
    assert [one["wrong"] for one in told] == [[], [], []]
    assert [one["subgroup"] for one in told] == [[0, -1], [-1, 1], [1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_asyncio_face_runs_the_same_calls(job: Job) -> None:
    ranks = job(
        2,
        worlds.call_from_asyncio,
    )
    assert [told["size"] for told in results(ranks)] == [2, 2]


@pytest.mark.parametrize("where", ["env", "tcp", "file"])
def test_rank_0_hosts_the_coordinator_where_there_is_none(cluster: Cluster, where: str) -> None:
    port = free_port()
    method = {
        "env": None,
        "tcp": f"tcp://127.0.0.1:{port}",
        "file": f"file://{cluster.runtime}/meet",
    }
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)} if where == "env" else {}
    ranks = cluster.world(
        3,
        worlds.join_twice,
        method[where],
        where != "file",
        **variables,
    )
    assert [told["x"] for told in results(ranks)] == [[3.0] * 3] * 3
    assert list((cluster.runtime / "allhands").iterdir()) == []


def test_a_rank_joins_the_next_world_of_a_job_before_all_have_left_the_last(
    cluster: Cluster,
) -> None:
    url = cluster.daemon() + "/again"
    ranks = [
        cluster.start(
            worlds.join_again_in_one_job, RANK=str(rank), WORLD_SIZE="2", ALLHANDS_URL=url
        )
        for rank in range(2)
    ]
    told = results(ranks)
    assert [one["x"] for one in told] == [[2.0] * 3] * 2
    (refused,) = told[1]["refused"]
    assert "job again has its world of 2, of them 1 left: rank 0" in refused


def test_a_process_without_a_launcher_is_a_world_of_one(cluster: Cluster) -> None:
    alone = cluster.start(worlds.be_alone)
    told = alone.expect("done")
    assert told["x"] == [0.0, 1.0, 2.0]
    assert told["size"] == 1
    assert "running" in told["table"]
    assert alone.ended() == 0


def test_ranks_may_be_assigned(cluster: Cluster) -> None:
    url = cluster.daemon()
    ranks = [cluster.start(worlds.join_for_a_rank, url) for _ in range(3)]
    told = results(ranks)
    assert sorted(one["rank"] for one in told) == [0, 1, 2]
    assert all(one["pids"] == told[0]["pids"] for one in told)


def test_a_duplicate_rank_and_another_world_size_are_refused_by_name(cluster: Cluster) -> None:
    url = cluster.daemon() + "/strict"
    first = cluster.start(worlds.try_to_join, RANK="0", WORLD_SIZE="2", ALLHANDS_URL=url)
    # Who comes first is not known: one of the two is refused, and names the other.
    second = cluster.start(worlds.try_to_join, RANK="0", WORLD_SIZE="2", ALLHANDS_URL=url)
    third = cluster.start(worlds.try_to_join, RANK="1", WORLD_SIZE="3", ALLHANDS_URL=url)
    other = cluster.start(worlds.try_to_join, RANK="2", WORLD_SIZE="2", ALLHANDS_URL=url)
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
        worlds.hold,
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/running",
    )
    holder.expect("in")
    daemon.child.send_signal(signal.SIGTERM)
    poll_until(lambda: any("the coordinator is going down" in line for line in holder.errors))
    late = cluster.start(  # by far more time than this test has
        worlds.try_to_join_for_long,
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
        worlds.hold,
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/right",
    )
    holder.expect("in")
    lost = cluster.start(
        worlds.try_to_join_shortly,
        RANK="1",
        WORLD_SIZE="3",
        ALLHANDS_URL=url + "/wrong",
    )
    told = lost.expect("out")
    assert told["error"] == "CollectiveTimeout", told
    assert told["ranks"] == [0, 2]
    assert "never joined: ranks 0,2 (of 3 ranks)" in told["text"]
    absent = told["verdict"]["absent"]
    assert [(one["rank"], one["state"]) for one in absent] == [
        (0, "never joined"),
        (2, "never joined"),
    ]
    assert "'right'" in told["text"]


def test_a_job_whose_size_no_rank_says_names_the_variable(cluster: Cluster) -> None:
    lost = cluster.start(
        worlds.try_to_join_of_unknown_size,
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
            worlds.join_and_leave,
            JOB_COMPLETION_INDEX=str(index),
            WORLD_SIZE="2",
            ALLHANDS_URL=url,
        )
        for index in range(2)
    ]
    assert [one["size"] for one in results(ranks)] == [2, 2]


def test_no_coordinator_and_no_token_are_told_apart(cluster: Cluster) -> None:
    url = cluster.daemon()
    nobody = cluster.start(
        worlds.try_to_join_shortly, RANK="0", WORLD_SIZE="1", ALLHANDS_URL="ah://127.0.0.1:1/job"
    )
    told = nobody.expect("out")
    assert told["error"] == "CoordinatorUnavailable", told
    assert "127.0.0.1:1" in told["text"]
    stranger = cluster.start(
        worlds.try_to_join_shortly,
        RANK="0",
        WORLD_SIZE="1",
        ALLHANDS_URL=url + "/job",
        ALLHANDS_TOKEN="guess",
    )
    told = stranger.expect("out")
    assert told["error"] == "Unauthenticated", told


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_large_array_moves_in_bounded_memory(job: Job) -> None:
    ranks = job(
        4,
        worlds.move_a_large_array,
    )
    for told in results(ranks):
        assert told["right"]
        extra = told["extra"]
        assert isinstance(extra, int)
        assert extra < 48 << 20, f"{extra / 2**20:.0f} MiB beside the arrays"


def knock(port: int) -> bool:
    """Send noise to a port until that hangs up; False: it took no connection.

    The first connection to a port that is held for gRPC has gRPC take it over, and is closed.
    """
    try:
        stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
    except (ConnectionResetError, ConnectionRefusedError):
        return False
    with stranger, contextlib.suppress(ConnectionResetError):
        stranger.sendall(os.urandom(5000))
        while stranger.recv(4096):
            pass
    return True


def test_the_job_goes_on_while_strangers_knock(cluster: Cluster) -> None:
    url = cluster.daemon()
    ranks = cluster.world(
        2,
        worlds.tell_ports,
        ALLHANDS_URL=url + "/job",
    )
    ports = [int(url.rpartition(":")[2])]
    for rank in ranks:
        listening = rank.expect("at")["ports"]
        assert len(listening) == 2  # for gRPC and for raw sockets
        ports += listening
    for port in ports:
        poll_until(partial(knock, port))
    for rank in ranks:
        rank.say()
    assert [told["x"] for told in results(ranks)] == [[2.0] * 3] * 2


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_small_calls_on_several_threads_pass_beside_large_ones(job: Job, backend: str) -> None:
    ranks = job(
        3,
        worlds.call_beside_large_ones,
    )
    results(ranks)


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_a_call_that_waits_for_its_peer_lets_the_loop_go(job: Job, backend: str) -> None:
    ranks = job(
        2,
        worlds.wait_for_a_peer,
    )
    told = ranks[0].expect("waiting")
    assert (told["error"], told["seq"], told["ranks"]) == ("CollectiveTimeout", 2, [1])
    ranks[1].say()
    results(ranks)
