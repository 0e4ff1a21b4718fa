"""Endpoints of coordinators: URL, token, channel.

Every caller of the coordinator, synchronous or asyncio, dials here. The calls are in `client` and
`session`, the translation of their errors in `status_errors`.
"""

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from allhands.errors import CoordinatorUnavailable
from allhands_proto import forks, notice
from allhands_proto.authority import format_authority
from allhands_proto.certificates import make_client_context
from allhands_proto.loopback import is_loopback, resolve_loopback
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.routes import stays_on_host
from allhands_proto.tls_files import apply_tls_directory

if TYPE_CHECKING:
    import grpc

_WILDCARDS = ("0.0.0.0", "::")
_URL_FORMAT = "ah://HOST:PORT or ah://HOST:PORT/JOB, or several HOST:PORT with commas"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a coordinator, and the job if named in the URL."""

    host: str
    port: int
    job: str | None = None
    others: "tuple[Address, ...]" = ()
    """Addresses of the other daemons with the same log, of which one leads."""

    @property
    def target(self) -> str:
        """`host:port` for gRPC, an IPv6 address in brackets; of several daemons: with commas."""
        own = format_authority(self.host, self.port)
        return ",".join((own, *(one.target for one in self.others)))

    @property
    def daemons(self) -> "tuple[Address, ...]":
        """The addresses one by one."""
        return (replace(self, others=()), *self.others)

    @property
    def url(self) -> str:
        return f"ah://{self.target}/{self.job}" if self.job else f"ah://{self.target}"

    @property
    def is_loopback(self) -> bool:
        return all(is_loopback(one.host) for one in self.daemons)


def parse_url(url: str) -> Address:
    """Read `ah://host:port` or `ah://host:port/job`; IPv6 addresses stand in brackets.

    Several daemons with one log are `ah://host:port,host:port,host:port/job`.

    Raises:
        ValueError: it is anything else; the text says which part is wrong.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, job = rest.partition("/")
    if "," not in authority:
        return _parse_one(url)
    first, *others = (_parse_one(f"{scheme}://{one}{slash}{job}") for one in authority.split(","))
    return replace(first, others=tuple(others))


def parse_named_url(url: str, source: str) -> Address:
    """Read a URL as `parse_url` does; errors begin with its source, such as ALLHANDS_URL, if any.

    Raises:
        ValueError: the URL is malformed.
    """
    try:
        return parse_url(url)
    except ValueError as error:
        raise ValueError(f"{source}: {error}" if source else str(error)) from error.__cause__


def _parse_one(url: str) -> Address:
    """Read the URL of one daemon."""
    authority = url.split("://")[-1].split("/")[0]
    if "@" in authority:
        # Not repeated in the text: what stands there may be a secret, and texts end in logs.
        raise ValueError("a coordinator's URL holds no token: pass it as ALLHANDS_TOKEN or token=")
    if authority.count(":") > 1 and not authority.startswith("["):
        raise ValueError(f"put the IPv6 address in {url!r} in brackets: ah://[::1]:7070")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(
            f"not a coordinator's URL: {url!r}: {error}; write {_URL_FORMAT}"
        ) from error
    if parts.scheme != "ah":
        raise ValueError(f"not a coordinator's URL, which begins with ah://: {url!r}")
    if not host:
        raise ValueError(f"no host in {url!r}; write {_URL_FORMAT}")
    if not port:
        raise ValueError(f"no port in {url!r}; write {_URL_FORMAT}")
    job = parts.path.removeprefix("/")
    if parts.query or parts.fragment or "/" in job or job != "".join(job.split()):
        raise ValueError(f"not one job's name: {parts.path!r} in {url!r}; write {_URL_FORMAT}")
    return Address(host, port, job or None)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A coordinator's address with credentials."""

    address: Address
    token: str | None = field(repr=False)
    """None: nobody knows one; the coordinator will say `Unauthenticated`."""
    tls_ca: str | None = None
    """Path of the bundle of authorities that vouch for the coordinator; None: plaintext."""
    insecure: bool = False
    """Whether token and data may be sent in plaintext beyond loopback."""
    tls_name: str | None = None
    """The name that its certificate must have; None: the host."""
    tls_cert: str | None = None
    """Path of the certificate chain to show to a coordinator that asks for one; PEM."""
    tls_key: str | None = None
    """Path of the key of `tls_cert`."""
    has_notice: bool = False
    """Whether a notice on this host has its addresses and its token."""


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Return a context for connections to a coordinator that speaks TLS, without gRPC.

    Raises:
        OSError: the bundle of authorities cannot be read.
    """
    assert endpoint.tls_ca is not None
    return make_client_context(endpoint.tls_ca, endpoint.tls_cert, endpoint.tls_key)


def is_insecure(environ: Mapping[str, str]) -> bool:
    """Return whether ALLHANDS_INSECURE allows plaintext beyond loopback."""
    return environ.get("ALLHANDS_INSECURE", "") == "1"


def find_coordinator(
    url: str | None,
    environ: Mapping[str, str],
    *,
    token: str | None = None,
    insecure: bool = False,
) -> Endpoint:
    """Settle which coordinator a command means, as every command does.

    That is `url`; else ALLHANDS_URL; else the one live coordinator of this user on this host,
    where a daemon goes before those embedded in a job.

    Raises:
        ValueError: the URL is malformed, or several coordinators could be meant.
        CoordinatorUnavailable: none could be.
    """
    environ = apply_tls_directory(environ)
    tls_ca = environ.get("ALLHANDS_TLS_CA") or None
    variable = "" if url else "ALLHANDS_URL"
    url = url or environ.get("ALLHANDS_URL") or None
    if url is not None:
        address = parse_named_url(url, variable)
        return apply_notice(
            Endpoint(
                address,
                token or environ.get("ALLHANDS_TOKEN") or None,
                tls_ca,
                insecure or is_insecure(environ),
                environ.get("ALLHANDS_TLS_NAME") or None,
                environ.get("ALLHANDS_TLS_CERT") or None,
                environ.get("ALLHANDS_TLS_KEY") or None,
            )
        )
    return make_notice_endpoint(_choose_notice(notice.list_live()), token)


def make_notice_endpoint(found: notice.Notice, token: str | None = None) -> Endpoint:
    """Return the endpoint of the coordinator that has left a notice; without a token: its own."""
    address = Address(_to_dialable(found.host), found.port)
    # What is sent to an address of this host does not leave it.
    return _merge_notice(Endpoint(address, token or found.token, insecure=True), found)


def apply_notice(endpoint: Endpoint) -> Endpoint:
    """Add token and TLS mode from a coordinator's notice, unless another token was given.

    A notice counts only for the coordinator's own addresses: the same port elsewhere belongs to
    somebody else, who must not be sent this user's token.
    """
    found = _find_notice(endpoint.address)
    # Ranks of a launch have the notice's own token.
    if found is None or endpoint.token not in (None, found.token):
        return endpoint
    return _merge_notice(endpoint, found)


def _find_notice(address: Address) -> notice.Notice | None:
    """Return the notice of this user's live coordinator at an address, if there is one.

    None also where the runtime directory cannot be used: nobody can have left a notice there.
    """
    try:
        return next((one for one in notice.list_live() if _is_reached_at(one, address)), None)
    except OSError:
        return None


def _is_reached_at(found: notice.Notice, address: Address) -> bool:
    """Return whether a coordinator is the one at each address of a URL."""
    if address.is_loopback:
        listens_there = not found.addresses or is_loopback(found.host)
        return found.port == address.port and listens_there
    return all(_has_address(found, one) for one in address.daemons)


def _has_address(found: notice.Notice, address: Address) -> bool:
    """Return whether an address beyond loopback is one of a coordinator's own.

    Without TLS it must be one of this host now, as nothing else proves who answers there.
    """
    is_own = stays_on_host(address.host)
    if not is_own and not found.tls_ca:
        return False
    hosts = {normalise_host(address.host), *(_WILDCARDS if is_own else ())}
    listed = (parse_url(f"ah://{one}") for one in found.addresses)
    return any(one.port == address.port and normalise_host(one.host) in hosts for one in listed)


def normalise_host(host: str) -> str:
    """Return an IP address in its shortest form; a name as it is."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _merge_notice(endpoint: Endpoint, found: notice.Notice) -> Endpoint:
    if endpoint.tls_cert is None and found.tls_cert:
        endpoint = replace(endpoint, tls_cert=found.tls_cert, tls_key=found.tls_key)
    return replace(
        endpoint,
        token=endpoint.token or found.token,
        tls_ca=endpoint.tls_ca or found.tls_ca or None,
        tls_name=endpoint.tls_name or found.tls_name or None,
        has_notice=True,
    )


def _choose_notice(notices: list[notice.Notice]) -> notice.Notice:
    candidates = [found for found in notices if found.kind == "daemon"] or notices
    match candidates:
        case [only]:
            return only
        case []:
            raise CoordinatorUnavailable(
                "no coordinator of yours runs on this host (none has left a notice in "
                f"{notice.directory()}): start one with `allhands serve`, or name one with "
                "--coordinator ah://HOST:PORT, ALLHANDS_URL or `allhands context`"
            )
        case _:
            listed = ", ".join(f"{one.url} ({one.kind}, pid {one.pid})" for one in candidates)
            raise ValueError(
                f"{len(candidates)} coordinators of yours run on this host; "
                f"choose one with --coordinator or ALLHANDS_URL: {listed}"
            )


def _to_dialable(host: str) -> str:
    """Replace the wildcard address by an address that can be dialled."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


TlsMaterial = tuple[bytes, bytes | None, bytes | None]
"""Contents of files in PEM: authorities, the key and the certificate of a client."""


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """The arguments of a channel, `grpc` and `grpc.aio` alike, and the metadata of its calls.

    Pass `metadata` with every call.
    """

    endpoint: Endpoint
    """As it was given, but for a name that stands for loopback: that is an address here."""
    target: str
    tls: TlsMaterial | None = field(repr=False)
    """None: the channel is in plaintext."""
    options: tuple[tuple[str, int | str], ...]
    metadata: tuple[tuple[str, str], ...] = field(repr=False)
    others: "tuple[ChannelConfig, ...]" = ()
    """Of the other daemons with the same log."""

    @property
    def daemons(self) -> "tuple[ChannelConfig, ...]":
        """The daemons one by one."""
        own = replace(self.endpoint, address=self.endpoint.address.daemons[0])
        return (replace(self, endpoint=own, target=own.address.target, others=()), *self.others)

    def open(self) -> "grpc.Channel":
        """Open a synchronous channel to one daemon, which connects with its first call.

        The caller closes it. Of several daemons: see `blocking_channel`.
        """
        import grpc  # which ranks do without

        forks.use_grpc()
        if self.tls is None:
            return grpc.insecure_channel(self.target, options=self.options)
        credentials = grpc.ssl_channel_credentials(*self.tls)
        return grpc.secure_channel(self.target, credentials, options=self.options)


_CHANNEL_OPTIONS = (
    # A proxy for the outside world has no business between ranks and their coordinator.
    ("grpc.enable_http_proxy", 0),
    # Own connections: else a channel inherits the back-off of an earlier one to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A coordinator whose host vanished without a word: waits end in 20 s, whatever their deadline.
    ("grpc.keepalive_time_ms", 10_000),
    # Seconds without an acknowledgement of the other host's kernel that end a connection. A
    # coordinator that is stopped for a while acknowledges, and answers no ping of gRPC's.
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 3_600_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The coordinator limits what it takes in; what it kept it may also give back.
    ("grpc.max_receive_message_length", -1),
    # A verdict travels in trailers, with where the program of each late rank is.
    ("grpc.max_metadata_size", 96 << 10),
    ("grpc.absolute_max_metadata_size", 128 << 10),
)


def check_privacy(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint if its connection is private or the user allowed plaintext.

    It is private with TLS, on loopback, or at an address of this host with a notice of this user.
    A name that stands for loopback is replaced by its address: resolved again, it could be another.
    Without TLS the name is resolved, which may block.

    Raises:
        ValueError: a plaintext connection to another host, not allowed by the user.
    """
    address = endpoint.address
    if endpoint.tls_ca is not None or endpoint.insecure:
        return endpoint
    if address.others:
        first, *others = (
            check_privacy(replace(endpoint, address=one)).address for one in address.daemons
        )
        return replace(endpoint, address=replace(first, others=tuple(others)))
    if endpoint.has_notice and stays_on_host(address.host):
        return endpoint
    unknown = ""
    try:
        if (host := resolve_loopback(address.host)) is not None:
            return replace(endpoint, address=replace(address, host=host))
    except (socket.gaierror, UnicodeError) as error:
        unknown = f" (whose name has no address now: {error})"
    raise ValueError(
        f"the coordinator at {address.target}{unknown} is on another host, and without TLS its "
        "token and all data could be read and changed on the way: set ALLHANDS_TLS_CA=FILE (in "
        "commands also --tls-ca, in Python tls=) to the authorities that vouch for it, or "
        "ALLHANDS_TLS_DIR; or, where that network is yours alone, set ALLHANDS_INSECURE=1 (in "
        "commands also --insecure, in Python insecure=True)"
    )


def configure_channel(endpoint: Endpoint) -> ChannelConfig:
    """Prepare a channel to the coordinator, without any I/O to it.

    Raises:
        OSError: a file of TLS cannot be read.
        ValueError: the token is malformed; a certificate lacks its key; or as `check_privacy`,
            which may block.
    """
    endpoint = check_privacy(endpoint)
    others = tuple(
        configure_channel(replace(endpoint, address=one)) for one in endpoint.address.others
    )
    tls: TlsMaterial | None = None
    if endpoint.tls_ca is not None:
        if (endpoint.tls_cert is None) != (endpoint.tls_key is None):
            raise ValueError(
                "a certificate (ALLHANDS_TLS_CERT, in commands also --tls-cert) and its key "
                "(ALLHANDS_TLS_KEY, --tls-key) go together"
            )
        own = (endpoint.tls_key, endpoint.tls_cert)
        key, cert = (None if path is None else Path(path).read_bytes() for path in own)
        tls = Path(endpoint.tls_ca).read_bytes(), key, cert
    metadata: tuple[tuple[str, str], ...] = ()
    if endpoint.token is not None:
        if not (endpoint.token.isascii() and endpoint.token.isprintable()):
            raise ValueError("the token holds characters that no token has, perhaps a line's end")
        metadata = (("authorization", f"Bearer {endpoint.token}"),)
    options: tuple[tuple[str, int | str], ...] = _CHANNEL_OPTIONS
    if endpoint.tls_name:
        options += (("grpc.ssl_target_name_override", endpoint.tls_name),)
    target = endpoint.address.target
    return ChannelConfig(endpoint, target, tls, options, metadata, others)
