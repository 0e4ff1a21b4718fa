"""CPUs dealt to the ranks of a host."""

import os
from pathlib import Path

from allhands.launcher.cpu_binding import Cpu, deal_cpus, read_usable_cpus

HYPER_THREADED = [
    Cpu(package, 0, core, package * 4 + core * 2 + thread)
    for package in range(2)
    for core in range(2)
    for thread in range(2)
]
"""Two packages of two cores with two hyper-threads each."""


def test_each_rank_gets_cores_of_its_own_in_contiguous_runs() -> None:
    assert deal_cpus(HYPER_THREADED, range(2)) == {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}
    assert deal_cpus(HYPER_THREADED, range(10, 13)) == {10: {0, 1}, 11: {2, 3}, 12: {4, 5, 6, 7}}


def test_more_ranks_than_cores_share_cores_but_no_hyper_thread() -> None:
    assert deal_cpus(HYPER_THREADED, range(8)) == {rank: {rank} for rank in range(8)}
    dealt = deal_cpus(HYPER_THREADED, range(5))
    assert sorted(number for bound in dealt.values() for number in bound) == [*range(8)]
    assert {len(bound) for bound in dealt.values()} == {1, 2}


def test_neighbours_are_found_by_place_and_not_by_number() -> None:
    """As many machines number them: all cores first, then their second hyper-threads."""
    cpus = [Cpu(0, 0, number % 4, number) for number in range(8)]
    assert deal_cpus(cpus, range(4)) == {rank: {rank, rank + 4} for rank in range(4)}


def test_with_fewer_cpus_than_ranks_none_is_bound() -> None:
    assert deal_cpus(HYPER_THREADED, range(9)) == {}


def test_the_place_of_a_cpu_is_read_from_sysfs_and_else_a_core_of_its_own(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for number in usable:
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{number + 7}\n")
        (folder / "physical_package_id").write_text("1\n")
    assert read_usable_cpus(tmp_path) == tuple(Cpu(1, 0, one + 7, one) for one in usable)
    unknown = read_usable_cpus(tmp_path / "nothing")
    assert {one.number for one in unknown} == set(usable)
    assert len({one.core_key for one in unknown}) == len(usable)
