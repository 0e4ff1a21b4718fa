"""A host on which nothing is wrong, for tests that break one thing each."""

from allhands.doctor.machine import (
    CgroupLimits,
    CoordinatorReading,
    Machine,
    MemoryTrial,
    ResourceLimit,
    SharedDirectory,
)
from allhands.runtime.interfaces import NetworkInterface

LOOPBACK = NetworkInterface("lo", ("127.0.0.1",), is_up=True, mtu=65536)
ETHERNET = NetworkInterface("eth0", ("10.0.0.5", "fd00::5"), is_up=True, mtu=1500)

HEALTHY = Machine(
    environ={},
    hostname="node5",
    name_addresses=("10.0.0.5",),
    interfaces=(LOOPBACK, ETHERNET),
    outside_address="10.0.0.5",
    advertise_addresses=(),
    taken_ports=(),
    runtime_directory="/run/user/1000/allhands",
    runtime_problem="",
    shm=SharedDirectory(8 << 30, 8 << 30, is_writable=True),
    trial=MemoryTrial(),
    ptrace_scope=0,
    has_seccomp=False,
    core_problem="",
    compiler="/usr/bin/cc",
    open_files=ResourceLimit(65536, 65536),
    locked_bytes=ResourceLimit(8 << 20, 8 << 20),
    usable_cpus=8,
    host_cpus=8,
    memory=32 << 30,
    cgroup=CgroupLimits(),
    versions={"Python": "3.12.1", "allhands": "0.1.0"},
)

ANSWERING = CoordinatorReading(
    url="ah://10.0.0.1:7070",
    has_tls=True,
    token="cluster",
    round_trip=0.0004,
    clock_offset=0.0001,
    versions="versions 1 to 2",
    own_versions="versions 1 to 2",
    is_reached_by_others=True,
    own_address="10.0.0.5",
)
