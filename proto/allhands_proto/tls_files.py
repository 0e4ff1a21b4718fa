"""Files of TLS in a directory: authorities, certificate chain, key, and perhaps a token.

The names are those of Kubernetes' TLS secrets and of cert-manager, so that a mounted secret is such
a directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from allhands_proto.quick_dataclass import dataclass

DIRECTORY_VARIABLE = "ALLHANDS_TLS_DIR"
AUTHORITIES, CERTIFICATE, KEY, TOKEN = "ca.crt", "tls.crt", "tls.key", "token"
_SIDES = "daemon", "worker"
"""Directories that `allhands token init` makes in the one that it is given."""
_WANTED = (
    f"a directory with {AUTHORITIES}, {CERTIFICATE} and {KEY}, such as `allhands token init` makes"
)


@dataclass(frozen=True, slots=True)
class TlsDirectory:
    """Paths of the files in a directory of one side."""

    authorities: str
    """PEM file of the authorities that vouch for the other sides."""
    certificate: str
    """PEM file of the certificate chain of this side."""
    key: str
    token: str
    """Path of the file with the token; there may be none."""


def find_tls_directory(directory: Path | str, source: str = DIRECTORY_VARIABLE) -> TlsDirectory:
    """Return the paths of the files in a directory, which `source` names in errors.

    Raises:
        ValueError: one of authorities, certificate and key is missing.
    """
    folder = os.path.abspath(os.fspath(directory))
    found = TlsDirectory(*(os.path.join(folder, n) for n in (AUTHORITIES, CERTIFICATE, KEY, TOKEN)))
    missing = [
        os.path.basename(path)
        for path in (found.authorities, found.certificate, found.key)
        if not os.path.isfile(path)
    ]
    if missing:
        sides = [one for one in _SIDES if os.path.isfile(os.path.join(folder, one, CERTIFICATE))]
        named = " or ".join(os.path.join(os.fspath(directory), one) for one in sides)
        raise ValueError(
            f"{source}={os.fspath(directory)} holds no {' and no '.join(missing)}: give "
            + (named or _WANTED)
        )
    return found


def apply_tls_directory(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment with the variables that ALLHANDS_TLS_DIR stands for.

    Variables set by themselves go before the directory's.

    Raises:
        ValueError: the directory lacks a file, or its token cannot be read.
    """
    if not (directory := environ.get(DIRECTORY_VARIABLE)):
        return environ
    own = {name: value for name, value in environ.items() if value}
    return {**read_tls_directory(directory), **own}


def read_tls_directory(
    directory: Path | str, source: str = DIRECTORY_VARIABLE
) -> Mapping[str, str]:
    """Return the variables that a directory, named by `source`, stands for.

    Raises:
        ValueError: the directory lacks a file, or its token cannot be read.
    """
    files = find_tls_directory(directory, source)
    implied = {
        "ALLHANDS_TLS_CA": files.authorities,
        "ALLHANDS_TLS_CERT": files.certificate,
        "ALLHANDS_TLS_KEY": files.key,
        "ALLHANDS_TLS_CLIENT_CA": files.authorities,
    }
    if token := read_directory_token(files):
        implied["ALLHANDS_TOKEN"] = token
    return implied


def read_directory_token(files: TlsDirectory) -> str | None:
    """Return the token in the directory; None: there is none.

    Raises:
        ValueError: the file is there and cannot be read.
    """
    try:
        return Path(files.token).read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"the token in {files.token} cannot be read: {error.strerror}") from error
