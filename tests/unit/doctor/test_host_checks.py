"""Checks of memory, processors, limits and installation: each breaks a healthy host."""

from dataclasses import replace

import pytest

from allhands.doctor import host_checks, software_checks
from allhands.doctor.finding import Level
from allhands.doctor.machine import (
    CgroupLimits,
    Machine,
    MemoryTrial,
    ResourceLimit,
    SharedDirectory,
)
from unit.doctor.machines import HEALTHY

DENIED = MemoryTrial(attach_problem="process_vm_readv: Operation not permitted")


def test_a_healthy_host_has_no_finding_to_fix() -> None:
    found = [
        *host_checks.check_host(HEALTHY, ranks=4, world_size=64),
        *software_checks.check_software(HEALTHY),
    ]
    assert {one.status for one in found} == {Level.OK}


def test_an_unusable_runtime_directory_fails() -> None:
    found = host_checks.check_runtime_directory(
        replace(HEALTHY, runtime_directory="", runtime_problem="/tmp/allhands-0 must be ...")
    )
    assert (found.status, "XDG_RUNTIME_DIR" in found.fix) == (Level.FAIL, True)


def test_a_runtime_directory_that_is_not_there_is_warned_of() -> None:
    found = host_checks.check_runtime_directory(
        replace(
            HEALTHY, environ={"XDG_RUNTIME_DIR": "/run/user/7"}, runtime_directory="/tmp/allhands-7"
        )
    )
    assert found.status is Level.WARN
    assert "XDG_RUNTIME_DIR=/run/user/7 is not there" in found.detail


def test_memory_that_cannot_be_mapped_fails_with_the_reason() -> None:
    found = host_checks.check_shared_memory(
        replace(HEALTHY, trial=MemoryTrial(map_problem="[Errno 13] Permission denied"))
    )
    assert found.status is Level.FAIL
    assert "Permission denied" in found.detail
    assert "hidepid" in found.fix


def test_memory_is_not_judged_without_the_core() -> None:
    found = host_checks.check_shared_memory(replace(HEALTHY, core_problem="missing"))
    assert found.status is Level.SKIP


@pytest.mark.parametrize(
    ("scope", "seccomp", "fix"),
    [
        (1, False, "sysctl -w kernel.yama.ptrace_scope=0"),
        (None, True, "start the container with --cap-add SYS_PTRACE"),
        (0, False, "run all ranks of a host as one user, with CAP_SYS_PTRACE"),
    ],
)
def test_a_denied_attach_is_warned_of_with_its_cause(
    scope: int | None, seccomp: bool, fix: str
) -> None:
    found = host_checks.check_attach(
        replace(HEALTHY, trial=DENIED, ptrace_scope=scope, has_seccomp=seccomp)
    )
    assert (found.status, found.fix) == (Level.WARN, fix)
    assert "Operation not permitted" in found.detail


@pytest.mark.parametrize(
    "shm",
    [
        None,
        SharedDirectory(64 << 20, 64 << 20, is_writable=True),
        SharedDirectory(8 << 30, 8 << 30, is_writable=False),
        SharedDirectory(8 << 30, 1 << 20, is_writable=True),
    ],
)
def test_a_small_or_missing_shm_directory_is_warned_of(shm: SharedDirectory | None) -> None:
    found = host_checks.check_shm_directory(replace(HEALTHY, shm=shm))
    assert (found.status, "--shm-size" in found.fix) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("soft", "world_size", "status"),
    [
        (None, 5000, Level.OK),
        (1024, 300, Level.OK),
        (1024, 400, Level.FAIL),
        (256, 4, Level.WARN),
        (256, 0, Level.WARN),
    ],
)
def test_open_files_are_compared_with_the_links_of_a_rank(
    soft: int | None, world_size: int, status: Level
) -> None:
    limited = replace(HEALTHY, open_files=ResourceLimit(soft, 65536))
    assert host_checks.check_open_files(limited, world_size).status is status


def limited(cpus: float | None = None, memory: int | None = None, **environ: str) -> Machine:
    return replace(HEALTHY, cgroup=CgroupLimits(cpus, memory), environ=environ)


def test_more_ranks_than_processors_are_warned_of() -> None:
    assert host_checks.check_processors(limited(cpus=2.5), 3).status is Level.WARN
    assert host_checks.check_processors(limited(cpus=2.5), 2).status is Level.OK
    assert host_checks.check_processors(replace(HEALTHY, usable_cpus=1), 2).status is Level.WARN


def test_too_little_memory_of_the_control_group_is_warned_of() -> None:
    assert host_checks.check_memory(limited(memory=200 << 20), 4).status is Level.WARN
    assert host_checks.check_memory(limited(memory=200 << 20), 1).status is Level.OK


def test_threads_that_outnumber_the_processors_are_warned_of() -> None:
    found = host_checks.check_threads(limited(OMP_NUM_THREADS="8"), 4)
    assert (found.status, found.fix) == (Level.WARN, "OMP_NUM_THREADS=2")
    assert host_checks.check_threads(limited(OMP_NUM_THREADS="2"), 4).status is Level.OK
    assert host_checks.check_threads(limited(OMP_NUM_THREADS="2,1"), 4).status is Level.OK
    assert host_checks.check_threads(limited(OMP_NUM_THREADS="many"), 4).status is Level.WARN


def test_a_missing_core_is_warned_of_with_the_way_to_build_it() -> None:
    broken = replace(HEALTHY, core_problem="the native core is missing: slower; build it")
    found = software_checks.check_core(broken)
    assert (found.status, found.fix) == (Level.WARN, "build it")
    assert software_checks.check_compiler(broken).status is Level.SKIP
    assert software_checks.check_compiler(replace(broken, compiler="")).status is Level.WARN
