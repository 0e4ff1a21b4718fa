"""Histories of 8 clients while the daemon is killed, paused, restarted, and its disk fills.

Variables for longer runs: ALLHANDS_HISTORY_OPERATIONS, ALLHANDS_HISTORY_FAULTS and
ALLHANDS_HISTORY_SEED; `make test-histories` sets them.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allhands.testing.poll import poll_until
from support.full_disk import SmallDisk
from support.linearizability.altered_daemon import (
    MISTAKES,
    forget_keep_alives,
    grant_locks_twice,
    make_command,
    save_snapshots_often,
)
from support.linearizability.clients import Progress
from support.linearizability.disturbances import provide_disk
from support.linearizability.lockers import run_locks
from support.linearizability.run import run_history
from support.linearizability.watchers import watching
from support.served_daemon import ServedDaemon

OPERATIONS = int(os.environ.get("ALLHANDS_HISTORY_OPERATIONS", "5000"))
FAULTS = int(os.environ.get("ALLHANDS_HISTORY_FAULTS", "6"))
SEED = int(os.environ.get("ALLHANDS_HISTORY_SEED", "1"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk | None]:
    """A disk under the daemon's folder that can be filled, where one can be mounted."""
    with provide_disk(tmp_path / "data") as disk:
        yield disk


@pytest.mark.timeout(600 + OPERATIONS / 50)
def test_a_history_with_faults_is_linearizable(tmp_path: Path, disk: SmallDisk | None) -> None:
    daemon = ServedDaemon(tmp_path, make_command(save_snapshots_often))
    try:
        run = run_history(daemon, disk, OPERATIONS, FAULTS, SEED)
    finally:
        daemon.close()
    print(run)
    assert not run.contradictions, run
    assert run.operations > OPERATIONS * 0.9
    assert {"kill", "pause", "restart"} <= set(run.faults)
    assert run.refused or disk is None
    assert run.events > OPERATIONS // 20
    assert run.keep_alives


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.__name__)
def test_a_mistake_is_found_in_a_history(tmp_path: Path, mistake: Callable[[], None]) -> None:
    daemon = ServedDaemon(tmp_path, make_command(mistake))
    try:
        run = run_history(daemon, None, calls=1_200, faults=1, seed=SEED)
    finally:
        daemon.close()
    assert run.contradictions


@pytest.mark.timeout(600)
def test_a_lease_that_ends_too_early_is_found(tmp_path: Path) -> None:
    daemon = ServedDaemon(tmp_path, make_command(forget_keep_alives))
    progress = Progress()
    try:
        daemon.start()
        with watching(daemon.endpoint, progress) as (_, holder):
            poll_until(lambda: holder.ends > 0, 60)
    finally:
        daemon.close()
    assert holder.keep_alives
    assert "before its time" in holder.faults[0]


@pytest.mark.timeout(600 + OPERATIONS / 50)
def test_a_lock_has_one_holder_at_a_time_over_faults(tmp_path: Path) -> None:
    daemon = ServedDaemon(tmp_path, make_command(save_snapshots_often))
    try:
        run = run_locks(daemon, OPERATIONS // 2, FAULTS)
    finally:
        daemon.close()
    print(run)
    assert not run.contradictions, run
    assert run.acquisitions > OPERATIONS // 6
    assert {"kill", "pause", "restart"} <= set(run.faults)


@pytest.mark.timeout(600)
def test_a_lock_that_is_granted_twice_is_found(tmp_path: Path) -> None:
    daemon = ServedDaemon(tmp_path, make_command(grant_locks_twice))
    try:
        run = run_locks(daemon, calls=600, faults=1)
    finally:
        daemon.close()
    assert any(name.startswith("lock") for name in run.contradictions)
    assert any(name.startswith("count") for name in run.contradictions)
