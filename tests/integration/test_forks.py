"""Forked children of ranks and of stores: successful calls, and refused calls.

Each child collects its garbage, does its part, and ends as interpreters do. A child that
hangs prints its stacks, and fails the test.
"""

import pytest

from programs import forks
from support.ranks.addresses import free_port
from support.ranks.processes import Cluster, Job, Process

WELL = [[0, 3.0], [0, 3.0]]


def finished(processes: list[Process]) -> None:
    for process in processes:
        assert process.ended() == 0, "".join(process.errors)


def test_children_make_a_world_when_their_parent_has_left_one(cluster: Cluster) -> None:
    parent = cluster.start(forks.fork_after_a_world)
    assert parent.expect("children") == {"what": "children", "ended": WELL, "first": 1.0}
    assert parent.expect("again")["first"] == 1.0
    finished([parent])


def test_children_make_a_world_while_their_parent_is_in_one(job: Job) -> None:
    ranks = job(
        2,
        forks.fork_within_a_world,
    )
    for rank in ranks:
        assert rank.expect("children") == {
            "what": "children",
            "ended": WELL,
            "parents": [4.0, 4.0, 4.0],
        }
    finished(ranks)


def test_children_of_children_make_a_world(cluster: Cluster) -> None:
    parent = cluster.start(forks.fork_within_a_child)
    youngest = [1.0, None, 1.0]
    middle = [1.0, [0, youngest], 1.0]
    assert parent.expect("told")["all"] == [1.0, [0, middle], 1.0]
    finished([parent])


def test_children_of_threads_that_are_or_were_ranks_make_a_world(cluster: Cluster) -> None:
    parent = cluster.start(forks.fork_threads_of_ranks)
    told = parent.expect("told")
    assert told["inside"] == [[[4.0, 4.0], WELL], [[4.0, 4.0], None]]
    assert told["after"] == WELL
    finished([parent])


@pytest.mark.parametrize("by", ["store", "port"])
def test_workers_that_the_host_of_a_store_forks_meet_there(cluster: Cluster, by: str) -> None:
    launcher = cluster.start(forks.fork_workers_of_a_store, by)
    told = launcher.expect("workers")
    assert told["ended"] == [[0, ["launcher", 3.0]], [0, ["launcher", 3.0]]]
    assert told["kept"] == "launcher"
    finished([launcher])


def test_what_a_world_leaves_does_not_hold_up_a_child_that_collects_it(cluster: Cluster) -> None:
    parent = cluster.start(forks.fork_before_collecting, free_port())
    assert parent.expect("child")["ended"] == [0, 1]
    finished([parent])


def test_a_child_that_lets_go_of_a_store_and_a_world_leaves_them_to_its_parent(
    cluster: Cluster,
) -> None:
    parent = cluster.start(forks.close_what_is_inherited, free_port())
    assert parent.expect("child") == {"what": "child", "ended": [0, True], "key": "1"}
    finished([parent])


@pytest.mark.parametrize("backend", ["auto", "socket"], indirect=True)
def test_what_a_child_inherits_of_a_world_refuses_by_name(job: Job) -> None:
    ranks = job(
        2,
        forks.call_what_is_inherited,
    )
    for rank in ranks:
        told = rank.expect("told")
        assert told["child"] == [0, [True, {}, False]], told
        assert told["sums"] == [[3.0] * 3] * 2
    finished(ranks)


def test_a_prepared_call_under_way_is_not_ended_by_a_child(job: Job) -> None:
    ranks = job(
        2,
        forks.wait_for_what_is_inherited,
    )
    for me, rank in enumerate(ranks):
        told = rank.expect("told")
        assert told["child"] == [0, ["ForkedProcess", [me + 1.0] * 3]]
        assert told["sum"] == [3.0] * 3
    finished(ranks)


def test_a_child_that_closes_a_client_leaves_its_parents_calls_alone(cluster: Cluster) -> None:
    parent = cluster.start(
        forks.close_an_inherited_client,
        ALLHANDS_URL=cluster.daemon() + "/job",
    )
    assert parent.expect("told") == {"what": "told", "child": [0, None], "got": ["2"]}
    finished([parent])


def test_a_client_that_calls_by_grpc_does_so_in_a_child_too(cluster: Cluster) -> None:
    parent = cluster.start(
        forks.call_by_grpc_in_a_child,
        ALLHANDS_URL=cluster.daemon() + "/job",
    )
    assert parent.expect("told") == {"what": "told", "child": [0, ["1", 1]], "n": 2}
    finished([parent])


def test_where_grpc_cannot_be_loaded_again_a_child_is_told_what_to_do(cluster: Cluster) -> None:
    parent = cluster.start(forks.fork_without_memory_files)
    status, failure = parent.expect("told")["child"]
    assert (status, failure["error"]) == (0, "RuntimeError"), failure
    assert "forked" in failure["text"]
    assert "spawn" in failure["text"]
    finished([parent])
