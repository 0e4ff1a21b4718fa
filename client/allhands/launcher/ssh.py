"""Commands that start agents: over ssh, or on this host itself."""

import contextlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence

from allhands.coordinator.host_address import find_address_towards, resolve_host_blocking
from allhands.errors import CoordinatorUnavailable
from allhands.runtime.interfaces import find_outside_address, is_own_address

SSH = "ssh"
_MODULE = ("-m", "allhands.launcher.agent")
_OPTIONS = (
    # Nobody is there to be asked for a password; a host that is gone is noticed.
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
    "-T",
)
_CONFIG_SECONDS = 10.0
_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_local(name: str) -> bool:
    """Whether a name in a list of hosts means this host, for which no ssh is needed."""
    return name in _LOCAL or name == socket.gethostname()


def make_agent_command(
    name: str, ssh: Sequence[str], directory: str, python: str
) -> tuple[str, ...]:
    """Return the command that starts the agent of a host: for others a shell's line, over ssh.

    Nothing secret is in it: what ranks must not show comes over the agent's standard input.
    """
    if is_local(name):
        return (sys.executable, *_MODULE)
    agent = shlex.join((python, *_MODULE))
    line = f"cd {shlex.quote(directory)} && exec {agent}"
    return (*ssh, *_OPTIONS, name, line)


def find_address(name: str, ssh: Sequence[str]) -> str:
    """Return the address of a host as ssh's configuration and this host know it; empty: unknown.

    Of this host itself: the one of its default route.
    """
    if is_local(name):
        return find_outside_address() or "127.0.0.1"
    host = name.rpartition("@")[2]
    if tuple(ssh) == (SSH,):
        host = _read_configured_name(name) or host
    with contextlib.suppress(CoordinatorUnavailable, UnicodeError):
        return resolve_host_blocking(host)
    return ""


def find_own_address(addresses: Sequence[str]) -> str:
    """Return the address of this host on the way to the first of others; empty: there is none."""
    for address in addresses:
        if address and not is_own_address(address):
            with contextlib.suppress(CoordinatorUnavailable):
                return find_address_towards(address)
    return find_outside_address() or ""


def _read_configured_name(name: str) -> str:
    """Return the host that ssh would connect to; empty: it cannot be asked."""
    try:
        told = subprocess.run(
            [SSH, "-G", name], capture_output=True, text=True, timeout=_CONFIG_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    names = (line.split()[1] for line in told.splitlines() if line.startswith("hostname "))
    return next(names, "")
