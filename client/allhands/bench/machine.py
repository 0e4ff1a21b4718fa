"""Limits of this machine, printed with every result."""

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allhands.bench import tcp

_ROUNDS = 30
_CACHED_BYTES = 1 << 20
_MEMORY_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Upper bounds of the machine for any system."""

    cores: int
    cross_core_read_gbs: float | None
    """How fast one core copies what another has just written; None: one core."""
    memory_copy_gbs: float
    """How fast one core copies memory that no cache holds."""
    line_bounce_ns: float | None
    """A cache line from core to core, one way; None: one core, or no compiler to measure it."""
    tcp_round_trip_us: float
    """One byte there and back over loopback, both sides blocking."""
    tcp_gbs: float
    """One way over loopback, in GB/s."""


@dataclass(frozen=True, slots=True)
class RunLoad:
    """What else the machine did during a run."""

    seconds: float
    load_average_before: float
    """Of the last minute, as the kernel counts it."""
    load_average_after: float
    """The run's own processes count here too."""
    others_cpu: float
    """Part of all cores' time that went to programs that have no part in the run."""


class LoadMeter:
    """Measures the load by other programs from its making on."""

    def __init__(self) -> None:
        self._begun, self._busy = time.monotonic(), read_busy_seconds()
        self._own = _read_own_seconds()
        self._average = os.getloadavg()[0]

    def read(self) -> RunLoad:
        """Return the load so far; all processes of the run must have ended."""
        seconds = time.monotonic() - self._begun
        foreign = read_busy_seconds() - self._busy - (_read_own_seconds() - self._own)
        share = max(foreign, 0.0) / seconds / (os.cpu_count() or 1)
        return RunLoad(seconds, self._average, os.getloadavg()[0], share)


def _read_own_seconds() -> float:
    """Return the CPU seconds of this process, and of all its children that have ended."""
    return sum(os.times()[:4])


def measure() -> MachineLimits:
    """Measure all limits, in a few seconds."""
    loopback = tcp.measure("127.0.0.1")
    return MachineLimits(
        len(os.sched_getaffinity(0)),
        measure_cross_core_read(),
        measure_memory_copy(),
        measure_line_bounce(),
        loopback.round_trip_us,
        loopback.gbs,
    )


def read_busy_seconds() -> float:
    """Return the CPU seconds used by all processes since boot."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, *rest = map(int, file.readline().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def measure_cross_core_read() -> float | None:
    """Measure the copy rate of another core's fresh writes, in GB/s; None: one core."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        return None
    writer, reader = sorted(allowed)[:2]
    source = np.zeros(_CACHED_BYTES, np.uint8)
    target = np.zeros_like(source)
    rates = []
    try:
        for value in range(_ROUNDS):
            os.sched_setaffinity(0, {writer})
            source.fill(value)
            os.sched_setaffinity(0, {reader})
            begun = time.perf_counter()
            np.copyto(target, source)
            rates.append(_CACHED_BYTES / (time.perf_counter() - begun) / 1e9)
    finally:
        os.sched_setaffinity(0, allowed)
    return statistics.median(rates)


def measure_memory_copy() -> float:
    """Measure the copy rate of uncached memory on one core, in GB/s."""
    source = np.zeros(_MEMORY_BYTES, np.uint8)
    target = np.ones_like(source)
    rates = []
    for _ in range(5):
        begun = time.perf_counter()
        np.copyto(target, source)
        rates.append(_MEMORY_BYTES / (time.perf_counter() - begun) / 1e9)
    return statistics.median(rates)


def measure_line_bounce() -> float | None:
    """Measure in nanoseconds how long a cache line takes from core to core."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if compiler is None or len(cores) < 2:
        return None
    source = Path(__file__).with_name("bounce.c")
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as folder:
        program = str(Path(folder, "bounce"))
        subprocess.run([compiler, "-O2", "-pthread", "-o", program, str(source)], check=True)
        said = subprocess.run(
            [program, *map(str, cores)], check=True, capture_output=True, timeout=60
        ).stdout
    return float(said)
