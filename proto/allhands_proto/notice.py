"""Notice of a coordinator for its user's commands on the same host.

It holds the address and the token, in the user's runtime directory, readable by nobody else. So
loopback needs no flag and is still closed to others. Both sides of the wire rely on its form.
"""

import contextlib
import json
import os
import stat
import tempfile
import threading
from dataclasses import asdict, field, fields
from pathlib import Path

from allhands_proto import process
from allhands_proto.authority import format_authority
from allhands_proto.quick_dataclass import dataclass

_OVER = ("gone", "zombie")
_NOTICE, _GATHERING = "coordinator-", "gathering-"
"""Beginnings of files of the runtime directory that say, as `pid` and `born`, which process they
stand for."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Address and token of a live coordinator of this user."""

    host: str
    port: int
    token: str = field(repr=False)
    pid: int
    kind: str
    """`daemon` (allhands serve) or `embedded` (in a launcher or in rank 0)."""
    born: str = ""
    """When the process began, as the kernel counts: another one may get its number later."""
    tls_ca: str = ""
    """Path of the authorities that vouch for it; empty: it speaks no TLS."""
    tls_name: str = ""
    """The name in its certificate, where that is not the host."""
    tls_cert: str = ""
    """Path of a certificate to show it; empty: it wants none."""
    tls_key: str = ""
    """Path of the key of `tls_cert`."""
    addresses: tuple[str, ...] = ()
    """`host:port` of each address at which it listens, or is advertised; a wildcard stands for all
    addresses of this host. Empty: it is of a version that does not tell."""

    @property
    def url(self) -> str:
        return f"ah://{format_authority(self.host, self.port)}"


def directory() -> Path:
    """Return the user's runtime directory for allhands, created with mode 0700.

    That is `$XDG_RUNTIME_DIR/allhands`; where XDG_RUNTIME_DIR is unset, does not exist, is another
    user's or cannot be written to, `allhands-UID` in the directory for temporary files.

    Raises:
        PermissionError: it exists but belongs to somebody else or others may write there.
        OSError: it cannot be made.
    """
    path = _in_runtime_directory() or Path(tempfile.gettempdir(), f"allhands-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{path} must be a directory of uid {os.getuid()} with mode 0700; "
            "remove it, or set XDG_RUNTIME_DIR to a directory of your own"
        )
    return path


def _in_runtime_directory() -> Path | None:
    base = os.environ.get("XDG_RUNTIME_DIR")
    if not base or not os.path.isabs(base):
        return None
    try:
        found = os.stat(base)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return None  # left over from another login, as after `su`
        path = Path(base, "allhands")
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return path  # a file: `directory` says so
    except OSError:
        return None
    return path


def publish(target: Path, content: dict[str, object]) -> Path:
    """Write a private file (mode 0600) atomically."""
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".")  # mkstemp gives mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
        os.replace(scratch, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
        raise
    return target


def read_start_ticks(pid: int) -> str:
    """Return a process's start time in the kernel's ticks; empty: unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_alive(pid: int, born: str) -> bool:
    """Whether a process started at `born` still runs; zombies do not.

    One that has ended and that its parent has not waited for still has its process id.
    """
    if seen := process.inspect_process(pid, born):
        return seen not in _OVER
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, as somebody else
    return True


def post(notice: Notice) -> Path:
    """Post the notice, replacing an older one of its port; stale files are removed."""
    remove_stale()
    return publish(directory() / f"{_NOTICE}{notice.port}.json", {**asdict(notice)})


def withdraw(notice: Notice) -> None:
    """Remove the notice, unless replaced by another coordinator's."""
    try:
        path = directory() / f"{_NOTICE}{notice.port}.json"
    except OSError:
        return  # the directory has gone, and the notice with it
    if _read(path) == notice:
        path.unlink(missing_ok=True)


def list_live() -> list[Notice]:
    """List the notices of live processes, daemons first, then by port."""
    remove_stale()
    found = (_read(path) for path in _list_files(directory(), _NOTICE))
    alive = [one for one in found if one is not None and is_alive(one.pid, one.born)]
    return sorted(alive, key=lambda notice: (notice.kind != "daemon", notice.port))


def remove_stale() -> None:
    """Remove the files of killed processes."""
    folder = directory()
    for path in _list_files(folder, _NOTICE, _GATHERING):
        if not _is_stale(path):
            continue
        # Looked at again under another name: another process may have left its own meanwhile.
        aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            os.rename(path, aside)
            if not _is_stale(aside):
                os.link(aside, path)
        aside.unlink(missing_ok=True)


def find(port: int) -> Notice | None:
    """Return the notice of this user's live coordinator on a port of this host.

    None also where the runtime directory cannot be used: nobody can have left a notice there.
    """
    try:
        return next((notice for notice in list_live() if notice.port == port), None)
    except OSError:
        return None


def _list_files(folder: Path, *beginnings: str) -> list[Path]:
    # Not by `glob`, for which each rank of a job would compile patterns.
    names = os.listdir(folder)
    return [folder / one for one in names if one.startswith(beginnings) and one.endswith(".json")]


def _read(path: Path) -> Notice | None:
    try:
        said = json.loads(path.read_text())
        told = {field.name: said[field.name] for field in fields(Notice) if field.name in said}
        return Notice(**{**told, "addresses": tuple(told.get("addresses", ()))})
    except (OSError, ValueError, TypeError):
        return None  # gone meanwhile, or not ours


def _is_stale(path: Path) -> bool:
    try:
        said = json.loads(path.read_text())
        return not is_alive(int(said["pid"]), str(said.get("born", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return False  # gone meanwhile, or not ours
