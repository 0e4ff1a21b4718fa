"""Three daemons on three etcd nodes: killed, paused, without their store."""

import signal
import threading
from collections.abc import Callable

import pytest

from allhands.errors import CoordinatorUnavailable
from support.daemon_group import DaemonGroup, Writers, run_group
from support.etcd_nodes import EtcdNodes
from support.ranks.processes import Cluster


@pytest.fixture
def group(cluster: Cluster, nodes: EtcdNodes) -> DaemonGroup:
    with run_group(cluster, nodes) as running:
        return running


def report(what: str, writers: Writers) -> None:
    """Print figures, for a run with -s."""
    unknown = sum(one for _, one in writers.sums)
    print(
        f"\n{what}: longest time without an acknowledged write {writers.longest_gap:.2f} s, "
        f"{len(writers.times):,} acknowledged, {unknown} of unknown outcome"
    )


def test_three_leaders_killed_in_a_row_lose_and_double_nothing(group: DaemonGroup) -> None:
    with Writers(group) as writers:
        for _ in range(3):
            writers.wait_more(200)
            leader = group.find_leader()
            group.kill(leader)
            assert group.find_leader(besides=leader) != leader
            writers.wait_more(200)
            group.restart(leader)
    report("three leaders killed", writers)
    writers.check()


def test_a_paused_leader_is_replaced_and_acknowledges_nothing_more(group: DaemonGroup) -> None:
    old = group.find_leader()
    with group.connect(old) as direct, Writers(group) as writers:
        writers.wait_more(200)
        assert direct.add("direct") == 1
        group.send(old, signal.SIGSTOP)
        outcomes: list[str] = []

        def call(make: Callable[[], object]) -> None:
            try:
                outcomes.append(f"acknowledged {make()!r}")
            except CoordinatorUnavailable as error:
                outcomes.append(f"refused: {error}")

        calls = [
            threading.Thread(target=call, args=(make,))
            for make in (lambda: direct.add("direct"), lambda: direct.get("direct"))
        ]
        for one in calls:
            one.start()
        new = group.find_leader(besides=old)
        with group.connect(new) as at_new:
            assert at_new.add("direct", 10) in (11, 12)
        writers.wait_more(200)
        group.send(old, signal.SIGCONT)
        for one in calls:
            one.join()
        assert [one[:7] for one in outcomes] == ["refused"] * 2, outcomes
        writers.wait_more(200)
        with group.connect() as control:
            assert control.get("direct") in (b"11", b"12")
    report("leader paused and continued", writers)
    writers.check()


def test_without_etcd_requests_are_refused_by_name_until_it_is_back(
    group: DaemonGroup, nodes: EtcdNodes
) -> None:
    leader = group.find_leader()
    with group.connect(leader) as control:
        assert control.add("n") == 1
        for node in nodes.nodes[1:]:
            node.kill()
        for make in (lambda: control.add("n"), lambda: control.get("n"), lambda: control.jobs()):
            with pytest.raises(CoordinatorUnavailable, match="the coordinator's log is away"):
                make()
        for node in nodes.nodes[1:]:
            nodes.restart(node)
    with group.connect(timeout=60) as control:
        assert int(control.get("n")) in (1, 2)
        before = int(control.get("n"))
        assert control.add("n") == before + 1


def test_writes_go_on_while_one_node_after_the_other_is_started_anew(
    group: DaemonGroup, nodes: EtcdNodes
) -> None:
    with Writers(group) as writers:
        for node in nodes.nodes:
            writers.wait_more(100)
            node.kill()
            writers.wait_more(100)
            nodes.restart(node)
            nodes.find_leader()
    report("etcd's nodes killed one by one", writers)
    writers.check()
