"""Where a worker listens for its peers, and the fabric over which it reaches them."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from allhands.transport.fallback import FallbackFabric
from allhands.transport.grpc_stream import GrpcFabric, Listening
from allhands.transport.handshake import Identity
from allhands.transport.link import Fabric, Receiver
from allhands.transport.socket_stream import Address, SocketFabric, SocketListening

Links = Literal["socket", "grpc"]
"""socket: raw TCP, and gRPC to peers that cannot be reached so; grpc: nothing else."""


class Introduced(Protocol):
    """A rank as the coordinator introduced it."""

    @property
    def rank(self) -> int: ...

    @property
    def address(self) -> str:
        """host:port for gRPC."""

    @property
    def data_port(self) -> int:
        """For raw sockets, at the same host; 0: it has none."""


class Ports:
    """The listening ports of one worker; they are open before it has a rank."""

    def __init__(self, links: Links, among: range | None = None) -> None:
        """Take what carries the links, and the ports among which to choose; None: any free ones."""
        self._among = among
        self._grpc = Listening()
        self._raw = SocketListening() if links == "socket" else None
        self._over_grpc: GrpcFabric | None = None
        self._over_sockets: SocketFabric | None = None

    @property
    def port(self) -> int:
        return self._grpc.port

    @property
    def data_port(self) -> int:
        """0 where no raw-socket links are wanted."""
        return 0 if self._raw is None else self._raw.port

    async def start(self, host: str) -> None:
        """Listen on free ports of `host`.

        Raises:
            OSError: the host is not an address of this machine, or none of the ports is free.
        """
        raw = self._raw
        if self._among is None:
            await self._grpc.start(host)
            if raw is not None:
                raw.start(host)
            return
        for port in self._among:
            if is_free(host, port) and await self._takes(host, port):
                break
        else:
            raise self._none_free(host)
        if raw is None:
            return
        for port in self._among:
            with contextlib.suppress(OSError):
                raw.start(host, port)
                return
        raise self._none_free(host)

    async def _takes(self, host: str, port: int) -> bool:
        """Let gRPC listen on a port that was free a moment ago; say whether it does."""
        with contextlib.suppress(OSError):
            await self._grpc.start(host, port)
            return True
        return False

    def _none_free(self, host: str) -> OSError:
        assert self._among is not None
        needed = 1 if self._raw is None else 2
        low, high = self._among[0], self._among[-1]
        return OSError(
            errno.EADDRINUSE,
            f"no port from {low} to {high} is free at {host} (ALLHANDS_PORT_RANGE): "
            f"each rank listens on {needed}, so give a range of at least {needed} for each rank "
            "of this host",
        )

    def fabric(
        self,
        identity: Identity,
        members: Sequence[Introduced],
        receiver: Receiver,
        name: Callable[[int], str],
    ) -> Fabric:
        """Let the members in, and make the fabric to them; closing it closes the ports.

        `name` says who a rank is.
        """
        over_grpc = self._over_grpc = GrpcFabric(
            self._grpc, identity, _addresses(members), receiver
        )
        if self._raw is None:
            return over_grpc
        over_sockets = self._over_sockets = SocketFabric(
            self._raw, identity, _raw_addresses(members), receiver
        )
        return FallbackFabric(over_sockets, over_grpc, name)

    def introduce(self, identity: Identity, members: Sequence[Introduced]) -> None:
        """Let in members that came later; `identity` counts them."""
        assert self._over_grpc is not None
        self._over_grpc.introduce(identity, _addresses(members))
        if self._over_sockets is not None:
            self._over_sockets.introduce(identity, _raw_addresses(members))

    async def deserted(self, timeout: float) -> None:
        """Return when no peer has a link to this worker, or after `timeout` seconds."""
        waiting = [self._grpc.deserted(timeout)]
        if self._raw is not None:
            waiting.append(self._raw.deserted(timeout))
        await asyncio.gather(*waiting)

    async def aclose(self) -> None:
        """Stop listening. Idempotent."""
        if self._raw is not None:
            await self._raw.aclose()
        await self._grpc.aclose()


class NoPorts(Ports):
    """Those of a worker that needs none: its peers are in its process, or nowhere."""

    def __init__(self) -> None:
        pass  # nothing listens

    @property
    def port(self) -> int:
        return 0

    @property
    def data_port(self) -> int:
        return 0

    def introduce(self, identity: Identity, members: Sequence[Introduced]) -> None:
        pass

    async def deserted(self, timeout: float) -> None:
        pass

    async def aclose(self) -> None:
        pass


def is_free(host: str, port: int) -> bool:
    """Say whether nobody listens on a port of this host now.

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


def _addresses(members: Sequence[Introduced]) -> dict[int, str]:
    return {member.rank: member.address for member in members}


def _raw_addresses(members: Sequence[Introduced]) -> dict[int, Address]:
    return {member.rank: _raw_address(member) for member in members if member.data_port}


def _raw_address(member: Introduced) -> Address:
    return member.address.rpartition(":")[0].strip("[]"), member.data_port
