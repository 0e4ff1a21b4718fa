"""Histories of 8 clients while leaders are killed, paused and ended."""

import os

import pytest

from support.daemon_group import LeadingDaemon, run_group
from support.etcd_nodes import EtcdNodes
from support.linearizability.lockers import run_locks
from support.linearizability.run import run_history
from support.ranks.processes import Cluster

OPERATIONS = int(os.environ.get("ALLHANDS_HISTORY_OPERATIONS", "5000"))
FAULTS = int(os.environ.get("ALLHANDS_HISTORY_FAULTS", "6"))
SEED = int(os.environ.get("ALLHANDS_HISTORY_SEED", "1"))


@pytest.mark.timeout(600 + OPERATIONS / 20)
def test_a_history_over_several_leaders_is_linearizable(cluster: Cluster, nodes: EtcdNodes) -> None:
    with run_group(cluster, nodes) as group:
        run = run_history(LeadingDaemon(group), None, OPERATIONS, FAULTS, SEED)
    print(run)
    assert not run.contradictions, run
    assert run.operations > OPERATIONS * 0.9
    assert {"kill", "pause", "restart"} <= set(run.faults)


@pytest.mark.timeout(600 + OPERATIONS / 20)
def test_a_lock_has_one_holder_at_a_time_over_several_leaders(
    cluster: Cluster, nodes: EtcdNodes
) -> None:
    with run_group(cluster, nodes) as group:
        run = run_locks(LeadingDaemon(group), OPERATIONS // 4, FAULTS)
    print(run)
    assert not run.contradictions, run
    assert run.acquisitions > OPERATIONS // 12
    assert {"kill", "pause", "restart"} <= set(run.faults)
