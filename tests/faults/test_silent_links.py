"""Two hosts cut off from each other, with a coordinator on a third host in reach of both."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from programs import silent_links as programs
from support.ranks.addresses import free_port
from support.ranks.processes import GRPC, Cluster, Process, Program
from support.ranks.routed_hosts import Routed, routed_hosts

PORT = str(free_port())
"""Of loopback here; nobody else listens in those namespaces."""

Start = Callable[..., list[Process]]


@pytest.fixture(scope="module")
def routed() -> Iterator[Routed]:
    with routed_hosts("abc") as hosts:
        yield hosts


@pytest.fixture
def start(cluster: Cluster, routed: Routed) -> Iterator[Start]:
    """Return a function to run a script in a world with ranks on the named hosts."""

    def started(
        places: str, program: Program, *arguments: Any, **environment: str
    ) -> list[Process]:
        return [
            cluster.start(
                program,
                *arguments,
                holder=routed.hosts[place].holder,
                RANK=str(rank),
                WORLD_SIZE=str(len(places)),
                MASTER_ADDR=routed.hosts[places[0]].address,
                MASTER_PORT=PORT,
                ALLHANDS_TOKEN="sesame",
                ALLHANDS_INSECURE="1",
                **environment,
            )
            for rank, place in enumerate(places)
        ]

    yield started
    routed.heal()


@pytest.mark.parametrize(
    ("places", "call", "length", "backend"),
    [
        ("abc", "all_to_all", 3, "auto"),
        pytest.param("abc", "all_to_all", 3, "grpc", marks=pytest.mark.nightly),
        pytest.param("abc", "all_reduce", 1 << 19, "auto", marks=pytest.mark.nightly),
        ("abc", "asynchronous", 1 << 19, "auto"),
        pytest.param("abc", "broadcast", 1 << 19, "auto", marks=pytest.mark.nightly),
        ("abc", "message", 10, "auto"),
        pytest.param("abc", "any_source", 10, "auto", marks=pytest.mark.nightly),
        pytest.param("abbcc", "broadcast", 10, "auto", marks=pytest.mark.nightly),
        ("abbcc", "all_reduce", 1 << 19, "auto"),
    ],
)
def test_two_ranks_that_do_not_reach_each_other_are_named_and_go_on_when_they_do(
    start: Start, routed: Routed, places: str, call: str, length: int, backend: str
) -> None:
    ranks = start(places, programs.call_twice, 40, call, length, ALLHANDS_BACKEND=backend)
    pids = [rank.expect("ready")["pid"] for rank in ranks]
    routed.cut("b", "c")
    for rank in ranks:
        rank.say()
    told = [rank.expect("warned") for rank in ranks]  # long before the deadline
    for one in told:
        assert one["event"] == "silent links"
        assert one["text"] == told[0]["text"]
        assert "the coordinator hears both" in one["text"]
        for lower, higher in one["pairs"]:
            assert (places[lower], places[higher]) == ("b", "c"), one
            for rank in (lower, higher):
                host = routed.hosts[places[rank]]
                assert f"rank {rank} (host {host.name}, pid {pids[rank]})" in one["text"]
                assert f"{host.address}:" in one["text"]
    routed.heal()
    for rank in ranks:
        while (ended := rank.expect("warned", "ended"))["what"] == "warned":
            # Another pair of the same two hosts may be found a moment later.
            assert {(places[one], places[other]) for one, other in ended["pairs"]} == {("b", "c")}
        assert ended["error"] is None, ended


def test_a_link_that_stays_silent_for_the_window_counts_as_broken_on_all_ranks(
    start: Start, routed: Routed
) -> None:
    ranks = start("abc", programs.call_twice, 2, "all_to_all", 3)
    for rank in ranks:
        rank.expect("ready")
    routed.cut("b", "c")
    for rank in ranks:
        rank.say()
    verdicts = []
    for rank in ranks:
        rank.expect("warned")
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("PeerFailed", [2]), told
        assert told["warned"] == 1
        assert "nothing has come through for" in told["text"]
        verdicts.append(told["verdict"])
        [absent] = told["verdict"]["absent"]
        assert (absent["rank"], absent["state"]) == (2, "unreachable")
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_a_stopped_rank_is_not_taken_for_one_behind_a_silent_link(start: Start) -> None:
    ranks = start("abc", programs.call_twice, 2, "all_to_all", 3)
    pids = [rank.expect("ready")["pid"] for rank in ranks]
    os.kill(pids[2], signal.SIGSTOP)
    for rank in ranks[:2]:
        rank.say()
        rank.expect("ended")  # and not "warned" before that


def test_a_rank_whose_interpreter_is_held_up_is_not_taken_for_one_behind_a_silent_link(
    start: Start,
) -> None:
    ranks = start("abc", programs.hold_the_interpreter)
    for rank in ranks:
        assert rank.expect("ended")["warned"] == 0


@pytest.mark.parametrize("backend", ["auto", GRPC])
@pytest.mark.parametrize("queue", ["500ms", pytest.param("50ms", marks=pytest.mark.nightly)])
def test_a_slow_network_is_not_taken_for_a_silent_one(
    start: Start, routed: Routed, queue: str, backend: str
) -> None:
    ranks = start("abc", programs.call_over_slow_links, ALLHANDS_BACKEND=backend)
    for rank in ranks:
        rank.expect("ready")
    routed.slow("bc", "3mbit", queue)
    try:
        for rank in ranks:
            rank.say()
        for rank in ranks:
            assert rank.expect("ended")["warned"] == 0
    finally:
        routed.fast("bc")


def test_a_rank_one_call_ahead_is_told_who_is_missing_and_not_that_it_is(
    start: Start, routed: Routed
) -> None:
    ranks = start("abc", programs.run_one_call_ahead)
    for rank in ranks:
        rank.expect("ready")
    routed.cut("b", "c")
    for rank in ranks:
        rank.say()
    told = []
    for rank in ranks:
        while (one := rank.expect("warned", "ended"))["what"] == "warned":
            pass
        told.append(one)
        assert one["error"] == "CollectiveTimeout", one
    behind, ahead = told[1], told[2]
    assert (behind["op"], ahead["op"]) == ("broadcast", "all_reduce")
    assert (behind["ranks"], ahead["ranks"]) == ([2], [1]), (behind, ahead)
    assert ahead["verdict"]["absent"][0]["state"] == "unreachable"
    assert "rank 1 (host allhands-b" in ahead["text"]
    assert "is unreachable for rank 2 (host allhands-c" in ahead["text"]
