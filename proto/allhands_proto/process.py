"""How one process of a host looks at another, without asking it; Linux only, elsewhere unknown."""

import hashlib
import os
from pathlib import Path

_STATES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "gone", "x": "gone"}


def space() -> str:
    """Name the processes that see the same process ids as this one; "" where that is unknown."""
    return _namespace("pid")


def network() -> str:
    """Name the processes that reach each other over loopback; "" where that is unknown."""
    return _namespace("net")


def _namespace(kind: str) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        name = f"{boot}/{os.readlink(f'/proc/self/ns/{kind}')}"
    except OSError:
        return ""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def look(pid: int, born: str) -> str:
    """Return how a process is that began at `born`, as `notice.born` tells it.

    That is "running", "stopped", "zombie" or "gone"; "" where nobody can tell.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone" if Path("/proc/self/stat").exists() else ""
    except OSError:
        return ""
    if born and fields[19] != born:
        return "gone"  # its number belongs to another one now
    return _STATES.get(fields[0], "running")
