"""The token of a coordinator that was given none: kept beside its log, so that restarts keep it."""

import contextlib
import os
import secrets
from pathlib import Path

FILE_NAME = "token"


def load_token(data_dir: Path) -> str:
    """Return the token kept in a folder; a random one, kept from now on, if there is none.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: the file is empty.
    """
    path = data_dir / FILE_NAME
    with contextlib.suppress(FileNotFoundError):
        if not (token := path.read_text().strip()):
            raise ValueError(f"there is no token in {path}: remove the file for a new one")
        return token
    token = secrets.token_urlsafe(32)
    part = path.with_suffix(".part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()  # of a start that was cut off
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    return token
