"""Daemons with several addresses: where they listen, what they advertise, how clients find them."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from allhands.bench.launchers import BenchHost
from allhands.coordinator import daemon_choice
from allhands.coordinator.client import Control
from allhands.coordinator.dialling import NoConnection, NoConnectionInTime, connect_to_any
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.coordinator.kv.calls import KvPort, list_kv_addresses
from allhands.errors import CoordinatorUnavailable
from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from allhands_server import embedded
from allhands_server.config import ServerConfig
from support.ranks.launchers import environment
from support.ranks.two_hosts import hosts as hosts

TOKEN = "token-of-a-test"
UNKNOWN = "no-such-host.invalid:7070"
_PATIENCE = 60.0
_SHORT = 15.0
"""Deadline in seconds below the time after which gRPC gives a silent address up, 20 s."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_choice, "_last_chosen", {})


@asynccontextmanager
async def serve(**settings: object) -> AsyncIterator[embedded.RunningCoordinator]:
    given = {"token": TOKEN, "post_notice": False, **settings}
    running = await embedded.start(ServerConfig(**given))  # type: ignore[arg-type]
    try:
        yield running
    finally:
        await running.stop()


@contextmanager
def listen_silently() -> Iterator[str]:
    """Take connections, and say nothing; yield `host:port`."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@contextmanager
def find_closed_port() -> Iterator[str]:
    """Yield `host:port` of a port that is taken, and on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


class Publisher:
    """Ports that forward to others, as a container's published ones do."""

    def __init__(self) -> None:
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def publish(self, find_port: "asyncio.Future[int]") -> AsyncIterator[int]:
        """Forward to a port of loopback that is known later; yield the published port."""

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            there = await asyncio.open_connection("127.0.0.1", await find_port)
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

        server = await asyncio.start_server(forward, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other side has ended it
    finally:
        writer.close()


def connect(addresses: str, timeout: float = _PATIENCE) -> Control:
    endpoint = Endpoint(parse_url(f"ah://{addresses}/job"), TOKEN, insecure=True)
    return Control(endpoint, job="job", timeout=timeout)


def has_line(control: Control) -> bool:
    return bool(control._kv_pool._connections)


async def describe(port: int) -> wire.CoordinatorDescription:
    async with grpc_channel(port) as channel:
        return await coordinator_pb2_grpc.CoordinatorStub(channel).DescribeCoordinator(
            wire.DescribeCoordinatorRequest(),
            metadata=(("authorization", f"Bearer {TOKEN}"),),
        )


@asynccontextmanager
async def grpc_channel(port: int) -> AsyncIterator[object]:
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


# ---------------------------------------------------------------- listening


async def test_a_daemon_listens_on_each_of_its_addresses_with_both_ports() -> None:
    async with serve(more_listens=(("::1", 0),)) as daemon:
        assert [one.rpartition(":")[0] for one in daemon.advertised] == ["127.0.0.1", "[::1]"]
        for number, address in enumerate(daemon.advertised, 1):
            with connect(address) as control:
                assert await asyncio.to_thread(control.add, "n") == number
                assert has_line(control)


async def test_ipv4_and_ipv6_callers_reach_a_wildcard_address() -> None:
    async with serve(host="0.0.0.0", insecure=True) as daemon:
        assert "0.0.0.0" not in daemon.advertised[0]
        for number, host in enumerate(("127.0.0.1", "[::1]"), 1):
            with connect(f"{host}:{daemon.port}") as control:
                assert await asyncio.to_thread(control.add, "n") == number
                assert has_line(control)


def test_without_a_default_route_a_wildcard_stands_for_the_interfaces(
    hosts: tuple[BenchHost, BenchHost], tmp_path: Path
) -> None:
    host = hosts[0]
    command = [sys.executable, "-m", "allhands.cli.main", "serve", "--listen", "0.0.0.0:0"]
    with subprocess.Popen(
        [*host.command_prefix, *command, "--insecure"],
        env={**environment(tmp_path), "ALLHANDS_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            assert daemon.stderr is not None
            told = next(line for line in daemon.stderr if "clients reach it at" in line)
        finally:
            daemon.terminate()
    assert re.search(r"clients reach it at ah://([^:]+):\d+$", told.strip())[1] == host.address


async def test_a_taken_address_is_named_of_several() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"\[::1\]:{port} is taken"):
            async with serve(more_listens=(("::1", port),)):
                raise AssertionError("it listens")
        with pytest.raises(OSError, match="is taken"):
            async with serve(host="::1", kv_port=port):
                raise AssertionError("it listens")


# ---------------------------------------------------------------- published ports


async def test_clients_come_by_the_published_ports_on_both() -> None:
    loop = asyncio.get_running_loop()
    rpc, kv = loop.create_future(), loop.create_future()
    rpc_publisher, kv_publisher = Publisher(), Publisher()
    async with (
        rpc_publisher.publish(rpc) as rpc_port,
        kv_publisher.publish(kv) as kv_port,
        serve(
            advertise=(f"localhost:{rpc_port}",), kv_advertise=(f"127.0.0.1:{kv_port}",)
        ) as daemon,
    ):
        rpc.set_result(daemon.port)
        told = await describe(daemon.port)
        kv.set_result(told.kv_port)
        assert daemon.advertised == (f"localhost:{rpc_port}",)
        assert list(told.addresses) == [f"localhost:{rpc_port}"]
        assert list(told.kv_addresses) == [f"127.0.0.1:{kv_port}"]
        with connect(told.addresses[0]) as control:
            assert await asyncio.to_thread(control.add, "n") == 1
            assert has_line(control)
        endpoint = Endpoint(parse_url(f"ah://127.0.0.1:{rpc_port}"), TOKEN)
        async with AsyncCoordinatorStore(endpoint, job="job", timeout=_PATIENCE) as store:
            assert await store.add("n", 1) == 2
            assert store._connection is not None
        assert (rpc_publisher.connections, kv_publisher.connections) == (2, 2)


def test_nobody_is_sent_beyond_this_host_in_plaintext() -> None:
    port = KvPort(7, b"secret", addresses=("192.0.2.1:7", "127.0.0.1:8", "nonsense"))
    closed = Endpoint(parse_url("ah://127.0.0.1:1"), TOKEN)
    assert list_kv_addresses(closed, port) == [("127.0.0.1", 8)]
    opened = Endpoint(parse_url("ah://127.0.0.1:1"), TOKEN, insecure=True)
    assert list_kv_addresses(opened, port) == [("192.0.2.1", 7), ("127.0.0.1", 8)]


# ---------------------------------------------------------------- of several, one that works


async def test_an_address_that_is_silent_does_not_cost_the_deadline() -> None:
    with listen_silently() as silent:
        async with serve() as daemon:
            addresses = f"{silent},127.0.0.1:{daemon.port}"
            with connect(addresses, _SHORT) as control:
                assert await asyncio.to_thread(control.add, "n") == 1
                assert has_line(control)
                assert await asyncio.to_thread(control.jobs)


async def test_an_address_that_is_silent_does_not_cost_an_awaited_deadline() -> None:
    with listen_silently() as silent:
        async with serve() as daemon:
            address = parse_url(f"ah://{silent},127.0.0.1:{daemon.port}/job")
            endpoint = Endpoint(address, TOKEN)
            async with AsyncCoordinatorStore(endpoint, job="job", timeout=_SHORT) as store:
                assert await store.add("n", 1) == 1
                assert store._connection is not None


@pytest.mark.parametrize("use_lines", [True, False])
async def test_a_name_that_is_unknown_here_is_passed_over(use_lines: bool) -> None:
    async with serve() as daemon:
        address = parse_url(f"ah://{UNKNOWN},127.0.0.1:{daemon.port}/job")
        endpoint = Endpoint(address, TOKEN, insecure=True)
        with Control(endpoint, job="job", timeout=_PATIENCE, use_lines=use_lines) as control:
            assert await asyncio.to_thread(control.add, "n") == 1  # which is not repeatable
        async with AsyncCoordinatorStore(endpoint, job="job", timeout=_PATIENCE) as store:
            assert await store.add("n", 1) == 2


async def test_the_error_names_each_address_and_its_answer() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\x1b")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    where = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
    with listen_silently() as silent, find_closed_port() as closed:
        addresses = ",".join((closed, UNKNOWN, silent, where))
        endpoint = Endpoint(parse_url(f"ah://{addresses}/job"), TOKEN, insecure=True)
        with (
            connect(addresses, 2.0) as control,
            pytest.raises(CoordinatorUnavailable) as raised,
        ):
            await asyncio.to_thread(control.add, "n")
        async with AsyncCoordinatorStore(endpoint, job="job", timeout=2.0) as store:
            with pytest.raises(CoordinatorUnavailable) as awaited:
                await store.add("n", 1)
    other.close()
    for text in (str(raised.value), str(awaited.value)):
        assert f"{closed} cannot be reached: nothing listens there" in text
        assert "the name 'no-such-host.invalid' has no address" in text
        assert f"{silent} cannot be reached: it accepts connections, and has not answered" in text
        said = r"which says 'SSH-2.0-x\\x1b'"
        assert f"{where} cannot be reached: something else than a coordinator" in text
        assert said in text


async def test_who_closes_connections_may_be_a_coordinator_that_is_full() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)  # else the end is a reset
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as other:
        where = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
        with (
            connect(where, 2.0) as control,
            pytest.raises(CoordinatorUnavailable, match="as many connections as it takes"),
        ):
            await asyncio.to_thread(control.add, "n")


async def test_one_silent_address_is_the_reason_of_a_call_without_an_answer() -> None:
    with (
        listen_silently() as silent,
        connect(silent, 0.5) as control,
        pytest.raises(CoordinatorUnavailable, match="accepts connections, and has not answered"),
    ):
        await asyncio.to_thread(control.get, "k")


# ---------------------------------------------------------------- connections


def test_the_first_address_that_answers_is_connected_to() -> None:
    with find_closed_port() as closed, socket.create_server(("127.0.0.1", 0)) as there:
        wanted = ("127.0.0.1", there.getsockname()[1])
        dead = ("127.0.0.1", int(closed.rpartition(":")[2]))
        found, host = connect_to_any([dead, ("no-such-host.invalid", 1), wanted], _PATIENCE)
        with found:
            assert (found.getpeername(), host) == (wanted, "127.0.0.1")
        with pytest.raises(NoConnection) as raised:
            connect_to_any([dead, ("no-such-host.invalid", 1)], _PATIENCE)
    assert not isinstance(raised.value, NoConnectionInTime)
    assert [one.where for one in raised.value.attempts] == [closed, "no-such-host.invalid"]
    assert str(raised.value).startswith(f"{closed}: Connection refused; no-such-host.invalid: no ")
