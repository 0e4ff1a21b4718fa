"""Shared memory of this process: arrays, segments and blocks, and the variant of a call."""

import gc
import os
from typing import Any

import numpy.typing as npt

import allhands as ah


def shared(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return ah.empty(length, dtype)


def variant() -> str:
    """Return the variant of the last call over shared memory."""
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]


def blocks() -> int:
    """Return the bytes allocated in this process's shared memory."""
    found = [os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_ours(fd)]
    assert len(found) == 1, found
    return found[0].st_blocks * 512


def is_ours(fd: str) -> bool:
    try:
        return "memfd:allhands" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the listing itself
        return False


def mapped() -> int:
    """Return how many segments this process has open or mapped."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        found = sum("memfd:allhands" in line for line in maps)
    return found + sum(map(is_ours, os.listdir("/proc/self/fd")))


def resident() -> int:
    """Return the bytes of segments, of this process and others, whose pages it has mapped."""
    found, is_segment = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            is_segment = is_segment if line.split()[0].endswith(":") else "memfd:allhands" in line
            if is_segment and line.startswith("Rss:"):
                found += int(line.split()[1]) << 10
    return found
