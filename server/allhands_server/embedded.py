"""A coordinator on the running loop: in the daemon, in a launcher, or in rank 0."""

import asyncio
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from allhands_proto import forks, notice
from allhands_proto.authority import format_authority
from allhands_proto.certificates import choose_tls_name
from allhands_proto.connections import Connections, limit_connections
from allhands_proto.framing import LARGEST_FRAME
from allhands_proto.limited_log import LimitedLog
from allhands_proto.server_start import start_server
from allhands_proto.v1 import coordinator_pb2
from allhands_proto.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from allhands_server.access import Access, find_verb
from allhands_server.authorities import parse_authority
from allhands_server.config import ServerConfig
from allhands_server.coordinator import Coordinator
from allhands_server.etcd_address import EtcdAddress
from allhands_server.host_memory import find_memory
from allhands_server.kept_token import load_token
from allhands_server.kv.listener import KvListener
from allhands_server.listening import bind_ports, choose_local_address, list_advertised, list_hosts
from allhands_server.machine.refusals import Refused
from allhands_server.machine.requests import ReportExit
from allhands_server.rpc.auth import TokenInterceptor
from allhands_server.rpc.certificates import ServerCertificates
from allhands_server.rpc.decoding import DecodingInterceptor
from allhands_server.rpc.receiving import make_receiver, make_strangers_receiver
from allhands_server.rpc.reflection import Reflection
from allhands_server.rpc.service import CoordinatorService, make_session_handler

if TYPE_CHECKING:
    from allhands_server.audit import AuditLog
    from allhands_server.http.port import HttpPort
    from allhands_server.log.etcd import EtcdEngine
    from allhands_server.replica import Replica

logger = logging.getLogger(__name__)

_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
_LARGEST_MESSAGE = LARGEST_FRAME
_HANDSHAKE_SECONDS = 3.0
_MOST_STREAMS = 20_000
"""Of one connection. One call more waits in its caller, so this has to be beyond the waits in
barriers over one channel, else the last arrival would wait for the first; 10,000 were measured."""
_MOST_PENDING = 20_000
"""Calls of all connections that gRPC holds before they are looked at."""
_LAST_WORDS = 0.25  # seconds for refusals of a coordinator that closes to reach their callers

_OPTIONS: Sequence[tuple[str, int]] = (
    # By default two servers share one port, and each of them gets half of the workers.
    ("grpc.so_reuseport", 0),
    # The defaults answer CANCELLED when some thousand barrier waits arrive at once.
    ("grpc.server.max_pending_requests", _MOST_PENDING),
    ("grpc.server.max_pending_requests_hard_limit", 2 * _MOST_PENDING),
    ("grpc.max_concurrent_streams", _MOST_STREAMS),
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    # What gRPC takes in of a stream before it is read is 64 KiB. Left to itself it takes more in
    # the faster it comes, of strangers too; the window for a message that is read grows anyway.
    ("grpc.http2.bdp_probe", 0),
    # A worker that waits for long pings to keep its way through firewalls open: no offence.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    # A host that vanished without a FIN: its streams end, and with them its unary waits, when its
    # kernel has acknowledged nothing for 30 s (TCP_USER_TIMEOUT, which gRPC sets by the second).
    # Not those of a process that is stopped or held up: its kernel answers, its gRPC cannot.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 3_600_000),
    # Who connects and says nothing, or says nothing any more, is dropped. A session or a wait is
    # a call under way, and a connection with one is not idle.
    ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_SECONDS * 1000)),
    ("grpc.max_connection_idle_ms", 60_000),
)


class RunningCoordinator:
    """A listening coordinator, until `stop`."""

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        server: grpc.aio.Server,
        coordinator: Coordinator,
        lines: KvListener,
        connections: Connections,
        health_service: health.aio.HealthServicer,
        notice_: notice.Notice | None,
        replica: "Replica | None" = None,
        advertised: tuple[str, ...] = (),
        http: "HttpPort | None" = None,
    ) -> None:
        self._server = server
        self._coordinator = coordinator
        self._lines = lines
        self._connections = connections
        self._health = health_service
        self._notice = notice_
        self._replica = replica
        self._http = http
        self._stopping: asyncio.Task[bool] | None = None
        self.host, self.port = address
        """Where this host reaches it."""
        self.advertised = advertised
        """`host:port` of each address at which clients reach it."""
        self.token = token

    @property
    def url(self) -> str:
        """`ah://host:port`, without a job."""
        return f"ah://{format_authority(self.host, self.port)}"

    @property
    def http_url(self) -> str:
        """URL of the HTTP port; empty: there is none."""
        return "" if self._http is None else self._http.url

    def make_page_link(self, job: str = "") -> tuple[str, float]:
        """Return a secret link that opens the page once, and the seconds for which it does.

        Its browser may do what the cluster's token may; `job` is shown first.
        """
        assert self._http is not None, "there is an HTTP port"
        return self._http.make_link("", job, "")

    async def drain(self, timeout: float, reason: str = "") -> bool:
        """Take in no worker any more, and wait until the running worlds have ended.

        A reason is told to their members. Returns whether all ended within the timeout.
        """
        await self._health.enter_graceful_shutdown()
        return await self._coordinator.drain(reason, timeout)

    async def report_exit(
        self, job: str, pid_namespace: str, pid: int, start_ticks: str, status: int
    ) -> bool:
        """Report the end of a process, as `ReportExit` of the wire; False: it was no member's."""
        request = ReportExit(job, pid_namespace, pid, start_ticks, status)
        try:
            return await self._coordinator.ask(request, None)
        except Refused:  # there is no such job, or the coordinator closes
            return False

    @property
    def is_durable(self) -> bool:
        """Whether a coordinator started after this one has its worlds again."""
        return self._coordinator.is_durable

    async def wait_failure(self) -> Exception:
        """Return the error of the log once it is gone; the coordinator is closed then."""
        return await asyncio.shield(self._coordinator.failure)

    async def stop(self, grace: float = 0.0) -> bool:
        """Give running worlds up to `grace` seconds to end, then end in any case.

        Who still waits is told that the coordinator goes down. Returns whether no world was cut
        off. Idempotent: a second call waits for the first one, whatever its own grace.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace))
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> bool:
        try:
            return await self.drain(grace)
        finally:
            if self._notice is not None:
                notice.withdraw(self._notice)
            self._coordinator.close()
            self._connections.close()
            self._lines.close()
            await self._server.stop(_LAST_WORDS)
            self._lines.abort()
            await _close_log(self._coordinator, self._replica)
            self._lines.access.close()
            if self._http is not None:
                await self._http.close()


async def start(config: ServerConfig, coordinator: Coordinator | None = None) -> RunningCoordinator:
    """Listen as configured, on the running loop, for a new coordinator or a given one.

    Raises:
        ValueError: the config is wrong, or open to strangers without `insecure`, or a package for
            the HTTP port is missing.
        OSError: the port is taken, the host is not of this machine, a file cannot be read.
        LogError: the log in `config.data_dir` cannot be opened, or is damaged.
    """
    config.validate()
    tls = _read_certificates(config)
    http = None if config.http is None else _open_http(config.http, tls, config)
    try:
        return await _start(config, coordinator, tls, http)
    except BaseException:
        if http is not None:
            await http.close()
        raise


async def _start(
    config: ServerConfig,
    coordinator: Coordinator | None,
    tls: ServerCertificates | None,
    http: "HttpPort | None",
) -> RunningCoordinator:
    engine = None if config.store is None else await _open_store(config.store)
    for warning in config.list_warnings():
        logger.warning("%s", warning)
    coordinator = coordinator or await _make_coordinator(config)
    token = config.token or await _choose_token(config, coordinator)
    connections = Connections(partial(_warn_evicted, LimitedLog(logger, "dropped connections")))
    audit = None if config.audit_log is None else _open_audit_log(config.audit_log)
    access = Access(coordinator, audit)
    server = _make_server(token, coordinator, access, connections)
    kv_listener = KvListener(coordinator, secrets.token_bytes(32), _HANDSHAKE_SECONDS, access)
    health_service = health.aio.HealthServicer()
    notice_ = replica = None
    try:
        bound = bind_ports(server, config, tls)
        address = choose_local_address(bound)
        kv_listener.listen(
            list_hosts(bound), None if tls is None else tls.get_context, config.kv_port
        )
        advertised = list_advertised(config, bound)
        service = CoordinatorService(  # type: ignore[abstract]  # see its end
            coordinator,
            config.first_request_timeout,
            kv_listener.port,
            kv_listener.secret,
            beyond_loopback=not config.is_loopback,
            access=access,
            addresses=advertised,
            kv_addresses=config.get_kv_advertised(kv_listener.port),
            make_link=None if http is None else http.make_link,
        )
        await _start_server(server, service, health_service)
        connections.watch(*(port for _, port in bound))
        if engine is not None:
            replica = _make_replica(engine, coordinator, advertised[0])
        if config.post_notice:
            own = tuple(dict.fromkeys((*advertised, *(format_authority(*one) for one in bound))))
            notice_ = _post_notice(config, address, own, token, tls)
    except BaseException:
        connections.close()
        kv_listener.close()
        await server.stop(None)
        coordinator.close()
        await _close_log(coordinator, replica)
        if engine is not None:
            await engine.close()
        access.close()
        raise
    logger.info(
        "listening on %s, for key-value calls on port %d; clients reach it at ah://%s",
        ", ".join(format_authority(*one) for one in bound),
        kv_listener.port,
        ",".join(advertised),
    )
    if http is not None:
        engine_name = "etcd" if config.store else "sqlite" if config.data_dir else "memory"
        http.serve(coordinator, access, token, engine_name)
    running = RunningCoordinator(
        *(address, token, server, coordinator, kv_listener, connections, health_service),
        *(notice_, replica, advertised, http),
    )
    forks.hold(running)
    return running


def _make_server(
    token: str, coordinator: Coordinator, access: Access, connections: Connections
) -> grpc.aio.Server:
    interceptors = [
        TokenInterceptor(
            token,
            coordinator.on_authentication_failed,
            access.check_token,
            partial(_note_refusal, access),
            access.refused,
        ),
        DecodingInterceptor(
            make_receiver(coordinator.limits, connections.mark_proven),
            make_strangers_receiver(),
            access.check_rpc,
        ),
    ]
    options = [*_OPTIONS, ("grpc.max_allowed_incoming_connections", limit_connections())]
    forks.use_grpc()
    return grpc.aio.server(interceptors=interceptors, options=options)


async def _start_server(
    server: grpc.aio.Server, service: CoordinatorService, health_service: health.aio.HealthServicer
) -> None:
    # First, so that this one serves sessions: events to many members are encoded once.
    server.add_generic_rpc_handlers((make_session_handler(service),))
    add_CoordinatorServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    server.add_generic_rpc_handlers((Reflection((_SERVICE, health.SERVICE_NAME)),))
    await health_service.set(_SERVICE, health_pb2.HealthCheckResponse.SERVING)
    await start_server(server)


def _open_http(
    address: tuple[str, int], tls: ServerCertificates | None, config: ServerConfig
) -> "HttpPort":
    from allhands_server.http.extra import check_installed  # which few coordinators need

    check_installed()
    from allhands_server.http.port import HttpPort

    named = (parse_authority(text, 0) for text in config.advertise)
    port = HttpPort(address, tls, [one[0] for one in named if one is not None])
    text = "page, health and metrics are at %s (`allhands page` prints a link that opens the page)"
    logger.info(text, port.url)
    return port


def _open_audit_log(path: Path | str) -> "AuditLog":
    from allhands_server.audit import AuditLog  # which few coordinators need

    return AuditLog(path)


async def _open_store(address: EtcdAddress) -> "EtcdEngine":
    from allhands_server.log.etcd import EtcdEngine  # which few coordinators need

    return await EtcdEngine.open(address)


def _make_replica(engine: "EtcdEngine", coordinator: Coordinator, address: str) -> "Replica":
    from allhands_server.replica import Replica  # which few coordinators need

    return Replica(engine, coordinator, address)


async def _close_log(coordinator: Coordinator, replica: "Replica | None") -> None:
    if replica is None:
        await coordinator.close_log()
    else:
        await replica.close()


async def _make_coordinator(config: ServerConfig) -> Coordinator:
    memory = config.limits.memory or find_memory() * 2 // 5
    limits = replace(config.limits, memory=memory)
    if config.store is not None:
        return Coordinator(has_log=True, limits=limits)  # a replica opens it
    if config.data_dir is None:
        return Coordinator(limits=limits)
    from allhands_server.lease_times import LeaseTimes  # which few coordinators need
    from allhands_server.log.sqlite import SqliteEngine

    engine = await SqliteEngine.open(Path(config.data_dir))
    try:
        return await Coordinator.open(engine, LeaseTimes(Path(config.data_dir)), limits)
    except BaseException:
        await engine.close()
        raise


async def _choose_token(config: ServerConfig, coordinator: Coordinator) -> str:
    if config.data_dir is None:
        return secrets.token_urlsafe(32)
    try:
        return load_token(Path(config.data_dir))
    except BaseException:
        coordinator.close()
        await coordinator.close_log()
        raise


def _post_notice(
    config: ServerConfig,
    address: tuple[str, int],
    addresses: tuple[str, ...],
    token: str,
    tls: ServerCertificates | None,
) -> notice.Notice | None:
    """Post the notice; None: impossible, and not needed, as callers have the token.

    Raises:
        OSError: it cannot be left, and nobody could learn the token.
    """
    pid = os.getpid()
    born = notice.read_start_ticks(pid)
    posted = notice.Notice(*address, token, pid, config.kind, born, addresses=addresses)
    if tls is not None:
        cert = os.path.abspath(os.fspath(config.tls_cert or ""))
        name = choose_tls_name(tls.get_context(), cert, posted.host)
        posted = replace(posted, tls_ca=cert, tls_name=name)
        if config.tls_client_ca is not None:
            # The commands of this user show the coordinator its own certificate.
            key = os.path.abspath(os.fspath(config.tls_key or ""))
            posted = replace(posted, tls_cert=cert, tls_key=key)
    try:
        notice.post(posted)
    except OSError as error:
        if config.token is None:
            raise
        logger.warning(
            "no notice for this user's commands: they need ALLHANDS_URL=ah://%s and "
            "ALLHANDS_TOKEN (%s)",
            format_authority(*address),
            error,
        )
        return None
    return posted


def _note_refusal(access: Access, method: str, peer: str, why: str) -> None:
    access.note(None, find_verb(method), method, "", peer, f"refused: {why}")


def _warn_evicted(log: LimitedLog, host: str, most: int) -> None:
    log.warning(
        "dropped a connection from %s: more than %d connections have shown no token", host, most
    )


def _read_certificates(config: ServerConfig) -> ServerCertificates | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return ServerCertificates(config.tls_cert, config.tls_key, config.tls_client_ca)
