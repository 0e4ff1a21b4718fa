"""Ports of the coordinator: bound for gRPC, advertised to clients."""

import errno
import socket

import grpc.aio

from allhands_proto import notice
from allhands_proto.authority import format_authority
from allhands_proto.loopback import is_loopback
from allhands_proto.routes import find_outside_addresses
from allhands_server.addresses import get_local_host
from allhands_server.authorities import WILDCARDS
from allhands_server.config import ServerConfig
from allhands_server.rpc.certificates import ServerCertificates

HostPort = tuple[str, int]


def bind_ports(
    server: grpc.aio.Server, config: ServerConfig, tls: ServerCertificates | None
) -> tuple[HostPort, ...]:
    """Bind each address of the config; return them with the ports that were chosen.

    Raises:
        OSError: a port is taken, or a host is not of this machine.
    """
    return tuple((host, _bind_port(server, host, port, tls)) for host, port in config.listens)


def choose_local_address(bound: tuple[HostPort, ...]) -> HostPort:
    """Return the address by which this host reaches a coordinator, loopback if possible."""
    local = [(get_local_host(host), port) for host, port in bound]
    return min(local, key=lambda one: not is_loopback(one[0]))


def list_hosts(bound: tuple[HostPort, ...]) -> tuple[str, ...]:
    """List the hosts alone; a wildcard address includes all others."""
    hosts = tuple(dict.fromkeys(host for host, _ in bound))
    return next(((host,) for host in hosts if host in WILDCARDS), hosts)


def list_advertised(config: ServerConfig, bound: tuple[HostPort, ...]) -> tuple[str, ...]:
    """List `host:port` of the addresses at which clients reach a coordinator, the first first.

    Without advertised ones in the config those that are bound, and for a wildcard address those of
    this host for others: on its default routes, else of its interfaces.
    """
    if config.advertise:
        return config.get_advertised(bound[0][1])
    found: list[str] = []
    for host, port in bound:
        hosts = [host]
        if host in WILDCARDS:
            hosts = find_outside_addresses() or [get_local_host(host)]
        found += [format_authority(one, port) for one in hosts]
    return tuple(dict.fromkeys(found))


def _bind_port(
    server: grpc.aio.Server, host: str, port: int, tls: ServerCertificates | None
) -> int:
    target = format_authority(host, port)
    try:
        if tls is not None:
            return server.add_secure_port(target, tls.make_credentials())
        return server.add_insecure_port(target)
    except RuntimeError as error:
        raise _explain_bind_error(host, port) from error


def _explain_bind_error(host: str, port: int) -> OSError:
    """Return the reason why a port could not be bound, which gRPC does not tell."""
    target = format_authority(host, port)
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return OSError(error.errno, f"cannot listen on {target}: {error.strerror}")
    text = f"{target} is taken: another process listens there"
    if (other := notice.find(port)) is not None:
        text += f" (the {other.kind} coordinator of yours with pid {other.pid})"
    return OSError(errno.EADDRINUSE, text)
