"""CPUs of the ranks of a host: topology as sysfs tells it, and the deal of CPUs to ranks.

The deal is pure: the topology comes as an argument.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """A logical CPU and its place; those of one core are its hyper-threads."""

    package: int
    die: int
    core: int
    number: int
    """As in affinity masks."""

    @property
    def core_key(self) -> tuple[int, int, int]:
        return self.package, self.die, self.core


def read_usable_cpus(sysfs: Path = _SYSFS) -> tuple[Cpu, ...]:
    """Return the CPUs in this process's affinity mask.

    Where sysfs does not tell the place of a CPU, it counts as a core of its own.
    """
    return tuple(sorted(_read_cpu(sysfs, number) for number in os.sched_getaffinity(0)))


def _read_cpu(sysfs: Path, number: int) -> Cpu:
    folder = sysfs / f"cpu{number}" / "topology"
    try:
        core = int((folder / "core_id").read_text())
        package = int((folder / "physical_package_id").read_text())
    except (FileNotFoundError, ValueError):
        return Cpu(0, 0, -1 - number, number)  # no kernel numbers a core so
    try:
        die = int((folder / "die_id").read_text())
    except (FileNotFoundError, ValueError):  # before Linux 5.2
        die = 0
    return Cpu(package, die, core, number)


def deal_cpus(cpus: Iterable[Cpu], ranks: Sequence[int]) -> Mapping[int, frozenset[int]]:
    """Deal CPUs to the ranks of a host, in runs of neighbours, as evenly as possible.

    Whole cores, if there is one for each rank: then no two ranks share a core. Else
    hyper-threads. With fewer CPUs than ranks: empty, no rank is bound.
    """
    ordered = sorted(cpus)
    if len(ordered) < len(ranks):
        return {}
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in ordered:
        cores.setdefault(cpu.core_key, []).append(cpu.number)
    units = list(cores.values())
    if len(units) < len(ranks):
        units = [[cpu.number] for cpu in ordered]
    dealt = {}
    for place, rank in enumerate(ranks):
        start, stop = (len(units) * at // len(ranks) for at in (place, place + 1))
        dealt[rank] = frozenset(number for unit in units[start:stop] for number in unit)
    return dealt
