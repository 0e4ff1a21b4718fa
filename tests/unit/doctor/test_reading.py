"""Reading of a host: from files of a fake /proc and /sys, and for real."""

import os
import socket
from pathlib import Path

import pytest

from allhands.doctor import memory_trial
from allhands.doctor.cgroup import read_cgroup_limits
from allhands.doctor.machine import CgroupLimits, MemoryTrial
from allhands.doctor.reading import read_machine


def write(root: Path, **files: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    write(tmp_path / "job", cpu__max="400000 100000\n", memory__max="1000000\n")
    write(tmp_path / "job/step", cpu__max="max 100000\n", memory__max="max\n")
    assert read_cgroup_limits("0::/job/step\n", tmp_path) == CgroupLimits(4.0, 1000000)
    write(tmp_path / "job/step", cpu__max="150000 100000\n", memory__max="2000000\n")
    assert read_cgroup_limits("0::/job/step\n", tmp_path) == CgroupLimits(1.5, 1000000)


def test_groups_of_version_1_have_their_own_trees(tmp_path: Path) -> None:
    write(tmp_path / "cpu/job", cpu__cfs_quota_us="200000\n", cpu__cfs_period_us="100000\n")
    write(tmp_path / "memory/job", memory__limit_in_bytes="3000000\n")
    write(tmp_path / "memory", memory__limit_in_bytes=f"{(1 << 63) - 4096}\n")
    text = "4:memory:/job\n3:cpu,cpuacct:/job\n"
    assert read_cgroup_limits(text, tmp_path) == CgroupLimits(2.0, 3000000)


def test_without_groups_nothing_is_limited(tmp_path: Path) -> None:
    assert read_cgroup_limits("", tmp_path) == CgroupLimits()
    assert read_cgroup_limits("0::/elsewhere\n", tmp_path) == CgroupLimits()


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allhands.doctor.reading.run_trial", MemoryTrial)


@pytest.mark.usefixtures("no_trial")
def test_security_settings_are_read_from_proc(tmp_path: Path) -> None:
    write(tmp_path / "sys/kernel/yama", ptrace_scope="2\n")
    write(tmp_path / "self", status="Name:\tpython\nSeccomp:\t2\n", cgroup="0::/\n")
    write(tmp_path / "sysfs/fs/cgroup", memory__max="5000\n")
    found = read_machine({}, proc=tmp_path, sysfs=tmp_path / "sysfs")
    assert (found.ptrace_scope, found.has_seccomp) == (2, True)
    assert found.cgroup.memory == 5000
    assert read_machine({}, proc=tmp_path / "none").ptrace_scope is None


@pytest.mark.usefixtures("no_trial")
def test_this_host_is_read() -> None:
    found = read_machine({})
    [loopback] = [one for one in found.interfaces if one.name == "lo"]
    assert "127.0.0.1" in loopback.addresses
    assert loopback.is_up
    assert loopback.mtu > 1500
    assert found.hostname == socket.gethostname()
    assert found.usable_cpus == len(os.sched_getaffinity(0))
    assert found.versions["allhands"]


@pytest.mark.usefixtures("no_trial")
def test_a_port_with_a_listener_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environ = {"ALLHANDS_PORT_RANGE": f"{port}-{port}"}
        assert read_machine(environ).taken_ports == (port,)
    assert read_machine(environ).taken_ports == ()
    assert read_machine({"ALLHANDS_PORT_RANGE": "wrong"}).taken_ports == ()


def test_two_processes_share_memory_here() -> None:
    assert memory_trial.run_trial() == MemoryTrial()


def test_memory_of_a_process_that_has_ended_is_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    told = f'{{"pid": {child}, "fd": 3, "nonce": "{"00" * 16}", "problem": "", "address": 4096}}'
    memory_trial._look(told)
    said = capsys.readouterr().out
    assert f"No such file or directory: '/proc/{child}/fd/3'" in said
    assert "process_vm_readv: No such process" in said
