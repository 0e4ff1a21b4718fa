"""Test tools of allhands, also for tests of programs that use allhands."""

from allhands.testing import virtual_time
from allhands.testing.compare import assert_equal_on_rank, assert_not_equal_on_rank
from allhands.testing.faults import COORDINATOR, FaultEvent, Plan, faults
from allhands.testing.faulty_world import FaultyWorld, faulty_world
from allhands.testing.interleave import interleave
from allhands.testing.local_cluster import LocalCluster
from allhands.testing.rank_errors import RankError, RanksStuck
from allhands.testing.replica import ScheduleError
from allhands.testing.simulate import Traffic, simulate
from allhands.testing.threads import on_threads, run_threads

__all__ = [
    "COORDINATOR",
    "FaultEvent",
    "FaultyWorld",
    "LocalCluster",
    "Plan",
    "RankError",
    "RanksStuck",
    "ScheduleError",
    "Traffic",
    "assert_equal_on_rank",
    "assert_not_equal_on_rank",
    "faults",
    "faulty_world",
    "interleave",
    "on_threads",
    "run_threads",
    "simulate",
    "virtual_time",
]
