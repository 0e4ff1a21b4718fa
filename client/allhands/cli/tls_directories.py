"""Directories of TLS files of the authority, the daemon and the workers.

DIR/authority   ca.crt, ca.key       stays where it was made
DIR/daemon      ca.crt, tls.crt, tls.key, token
DIR/worker      ca.crt, tls.crt, tls.key, token
"""

import contextlib
import ipaddress
import os
import re
import secrets
import shlex
import shutil
import socket
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from allhands_proto.issuing import Authority, Issued, read_hosts
from allhands_proto.tls_files import AUTHORITIES, CERTIFICATE, KEY, TOKEN

_AUTHORITY, _DAEMON, _WORKER = "authority", "daemon", "worker"
_AUTHORITY_KEY = "ca.key"
_WORKER_NAME = "worker.allhands.invalid"
"""Name in the workers' certificate: of no host, so that no worker passes for the daemon."""
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)


def create_directories(directory: Path, hosts: Sequence[str], days: int) -> list[str]:
    """Make authority, certificates and token; return the daemon's names beside those of loopback.

    All of it or nothing appears in the directory, of mode 0700; keys and token have mode 0600.

    Raises:
        ValueError: something is there already, or a host is no name or address.
        OSError: the directory cannot be written to.
    """
    for host in hosts:
        _check_host(host)
    parts = [directory / name for name in (_AUTHORITY, _DAEMON, _WORKER)]
    if taken := [str(path) for path in parts if path.exists()]:
        raise ValueError(
            f"{' and '.join(taken)} exist{'s' if len(taken) == 1 else ''} already, and nothing is "
            "overwritten: name another directory, or renew the certificates of this one with "
            f"`allhands token renew {shlex.quote(str(directory))}`"
        )
    names = list(dict.fromkeys(hosts or _list_own_names()))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=directory))
    try:
        _fill(scratch, [*names, *_LOCAL], timedelta(days=days))
        for path in parts:
            os.rename(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch)
    return names


def renew_certificates(directory: Path, days: int) -> list[Path]:
    """Replace the certificates of daemon and workers; return the paths of the new files.

    Raises:
        ValueError: the directory is not one that `create_directories` has made.
        OSError: a file cannot be read or written.
    """
    home = directory / _AUTHORITY
    try:
        authority = Authority.load(
            (home / AUTHORITIES).read_bytes(), (home / _AUTHORITY_KEY).read_bytes()
        )
        known = {
            name: read_hosts((directory / name / CERTIFICATE).read_bytes())
            for name in (_DAEMON, _WORKER)
        }
    except FileNotFoundError as error:
        raise ValueError(
            f"there is no {error.filename}: name a directory that `allhands token init` has made"
        ) from error
    written = []
    for name, hosts in known.items():
        issued = authority.issue(f"allhands {name}", hosts, timedelta(days=days))
        written += _write_pair(directory / name, issued)
    return written


def describe_use(directory: Path, names: Sequence[str]) -> str:
    """Return what to run on each host, for a terminal."""
    there = shlex.quote(str(directory.absolute()))
    first = f"[{names[0]}]" if ":" in names[0] else names[0]
    return f"""\
The daemon's certificate is for {", ".join(names)}.

On the daemon's host, with {there}/{_DAEMON} copied to it:

    allhands serve --listen 0.0.0.0:7070 --tls-dir {there}/{_DAEMON}

On each host of workers, with {there}/{_WORKER} copied to it:

    export ALLHANDS_TLS_DIR={there}/{_WORKER}
    export ALLHANDS_URL=ah://{first}:7070/JOB

Keep {there}/{_AUTHORITY} here: who has its key can make certificates.
The file `{TOKEN}` lets its readers do anything with all jobs; for less, remove it from the workers'
copies, and give each job a token of its own (`allhands token create`).
Before they expire: allhands token renew {there}"""


def _fill(scratch: Path, names: Sequence[str], lifetime: timedelta) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = Authority(ec.generate_private_key(ec.SECP256R1()), "allhands authority")
    token = secrets.token_urlsafe(32).encode() + b"\n"
    for name in (_AUTHORITY, _DAEMON, _WORKER):
        (scratch / name).mkdir(mode=0o700)
        _write(scratch / name / AUTHORITIES, authority.certificate, 0o644)
    _write(scratch / _AUTHORITY / _AUTHORITY_KEY, authority.key, 0o600)
    for name, hosts in ((_DAEMON, names), (_WORKER, [_WORKER_NAME])):
        _write_pair(scratch / name, authority.issue(f"allhands {name}", hosts, lifetime))
        _write(scratch / name / TOKEN, token, 0o600)


def _write_pair(folder: Path, issued: Issued) -> list[Path]:
    _write(folder / KEY, issued.key, 0o600)
    _write(folder / CERTIFICATE, issued.certificate, 0o644)
    return [folder / CERTIFICATE, folder / KEY]


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one step, in the place of an older one."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        raise


def _list_own_names() -> list[str]:
    return [socket.gethostname(), socket.getfqdn()]


def _check_host(host: str) -> None:
    try:
        is_all = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(f"--host wants the name or address of a host, not {host!r}") from None
        return
    if is_all:
        raise ValueError(f"--host wants an address that workers dial, not {host}")
