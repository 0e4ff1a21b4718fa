"""gRPC port of a worker: where links go over raw sockets, gRPC is loaded when a peer needs it."""

import asyncio
import math
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from allhands.transport.handshake import Identity
from allhands.transport.link import Link, Receiver
from allhands.transport.port_reservation import reserve_port

if TYPE_CHECKING:
    from allhands.transport.grpc_stream import GrpcFabric, GrpcListener

_MOST_EARLY = 128
"""Connections that wait at the port until it is open."""


class GrpcPort:
    """A port for links over gRPC, and the fabric over it.

    A deferred one only holds the port: a peer that connects, or a link that this worker dials,
    loads gRPC.
    """

    def __init__(self, *, is_deferred: bool) -> None:
        self._is_deferred = is_deferred
        self.port = 0
        self._host = ""
        self._encrypts = False
        self._reserved: socket.socket | None = None
        self._listener: GrpcListener | None = None
        self._fabric: GrpcFabric | None = None
        self._membership: tuple[Identity, dict[int, str], Receiver] | None = None
        """This worker in its world, the peers' addresses, and the owner of what they send."""

    async def start(self, host: str, port: int = 0, *, encrypts: bool = False) -> None:
        """Take a port of `host`; 0 chooses a free port.

        Raises:
            OSError: the host is not an address of this machine, or the port is taken.
        """
        if not self._is_deferred:
            await self._start_listener(host, port, encrypts)
            return
        self._host, self._encrypts = host, encrypts
        self._reserved = reserved = reserve_port(host, port)
        self.port = reserved.getsockname()[1]
        reserved.listen(_MOST_EARLY)
        asyncio.get_running_loop().add_reader(reserved, self._load)

    def admit(self, identity: Identity, addresses: Mapping[int, str], receiver: Receiver) -> None:
        """Accept peers of this identity's world; their frames go to `receiver`."""
        self._membership = identity, dict(addresses), receiver
        if self._listener is not None:
            self._make_fabric(self._listener)

    def add_peers(self, identity: Identity, addresses: Mapping[int, str]) -> None:
        """Add peers that joined later; `identity` is this worker's in the enlarged world."""
        assert self._membership is not None
        _, known, receiver = self._membership
        self._membership = identity, {**known, **addresses}, receiver
        if self._fabric is not None:
            self._fabric.add_peers(identity, addresses)

    @property
    def is_open(self) -> bool:
        """Whether a server of gRPC has the port."""
        return self._listener is not None and self._listener.is_open

    async def dial(self, peer: int) -> Link:
        self._load()
        assert self._fabric is not None, "only members have peers"
        return await self._fabric.dial(peer)

    def pump(self, seconds: float) -> bool:
        return False  # gRPC delivers on the loop alone

    def get_last_activity(self, peer: int) -> float:
        return -math.inf if self._fabric is None else self._fabric.get_last_activity(peer)

    def get_recovery_seconds(self, peer: int) -> float:
        return 0.0 if self._fabric is None else self._fabric.get_recovery_seconds(peer)

    async def wait_no_links(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        if self._listener is not None:
            await self._listener.wait_no_links(timeout)

    async def aclose(self) -> None:
        """Close the links and the port. Idempotent."""
        if self._fabric is not None:
            await self._fabric.aclose()
        elif self._listener is not None:
            await self._listener.aclose()
        if self._reserved is not None:
            asyncio.get_running_loop().remove_reader(self._reserved)
            self._reserved.close()
            self._reserved = None

    async def _start_listener(self, host: str, port: int, encrypts: bool) -> None:
        from allhands.transport.grpc_stream import GrpcListener

        listener = GrpcListener()
        listener.encrypts = encrypts
        await listener.start(host, port)
        self._listener, self.port = listener, listener.port

    def _load(self) -> None:
        """Leave the port to a listener of gRPC. Idempotent."""
        if self._listener is not None or self._reserved is None:
            return
        from allhands.transport.grpc_stream import GrpcListener

        asyncio.get_running_loop().remove_reader(self._reserved)
        self._listener = listener = GrpcListener()
        listener.adopt(self._reserved, self._host, encrypts=self._encrypts)
        self._reserved = None
        if self._membership is not None:
            self._make_fabric(listener)

    def _make_fabric(self, listener: "GrpcListener") -> None:
        from allhands.transport.grpc_stream import GrpcFabric

        assert self._membership is not None
        identity, addresses, receiver = self._membership
        self._fabric = GrpcFabric(listener, identity, addresses, receiver)
