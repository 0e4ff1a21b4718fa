"""Worlds at three daemons on three etcd nodes."""

import signal
import time

import pytest

from allhands.errors import CoordinatorUnavailable
from programs import several_daemons
from support.daemon_group import TOKEN, DaemonGroup, run_group
from support.etcd_nodes import EtcdNodes
from support.ranks.processes import Cluster, Process


@pytest.fixture
def group(cluster: Cluster, nodes: EtcdNodes) -> DaemonGroup:
    with run_group(cluster, nodes) as running:
        return running


def start_world(cluster: Cluster, group: DaemonGroup, job: str) -> list[Process]:
    ranks = cluster.world(
        2,
        several_daemons.obey,
        60,
        ALLHANDS_URL=group.url.replace("/job", f"/{job}"),
        ALLHANDS_TOKEN=TOKEN,
    )
    for one in ranks:
        one.expect("ready")
    return ranks


def order(ranks: list[Process], what: str) -> None:
    for one in ranks:
        one.say(what)
    for one in ranks:
        assert one.expect("done")["order"] == what


def wait_heartbeats(group: DaemonGroup, port: int) -> None:
    """Wait until a daemon has heard of each member of job `w`."""
    heard: set[int] = set()
    silent_for: dict[int, float] = {}
    deadline = time.monotonic() + 60
    with group.connect(port) as control:
        while len(heard) < 2:
            assert time.monotonic() < deadline, silent_for
            for member in control.job("w").members:
                if member.last_heartbeat < silent_for.get(member.rank, 0.0):
                    heard.add(member.rank)
                silent_for[member.rank] = member.last_heartbeat
            time.sleep(0.05)  # nothing tells of a heartbeat


def test_a_world_goes_on_without_etcd_and_makes_groups_afterwards(
    cluster: Cluster, group: DaemonGroup, nodes: EtcdNodes
) -> None:
    ranks = start_world(cluster, group, "w")
    order(ranks, "group")
    for node in nodes.nodes[1:]:
        node.kill()
    refused = pytest.raises(CoordinatorUnavailable, match="the coordinator's log is away")
    with group.connect(group.find_leader()) as control, refused:
        control.add("n")
    order(ranks, "reduce")
    for node in nodes.nodes[1:]:
        nodes.restart(node)
    with group.connect(timeout=60) as control:
        control.jobs()  # which waits until requests are taken
    order(ranks, "reduce")
    order(ranks, "group")
    for one in ranks:
        one.say("end")
    assert [one.ended() for one in ranks] == [0, 0]


def test_a_world_goes_on_without_its_leader_and_others_join_at_the_new_one(
    cluster: Cluster, group: DaemonGroup
) -> None:
    ranks = start_world(cluster, group, "w")
    leader = group.find_leader()
    group.kill(leader)
    order(ranks, "reduce")
    others = start_world(cluster, group, "other")
    order(others, "group")
    order(ranks, "reduce")
    with group.connect(timeout=60) as control:
        assert "other" in [job.job for job in control.jobs()]


def test_a_world_goes_on_at_the_next_leader(cluster: Cluster, group: DaemonGroup) -> None:
    ranks = start_world(cluster, group, "w")
    for fault in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        leader = group.find_leader()
        group.send(leader, fault)
        order(ranks, "reduce")
        group.find_leader(besides=leader)
        order(ranks, "group")
        if fault is signal.SIGSTOP:
            wait_heartbeats(group, group.find_leader(besides=leader))
            group.send(leader, signal.SIGCONT)
        else:
            group.restart(leader)
        order(ranks, "group")
    for one in ranks:
        one.say("end")
    assert [one.ended() for one in ranks] == [0, 0]
