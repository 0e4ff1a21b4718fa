"""Addresses of etcd clusters: `etcd://host:port,host:port/path`, with TLS and a user."""

import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from allhands_proto.loopback import is_loopback
from allhands_proto.quick_dataclass import dataclass

USER_VARIABLE = "ALLHANDS_STORE_USER"
_SCHEME = "etcd://"
_FORMAT = "etcd://HOST:PORT[,HOST:PORT...][/PATH]"
_DEFAULT_PATH = "allhands"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Where a log is kept in an etcd cluster, and the credentials for it."""

    endpoints: tuple[str, ...]
    """`host:port`, IPv6 in brackets."""
    path: str = _DEFAULT_PATH
    """First part of every key."""
    ca: Path | str | None = None
    """PEM bundle of the authorities that vouch for the cluster; None: plaintext."""
    cert: Path | str | None = None
    """PEM file with this daemon's certificate, where the cluster asks for one."""
    key: Path | str | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def is_private(self) -> bool:
        """Whether nobody beyond this host can read what is sent."""
        return self.ca is not None or all(
            is_loopback(one.rpartition(":")[0].strip("[]")) for one in self.endpoints
        )

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.endpoints)}/{self.path}"


def parse_store(
    url: str,
    *,
    ca: Path | str | None = None,
    cert: Path | str | None = None,
    key: Path | str | None = None,
    user: str | None = None,
) -> EtcdAddress:
    """Read the URL of a log in an etcd cluster; `user` is NAME:PASSWORD.

    Raises:
        ValueError: the text says which part is wrong.
    """
    if not url.startswith(_SCHEME):
        raise ValueError(f"no store that allhands knows: write {_FORMAT}")
    authority, _, path = url.removeprefix(_SCHEME).partition("/")
    if "@" in authority:
        # Not repeated in the text: a command line can be read by every user of the host.
        raise ValueError(f"a store's URL holds no password: give a file, or {USER_VARIABLE}")
    endpoints = tuple(filter(None, authority.split(",")))
    if not endpoints:
        raise ValueError(f"no host in {url!r}: write {_FORMAT}")
    for one in endpoints:
        host, _, port = one.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"no HOST:PORT: {one!r} in {url!r}: write {_FORMAT}")
        if (":" in host) != (host[0] == "[" and host[-1] == "]"):
            raise ValueError(f"put the IPv6 address in {one!r} in brackets")
    path = path.strip("/") or _DEFAULT_PATH
    if not path.isprintable() or any(char in path for char in " ?#"):
        raise ValueError(f"not the path of keys: {path!r} in {url!r}")
    if (cert is None) != (key is None):
        raise ValueError("a certificate for the store comes with its key: give both files")
    if cert is not None and ca is None:
        raise ValueError("a certificate for the store needs the store's authorities as well")
    name, _, password = (user or "").partition(":")
    if user and not (name and password):
        raise ValueError("the store's user is written NAME:PASSWORD")
    return EtcdAddress(endpoints, path, ca, cert, key, name, password)


def read_store_user(path: Path | str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return NAME:PASSWORD in the file, else of the environment, else None.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is no user in it.
    """
    if path is None:
        return environ.get(USER_VARIABLE) or None
    user = Path(path).read_text().strip()
    if not user:
        raise ValueError(f"there is no user in {path}: write NAME:PASSWORD")
    return user
