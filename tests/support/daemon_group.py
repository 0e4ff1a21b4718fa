"""Real daemons with one log in etcd: killed, paused, and written to meanwhile."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import grpc

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint, configure_channel, parse_url
from allhands.errors import AllhandsError
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from support.etcd_nodes import EtcdNodes
from support.ranks.addresses import find_free_ports
from support.ranks.processes import Cluster, Process

TOKEN = "token-of-all"
_PATIENCE = 60.0


class DaemonGroup:
    """Three daemons; one that was killed can be started again."""

    def __init__(self, cluster: Cluster, nodes: EtcdNodes) -> None:
        self._cluster = cluster
        self._store = nodes.url
        self.ports = find_free_ports(3)
        self._daemons = {port: self._serve(port) for port in self.ports}

    @property
    def url(self) -> str:
        return f"ah://{','.join(f'127.0.0.1:{port}' for port in self.ports)}/job"

    def connect(self, port: int | None = None, timeout: float = 30.0) -> Control:
        """Return a client of one daemon, else of all."""
        url = self.url if port is None else f"ah://127.0.0.1:{port}/job"
        return Control(Endpoint(parse_url(url), TOKEN), job="job", timeout=timeout)

    def find_leader(self, besides: int = 0) -> int:
        """Return the port of the daemon that leads, once there is one."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for port in self.ports:
                if port != besides and self._describe_role(port) == "leader":
                    return port
            time.sleep(0.02)  # nothing tells of a take-over
        raise TimeoutError(f"no leader within {_PATIENCE:g} s: {self.read_errors()}")

    def send(self, port: int, number: signal.Signals) -> None:
        self._daemons[port].child.send_signal(number)

    def kill(self, port: int) -> None:
        self.send(port, signal.SIGKILL)
        self._daemons[port].ended()

    def stop(self, port: int) -> int:
        """End a daemon in order; return its status."""
        self.send(port, signal.SIGTERM)
        return self._daemons[port].ended()

    def restart(self, port: int) -> None:
        self._daemons[port] = self._serve(port)

    def read_errors(self) -> str:
        return "".join(line for one in self._daemons.values() for line in one.errors)

    def _serve(self, port: int) -> Process:
        address = f"127.0.0.1:{port}"
        return self._cluster.serve(
            "--listen", address, "--store", self._store, ALLHANDS_TOKEN=TOKEN
        )

    def _describe_role(self, port: int) -> str:
        config = configure_channel(Endpoint(parse_url(f"ah://127.0.0.1:{port}"), TOKEN))
        with config.open() as channel, contextlib.suppress(grpc.RpcError):
            stub = coordinator_pb2_grpc.CoordinatorStub(channel)
            request = wire.DescribeCoordinatorRequest()
            return stub.DescribeCoordinator(request, timeout=0.5, metadata=config.metadata).role
        return ""


class LeadingDaemon:
    """The daemon that leads, as the one that faults befall; for `support.linearizability`."""

    def __init__(self, group: DaemonGroup) -> None:
        self._group = group
        self._ended: int | None = None
        """Port of the daemon that was ended last, and not started again."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(parse_url(self._group.url), TOKEN)

    def start(self) -> None:
        """Start the daemon again that was ended; wait until one leads."""
        self._group.find_leader()
        if self._ended is not None:
            self._group.restart(self._ended)
            self._ended = None

    def kill(self) -> None:
        self._ended = self._group.find_leader()
        self._group.kill(self._ended)

    def stop(self) -> int:
        self._ended = self._group.find_leader()
        return self._group.stop(self._ended)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stop it, and let it go on when another one leads."""
        paused = self._group.find_leader()
        self._group.send(paused, signal.SIGSTOP)
        try:
            yield
            self._group.find_leader(besides=paused)
        finally:
            self._group.send(paused, signal.SIGCONT)


class Writers:
    """Threads that write until they are stopped, and note what was acknowledged."""

    def __init__(self, group: DaemonGroup, count: int = 4) -> None:
        self._group = group
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[str, bytes] = {}
        self.sums: list[tuple[int, int]] = [(0, 0)] * count
        """Of each thread: the acknowledged additions, and those of unknown outcome."""
        self.times: list[float] = []
        """When a write was acknowledged."""
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(count)]

    def __enter__(self) -> "Writers":
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join()

    @property
    def longest_gap(self) -> float:
        """Longest time without an acknowledged write, in seconds."""
        times = sorted(self.times)
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def wait_more(self, count: int) -> None:
        """Wait until so many more writes are acknowledged."""
        goal = len(self.times) + count
        deadline = time.monotonic() + _PATIENCE
        while len(self.times) < goal:
            assert time.monotonic() < deadline, self._group.read_errors()
            time.sleep(0.01)

    def check(self) -> None:
        """Check that what was acknowledged is there, once."""
        with self._group.connect(timeout=60) as control:
            for number, (done, unknown) in enumerate(self.sums):
                found = int(control.get(f"sum{number}"))
                assert done <= found <= done + unknown, (number, done, found, unknown)
            assert self.acknowledged
            for key, value in self.acknowledged.items():
                assert control.get(key) == value, key

    def _write(self, number: int) -> None:
        done = unknown = 0
        with self._group.connect(timeout=5) as control:
            while not self._is_over.is_set():
                key, value = f"key{number}-{done + unknown}", b"%d" % done
                try:
                    control.add(f"sum{number}")
                    done += 1
                    self._note()
                    control.put(key, value)
                except AllhandsError:
                    unknown += 1
                else:
                    with self._lock:
                        self.acknowledged[key] = value
                    self._note()
                self.sums[number] = done, unknown

    def _note(self) -> None:
        with self._lock:
            self.times.append(time.monotonic())


@contextlib.contextmanager
def run_group(cluster: Cluster, nodes: EtcdNodes) -> Iterator[DaemonGroup]:
    """Run three daemons, which end with the cluster of processes."""
    group = DaemonGroup(cluster, nodes)
    group.find_leader()
    yield group
