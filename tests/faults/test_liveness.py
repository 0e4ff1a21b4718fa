"""Living ranks in silence: held up, stopped, cut off from the coordinator; none is lost."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import allhands as ah
from allhands.testing.faults import COORDINATOR, Plan, faults
from allhands.testing.poll import poll_until
from allhands.testing.proxy import session_through
from programs.silent_ranks import call_once_more
from support.ranks.forking import PATIENCE
from support.ranks.processes import GRPC, Cluster, Process

until = partial(poll_until, seconds=PATIENCE)

# Longer than the window of 5 s, after which a silent rank was counted as lost.
HELD = 7.0
# Longer than the handshake of a link waits for an answer.
HANDSHAKE = 9.0


def named(rank: Process) -> dict[str, object]:
    """Return a rank's first warning with the names of silent ranks."""
    return rank.expect("named")


def settled(rank: Process) -> dict[str, object]:
    """Return a rank's outcome of a call, after any warnings."""
    while (told := rank.expect("named", "sum"))["what"] == "named":
        pass
    return told


def start(cluster: Cluster, url: str, backend: str, *, is_first: bool = False) -> list[Process]:
    where = {"ALLHANDS_URL": f"{url}/job", "ALLHANDS_BACKEND": backend}
    ranks = cluster.world(3, call_once_more, is_first, **where)
    for rank in ranks:
        rank.expect("ready")
    return ranks


@pytest.mark.parametrize("backend", ["auto", "socket", GRPC])
@pytest.mark.parametrize("state", ["stalled", "paused"])
def test_a_rank_that_is_held_up_is_named_and_not_lost(
    cluster: Cluster, backend: str, state: str
) -> None:
    url = cluster.daemon()
    ranks = start(cluster, url, backend)
    for rank, order in zip(ranks, ("go", "hold", "go"), strict=True):
        rank.say(order)
    ranks[1].expect("holding")
    if state == "paused":
        os.kill(ranks[1].child.pid, signal.SIGSTOP)
    for rank in (ranks[0], ranks[2]):
        told = named(rank)
        assert told["states"] == {"1": state}
        assert "rank 1 (host " in str(told["text"])
        while state == "stalled" and "in read_a_large_pickle" not in str(told["text"]):
            told = named(rank)  # where it is may be known a moment later
    with ah.connect(f"{url}/job", token=token_of(cluster)) as control:
        until(lambda: control.members()[1].last_heartbeat > HELD)
        members = control.members()
        assert [one.state for one in members] == ["joined"] * 3
        assert [one.condition for one in members] == ["", state, ""]
        ranks[1].say()
        os.kill(ranks[1].child.pid, signal.SIGCONT)
        for rank in ranks:
            assert settled(rank)["right"]
            rank.say()
        for rank in ranks:
            rank.expect("done")
        # Until the coordinator has heard of it again.
        until(lambda: not any(one.condition for one in control.members()))


@pytest.mark.parametrize("backend", ["socket", GRPC])
def test_a_rank_is_not_lost_that_is_held_up_where_others_open_their_links_to_it(
    cluster: Cluster, backend: str
) -> None:
    url = cluster.daemon()
    ranks = start(cluster, url, backend, is_first=True)
    for rank, order in zip(ranks, ("go", "hold", "go"), strict=True):
        rank.say(order)
    ranks[1].expect("holding")
    with ah.connect(f"{url}/job", token=token_of(cluster)) as control:
        until(lambda: control.members()[1].last_heartbeat > HANDSHAKE)
    ranks[1].say()
    for rank in ranks:
        assert settled(rank)["right"]
        rank.say()
    for rank in ranks:
        rank.expect("done")


def token_of(cluster: Cluster) -> str:
    [path] = Path(cluster.runtime, "allhands").glob("coordinator-*.json")
    token: str = json.loads(path.read_text())["token"]
    return token


def parted(cluster: Cluster, plan: Plan, cut: set[int], backend: str) -> None:
    """Cut ranks off the coordinator for longer than the window, then end the cut."""
    url = cluster.daemon()
    port, token = int(url.rpartition(":")[2]), token_of(cluster)
    with session_through(plan, 1, ("127.0.0.1", port)) as proxy:
        urls = {rank: f"ah://127.0.0.1:{proxy.port}" if rank in cut else url for rank in range(3)}
        ranks = [
            cluster.start(
                call_once_more,
                False,
                RANK=str(rank),
                WORLD_SIZE="3",
                ALLHANDS_URL=f"{one}/job",
                ALLHANDS_TOKEN=token,
                ALLHANDS_BACKEND=backend,
            )
            for rank, one in urls.items()
        ]
        for rank in ranks:
            rank.expect("ready")
        plan.partition({1}, {COORDINATOR})
        with ah.connect(f"{url}/job", token=token) as control:
            until(lambda: all(control.members()[one].last_heartbeat > HELD for one in cut))
            members = control.members()
            assert [one.state for one in members] == ["joined"] * 3
            # Each call ends meanwhile: it needs no coordinator.
            for rank in ranks:
                rank.say("go")
            for rank in ranks:
                assert settled(rank)["right"]
            if len(cut) == 1:
                assert [one.condition for one in members] == ["", "unreachable", ""]
                assert "its peers hear it over links" in members[1].condition_text
            plan.is_over = True
            until(lambda: all(one.last_heartbeat < 2 for one in control.members()))
            assert [one.state for one in control.members()] == ["joined"] * 3
        for rank in ranks:
            rank.say()
        for rank in ranks:
            rank.expect("done")


@pytest.mark.parametrize("backend", ["auto", "socket", GRPC])
def test_a_rank_that_alone_loses_the_coordinator_is_called_that_and_works_on(
    cluster: Cluster, backend: str
) -> None:
    parted(cluster, faults(seed=7), {1}, backend)


def test_a_coordinator_that_was_out_of_reach_and_comes_back_finds_its_world_whole(
    cluster: Cluster,
) -> None:
    parted(cluster, faults(seed=7), {0, 1, 2}, "auto")
