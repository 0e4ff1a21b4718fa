"""Configuration of a coordinator: a frozen, validated value."""

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from allhands_proto.authority import format_authority
from allhands_proto.loopback import is_loopback
from allhands_proto.quick_dataclass import dataclass
from allhands_server.authorities import WILDCARDS, parse_authority
from allhands_server.etcd_address import EtcdAddress
from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits

TOKEN_VARIABLE = "ALLHANDS_TOKEN"


@dataclass(frozen=True, slots=True)
class SettingNames:
    """Names of the settings in the caller's notation, for errors of `ServerConfig`."""

    token: str = "token"
    tls_cert: str = "tls_cert"
    tls_key: str = "tls_key"
    tls_client_ca: str = "tls_client_ca"
    insecure: str = "insecure=True"
    drain_timeout: str = "drain_timeout"
    advertise: str = "advertise"
    kv_advertise: str = "kv_advertise"


FLAGS = SettingNames(
    f"--token-file or {TOKEN_VARIABLE}",
    "--tls-cert",
    "--tls-key",
    "--tls-client-ca",
    "--insecure",
    "--drain-timeout",
    "--advertise",
    "--kv-advertise",
)
"""Of `allhands serve`."""
VARIABLES = SettingNames(
    TOKEN_VARIABLE,
    "ALLHANDS_TLS_CERT",
    "ALLHANDS_TLS_KEY",
    "ALLHANDS_TLS_CLIENT_CA",
    "ALLHANDS_INSECURE=1",
)
"""Of a process that hosts a coordinator itself."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Defaults are for loopback: a free port, a random token, a notice for the user's commands."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    more_listens: tuple[tuple[str, int], ...] = ()
    """Further addresses to listen on, each with its port."""
    kv_port: int = 0
    """TCP port for key-value calls, on each of the hosts; 0: any free one."""
    token: str | None = field(default=None, repr=False)
    """None: a random one, which is only possible on loopback (or with `insecure`)."""
    tls_cert: Path | str | None = None
    """PEM file with the certificate chain; its key is in `tls_key`."""
    tls_key: Path | str | None = None
    tls_client_ca: Path | str | None = None
    """PEM file of the authorities whose certificates callers have to show; None: they show none."""
    insecure: bool = False
    """Listen beyond loopback though there is no token or no TLS; warned of at each start."""
    post_notice: bool = True
    """Leave address and token for this user's own commands on this host."""
    kind: str = "daemon"
    """`daemon` or `embedded`, as the notice says."""
    data_dir: Path | str | None = None
    """Folder of the log that keeps keys, queues and barriers over a restart; None: memory alone."""
    store: EtcdAddress | None = None
    """Cluster of a log that several daemons share, of which one leads; None: no other daemon."""
    advertise: tuple[str, ...] = ()
    """`host` or `host:port` where clients reach the daemon; empty: where it listens."""
    kv_advertise: tuple[str, ...] = ()
    """The same for the key-value port; empty: the hosts that clients have dialled."""
    http: tuple[str, int] | None = None
    """Host and port for page, health and metrics by HTTP; port 0: any free one; None: none."""
    log_format: Literal["text", "json"] = "text"
    """Of the lines on stderr, where the process is the daemon's own."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    audit_log: Path | str | None = None
    """File that gets a line of JSON for each call; None: there is no audit log."""
    limits: ResourceLimits = DEFAULT_LIMITS
    """Of jobs and clients; without a limit of memory, two fifths of the host's or container's."""
    drain_timeout: float = 30.0
    """Seconds that running worlds get to end after the first signal."""
    first_request_timeout: float = 5.0
    """Seconds from the opening of a session's stream to its Join."""
    setting_names: SettingNames = field(default=SettingNames(), repr=False, compare=False)

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can be a client; names besides localhost may be any host."""
        return all(is_loopback(host) for host, _ in self.listens)

    @property
    def _outside_hosts(self) -> list[str]:
        """Hosts to listen on that are beyond loopback, those of the HTTP port among them."""
        hosts = [host for host, _ in (*self.listens, *([self.http] if self.http else []))]
        return [host for host in dict.fromkeys(hosts) if not is_loopback(host)]

    @property
    def listens(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports to listen on, without those that a wildcard address includes."""
        given = dict.fromkeys(((self.host, self.port), *self.more_listens))
        wild = {port: host for host, port in given if host in WILDCARDS and port}
        return tuple(one for one in given if wild.get(one[1], one[0]) == one[0])

    def get_advertised(self, port: int) -> tuple[str, ...]:
        """Return `host:port` of each advertised address; `port` is for those without one."""
        return _complete(self.advertise, port)

    def get_kv_advertised(self, port: int) -> tuple[str, ...]:
        """Return `host:port` of each advertised address of the key-value port, which is `port`."""
        return _complete(self.kv_advertise, port)

    def validate(self) -> None:
        """Check that the settings are complete and closed to strangers.

        Raises:
            ValueError: the text says what to give.
        """
        http = [] if self.http is None else [self.http]
        for host, port in (*self.listens, (self.host, self.kv_port), *http):
            if not host:
                text = "no host to listen on: give 127.0.0.1, or 0.0.0.0 for all addresses"
                raise ValueError(text)
            if not 0 <= port <= 65535:
                raise ValueError(f"no such port: {port}")
        _check_advertised(self.advertise, self.setting_names.advertise)
        _check_advertised(self.kv_advertise, self.setting_names.kv_advertise)
        if self.kind not in ("daemon", "embedded"):
            raise ValueError(f"no such kind of coordinator: {self.kind!r}")
        self.limits.validate()
        if self.drain_timeout < 0:
            raise ValueError(f"{self.setting_names.drain_timeout} is in seconds, and not negative")
        if self.first_request_timeout <= 0:
            raise ValueError("first_request_timeout is in seconds, and positive")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError(
                f"TLS needs both files: the certificate ({self.setting_names.tls_cert}) "
                f"and its key ({self.setting_names.tls_key})"
            )
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError(
                f"certificates of callers ({self.setting_names.tls_client_ca}) need TLS: give "
                f"{self.setting_names.tls_cert} and {self.setting_names.tls_key} as well"
            )
        if self.token is not None:
            _check_token(self.token)
        self._check_store()
        if self._outside_hosts and not self.insecure and (missing := self._list_missing()):
            host = self._outside_hosts[0]
            raise ValueError(
                f"listening on {host}, beyond loopback, needs {' and '.join(missing)}; "
                "`allhands token init DIR` makes both; "
                f"{self.setting_names.insecure} overrides this"
            )

    def _check_store(self) -> None:
        """Check the settings of one of several daemons."""
        if self.store is None:
            return
        if self.data_dir is not None:
            raise ValueError("a log is in a folder or in a store: give one of the two")
        if self.token is None:
            raise ValueError(
                f"daemons that share a store share their token: give {self.setting_names.token}"
            )
        if not self.store.is_private and not self.insecure:
            raise ValueError(
                f"{self.store} is beyond this host, and all data would be sent there in the clear: "
                f"give its authorities; {self.setting_names.insecure} overrides this"
            )
        if not self.advertise and any(host in WILDCARDS for host, _ in self.listens):
            raise ValueError(
                f"clients cannot be sent to {self._listen_text}: say where they reach this daemon "
                f"({self.setting_names.advertise})"
            )

    def list_warnings(self) -> list[str]:
        """List the dangers of `insecure`; empty without any."""
        if not self._outside_hosts or not self.insecure:
            return []
        found = []
        if self.tls_cert is None:
            found.append(
                f"INSECURE: {self._listen_text} is reachable from other hosts and there is no TLS: "
                "token and data travel in the clear"
            )
        if self.token is None:
            found.append(
                f"INSECURE: no token was given for {self._listen_text}: "
                "a random one stands in the notice of this host's user, and nowhere else"
            )
        return found

    @property
    def _listen_text(self) -> str:
        return ", ".join(self._outside_hosts)

    def _list_missing(self) -> list[str]:
        missing = []
        if self.token is None:
            missing.append(f"a token ({self.setting_names.token})")
        if self.tls_cert is None:
            missing.append(f"TLS ({self.setting_names.tls_cert} and {self.setting_names.tls_key})")
        return missing


def read_token(path: Path | str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the token in the file, else of the environment, else None.

    Never take one from the command line, where every user of the host could read it.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no token in it.
    """
    if path is not None:
        token = Path(path).read_text().strip()
        if not token:
            raise ValueError(f"there is no token in {path}")
        return token
    return environ.get(TOKEN_VARIABLE) or None


def _complete(advertised: tuple[str, ...], port: int) -> tuple[str, ...]:
    found = (parse_authority(text, port) for text in advertised)
    return tuple(format_authority(*one) for one in found if one is not None)


def _check_advertised(advertised: tuple[str, ...], setting: str) -> None:
    for text in advertised:
        found = parse_authority(text, 1)
        if found is None or not found[1]:
            raise ValueError(
                f"{setting} is HOST or HOST:PORT, an IPv6 address in brackets, and not {text!r}"
            )
        if found[0] in WILDCARDS:
            raise ValueError(f"clients cannot dial {found[0]}: {setting} says what they dial")


def _check_token(token: str) -> None:
    if not (token and token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("a token is of printable ASCII characters without spaces")
