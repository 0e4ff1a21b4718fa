"""Two hosts that do not reach each other, while both reach the coordinator on a third one."""

import os
import signal
import textwrap
from collections.abc import Callable, Iterator

import pytest

from support.ranks.addresses import free_port
from support.ranks.processes import GRPC, Cluster, Process
from support.ranks.routed_hosts import ENTER, Routed, routed_hosts

PORT = str(free_port())
"""Of loopback here; nobody else listens in those namespaces."""

PREAMBLE = """
import logging

class Notes(logging.Handler):
    def emit(self, record):
        facts = getattr(record, "allhands", {})
        if str(facts.get("event", "")).startswith("silent links"):
            warned.append((facts["event"], facts["pairs"], record.getMessage()))
            tell("warned", event=facts["event"], pairs=facts["pairs"], text=record.getMessage(),
                 seconds=time.monotonic() - begun)

warned = []
begun = time.monotonic()
logging.getLogger("allhands").addHandler(Notes())
"""

Start = Callable[..., list[Process]]


@pytest.fixture(scope="module")
def routed() -> Iterator[Routed]:
    with routed_hosts("abc") as hosts:
        yield hosts


@pytest.fixture
def start(cluster: Cluster, routed: Routed) -> Iterator[Start]:
    """Give a function that runs a script in a world whose ranks are on the hosts named."""

    def started(places: str, script: str, **environment: str) -> list[Process]:
        return [
            cluster.start(
                ENTER.format(holder=routed.hosts[place].holder)
                + PREAMBLE
                + textwrap.dedent(script),
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


SCRIPT = """
ah.init_process_group(timeout=50, heartbeat_window={window})
me, size = ah.get_rank(), ah.get_world_size()
x = np.ones({length})

def all_reduce():
    ah.all_reduce(x)

def all_to_all():
    ah.all_to_all_single(np.ones_like(x), x)
    ah.barrier()

def asynchronous():
    ah.all_reduce(x, async_op=True).wait()

def broadcast():
    ah.broadcast(x, src=1)
    ah.barrier()

def message():
    if me == 1:
        ah.recv(x, src=2)
    if me == 2:
        ah.send(x, dst=1)
    ah.barrier()

def any_source():
    if me == 1:
        ah.recv(x, src=None)
    if me == 2:
        ah.send(x, dst=1)
    ah.barrier()

{call}()
tell("ready", pid=os.getpid())
hear()
begun = time.monotonic()
failed = failure({call})
tell("ended", warned=len(warned), **failed)
hear()
os._exit(0)
"""


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
    script = SCRIPT.format(window=40, call=call, length=length)
    ranks = start(places, script, ALLHANDS_BACKEND=backend)
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
    ranks = start("abc", SCRIPT.format(window=2, call="all_to_all", length=3))
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
    ranks = start("abc", SCRIPT.format(window=2, call="all_to_all", length=3))
    pids = [rank.expect("ready")["pid"] for rank in ranks]
    os.kill(pids[2], signal.SIGSTOP)
    for rank in ranks[:2]:
        rank.say()
        rank.expect("ended")  # and not "warned" before that


def test_a_rank_whose_interpreter_is_held_up_is_not_taken_for_one_behind_a_silent_link(
    start: Start,
) -> None:
    ranks = start(
        "abc",
        """
        import ctypes
        ah.init_process_group(timeout=50)
        x, y = np.ones(3), np.ones(3)
        ah.all_to_all_single(y, x)
        if ah.get_rank() == 2:
            ctypes.PyDLL(None).usleep(3_500_000)  # with the GIL
        ah.all_to_all_single(y, x)
        tell("ended", warned=len(warned))
        ah.destroy_process_group()
        """,
    )
    for rank in ranks:
        assert rank.expect("ended")["warned"] == 0


@pytest.mark.parametrize("backend", ["auto", GRPC])
@pytest.mark.parametrize("queue", ["500ms", pytest.param("50ms", marks=pytest.mark.nightly)])
def test_a_slow_network_is_not_taken_for_a_silent_one(
    start: Start, routed: Routed, queue: str, backend: str
) -> None:
    ranks = start(
        "abc",
        """
        ah.init_process_group(timeout=50, heartbeat_window=2)
        x = np.ones(1 << 18)
        ah.barrier()
        tell("ready")
        hear()
        ah.all_reduce(x)
        ah.barrier()
        tell("ended", warned=len(warned))
        hear()
        os._exit(0)
        """,
        ALLHANDS_BACKEND=backend,
    )
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
    ranks = start(
        "abc",
        """
        ah.init_process_group(timeout=50)
        x = np.ones(3)
        for root in range(3):
            ah.broadcast(x, src=root)
        tell("ready")
        hear()

        def two():
            ah.broadcast(x, src=2, timeout=2.5)
            ah.all_reduce(x, timeout=2.5)

        tell("ended", **failure(two))
        hear()
        os._exit(0)
        """,
    )
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
