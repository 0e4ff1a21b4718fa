"""Limits of control groups, version 1 and 2, as a tree of files tells them."""

from collections.abc import Iterator
from pathlib import Path

from allhands.doctor.machine import CgroupLimits

_UNLIMITED_V1 = 1 << 60
"""Version 1 has a huge number where there is no limit of memory."""


def read_cgroup_limits(membership: str, root: Path) -> CgroupLimits:
    """Return the tightest limits of this process's control groups.

    Args:
        membership: text of /proc/self/cgroup.
        root: where the trees are mounted, usually /sys/fs/cgroup.
    """
    cpus: list[float] = []
    memory: list[int] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for folder in _list_folders(root, path):
                cpus += _read_cpus(folder / "cpu.max")
                memory += _read_memory(folder / "memory.max")
        elif "cpu" in controllers.split(","):
            for folder in _list_folders(root / "cpu", path):
                cpus += _read_cpus_v1(folder)
        elif "memory" in controllers.split(","):
            for folder in _list_folders(root / "memory", path):
                memory += _read_memory(folder / "memory.limit_in_bytes")
    return CgroupLimits(min(cpus, default=None), min(memory, default=None))


def _list_folders(tree: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and of those around it.

    In a container the path may be one of the host, of which only the tree's root is mounted.
    """
    folder = tree / path.lstrip("/")
    yield from (one for one in (folder, *folder.parents) if one.is_relative_to(tree))


def _read_cpus(file: Path) -> list[float]:
    match _read(file).split():
        case [quota, period] if quota.isdecimal() and int(period):
            return [int(quota) / int(period)]
    return []


def _read_cpus_v1(folder: Path) -> list[float]:
    quota, period = (_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if quota.isdecimal() and period.isdecimal() and int(period):
        return [int(quota) / int(period)]
    return []


def _read_memory(file: Path) -> list[int]:
    text = _read(file).strip()
    return [int(text)] if text.isdecimal() and int(text) < _UNLIMITED_V1 else []


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
