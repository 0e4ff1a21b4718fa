"""Two hosts on one machine: namespaces joined by a virtual Ethernet cable of limited rate.

Each has a network, a host name and shared memory of its own. They belong to two processes that
end when this one does, so that nothing is left behind, not even after SIGKILL.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from allhands.bench.launchers import BenchHost

_NAMES = ("allhands-a", "allhands-b")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_INTERFACE = "veth0"
# Two of the largest segments: with more, messages of some MiB would pass faster than the rate.
_BURST = "128kb"
_QUEUE = "20ms"
_HOLD = """
echo "$0" > /proc/sys/kernel/hostname && mount -t tmpfs none /dev/shm && echo ready && exec cat
"""


class NoNamespaces(Exception):
    """Network namespaces are unavailable here; the text says why."""


def check_rate(text: str) -> str | None:
    """Return a rate in the syntax of tc; None: no limit.

    Raises:
        ValueError: the text is no rate.
    """
    if text == "none":
        return None
    if re.fullmatch(r"[1-9][0-9]*[kmg]bit", text) is None:
        raise ValueError(f"{text!r} is not a rate; write 1gbit, 10gbit, 200mbit or none")
    return text


@contextmanager
def open_two_hosts(rate: str | None) -> Iterator[tuple[BenchHost, BenchHost]]:
    """Yield two network namespaces joined by a virtual cable; removed afterwards.

    Raises:
        NoNamespaces: no root with the rights to administer networks, or no iproute2.
    """
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces need root: run it with sudo")
    for tool, package in (("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2")):
        _require(tool, package)
    if rate is not None:
        _require("tc", "iproute2")
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_namespaces(name)) for name in _NAMES)
        cable = ("ip", "link", "add", _INTERFACE, "type", "veth")
        run_command(
            [*make_enter_command(first), *cable, "peer", "name", _INTERFACE, "netns", str(second)]
        )
        for pid, address in zip((first, second), _ADDRESSES, strict=True):
            inside = make_enter_command(pid)
            run_command([*inside, "ip", "addr", "add", f"{address}/24", "dev", _INTERFACE])
            for interface in ("lo", _INTERFACE):
                run_command([*inside, "ip", "link", "set", interface, "up"])
            if rate is not None:
                limit = ("tbf", "rate", rate, "burst", _BURST, "latency", _QUEUE)
                run_command([*inside, "tc", "qdisc", "add", "dev", _INTERFACE, "root", *limit])
        hosts = [
            BenchHost(name, address, _INTERFACE, make_enter_command(pid))
            for name, address, pid in zip(_NAMES, _ADDRESSES, (first, second), strict=True)
        ]
        yield hosts[0], hosts[1]


@contextmanager
def open_namespaces(name: str) -> Iterator[int]:
    """Start the process that holds a host's namespaces; yield its pid."""
    separate = ("unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private")
    # It reads from us until we end, however that comes about.
    with subprocess.Popen(
        [*separate, "sh", "-c", _HOLD, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise NoNamespaces(
                "this process may not make network namespaces; a container needs "
                f"--privileged for that: {holder.stderr.read().strip()}"
            )
        yield holder.pid  # and closing its input ends it


def make_enter_command(pid: int) -> tuple[str, ...]:
    return ("nsenter", "--target", str(pid), "--net", "--uts", "--ipc", "--mount")


def _require(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        raise NoNamespaces(f"network namespaces need `{tool}`: apt install {package}")


def run_command(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
