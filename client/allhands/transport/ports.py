"""Listening ports of a worker, and the fabric over them."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from allhands.config import LinkKind
from allhands.transport.fallback import FallbackFabric
from allhands.transport.grpc_port import GrpcPort
from allhands.transport.handshake import Identity
from allhands.transport.link import Fabric, Receiver
from allhands.transport.socket_stream import HostPort, SocketFabric, SocketListener


class PeerInfo(Protocol):
    """A rank and its addresses, as announced by the coordinator."""

    @property
    def rank(self) -> int: ...

    @property
    def address(self) -> str:
        """host:port for gRPC."""

    @property
    def data_port(self) -> int:
        """Port of raw sockets on the same host; 0: none."""


class Ports:
    """The listening ports of a worker, open before the worker has a rank."""

    def __init__(self, kind: LinkKind, port_range: range | None = None) -> None:
        """Choose the transport and the range of ports; None: any free ports."""
        self._port_range = port_range
        self._grpc = GrpcPort(is_deferred=kind == "socket")
        self._socket_listener = SocketListener() if kind == "socket" else None
        self._socket_fabric: SocketFabric | None = None

    @property
    def port(self) -> int:
        return self._grpc.port

    @property
    def data_port(self) -> int:
        """0 where no raw-socket links are wanted."""
        return 0 if self._socket_listener is None else self._socket_listener.port

    async def start(self, host: str, *, encrypts: bool = False) -> None:
        """Listen on free ports of `host`, for links that are encrypted or not.

        Raises:
            OSError: the host is not an address of this machine, or none of the ports is free.
        """
        raw = self._socket_listener
        if raw is not None:
            raw.encrypts = encrypts
        if self._port_range is None:
            await self._grpc.start(host, encrypts=encrypts)
            if raw is not None:
                raw.start(host)
            return
        for port in self._port_range:
            if is_free(host, port) and await self._try_grpc_port(host, port, encrypts):
                break
        else:
            raise self._make_no_port_error(host)
        if raw is None:
            return
        for port in self._port_range:
            with contextlib.suppress(OSError):
                raw.start(host, port)
                return
        raise self._make_no_port_error(host)

    async def _try_grpc_port(self, host: str, port: int, encrypts: bool) -> bool:
        """Try to listen with gRPC on a port; return whether successful."""
        with contextlib.suppress(OSError):
            await self._grpc.start(host, port, encrypts=encrypts)
            return True
        return False

    def _make_no_port_error(self, host: str) -> OSError:
        assert self._port_range is not None
        needed = 1 if self._socket_listener is None else 2
        low, high = self._port_range[0], self._port_range[-1]
        return OSError(
            errno.EADDRINUSE,
            f"no port from {low} to {high} is free at {host} (ALLHANDS_PORT_RANGE): "
            f"each rank listens on {needed}, so give a range of at least {needed} for each rank "
            "of this host",
        )

    def make_fabric(
        self,
        identity: Identity,
        members: Sequence[PeerInfo],
        receiver: Receiver,
        name: Callable[[int], str],
    ) -> Fabric:
        """Admit the members and return the fabric to them; closing the fabric closes the ports.

        `name` formats a rank for error texts.
        """
        self._grpc.admit(identity, _map_addresses(members), receiver)
        if self._socket_listener is None:
            return self._grpc
        over_sockets = self._socket_fabric = SocketFabric(
            self._socket_listener, identity, _map_raw_addresses(members), receiver
        )
        return FallbackFabric(over_sockets, self._grpc, name)

    def add_peers(self, identity: Identity, members: Sequence[PeerInfo]) -> None:
        """Admit members that joined later; `identity` counts them."""
        self._grpc.add_peers(identity, _map_addresses(members))
        if self._socket_fabric is not None:
            self._socket_fabric.add_peers(identity, _map_raw_addresses(members))

    async def wait_no_links(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        waiting = [self._grpc.wait_no_links(timeout)]
        if self._socket_listener is not None:
            waiting.append(self._socket_listener.wait_no_links(timeout))
        await asyncio.gather(*waiting)

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        if self._socket_listener is not None:
            await self._socket_listener.aclose()
        await self._grpc.aclose()


class NoPorts(Ports):
    """Ports of a worker without network: peers in the same process, or none."""

    def __init__(self) -> None:
        pass  # nothing listens

    @property
    def port(self) -> int:
        return 0

    @property
    def data_port(self) -> int:
        return 0

    def add_peers(self, identity: Identity, members: Sequence[PeerInfo]) -> None:
        pass

    async def wait_no_links(self, timeout: float) -> None:
        pass

    async def aclose(self) -> None:
        pass


def is_free(host: str, port: int) -> bool:
    """Return whether a port of this host has no listener now.

    Raises:
        OSError: for another reason nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _map_addresses(members: Sequence[PeerInfo]) -> dict[int, str]:
    return {member.rank: member.address for member in members}


def _map_raw_addresses(members: Sequence[PeerInfo]) -> dict[int, HostPort]:
    return {member.rank: _get_raw_address(member) for member in members if member.data_port}


def _get_raw_address(member: PeerInfo) -> HostPort:
    return member.address.rpartition(":")[0].strip("[]"), member.data_port
