"""Worlds at three daemons on three etcd nodes."""

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
