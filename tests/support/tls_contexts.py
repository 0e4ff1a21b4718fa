"""Credentials of daemons and callers in tests."""

import ssl
import subprocess
import sys
from pathlib import Path


def open_context(authorities: Path) -> ssl.SSLContext:
    """Return a context for a server that is dialled by another name than its certificate's."""
    context = ssl.create_default_context(cafile=str(authorities))
    context.check_hostname = False
    return context


def make_credentials(folder: Path, *hosts: str) -> Path:
    """Make what `allhands token init` makes, for a daemon under these names; return `folder`."""
    command = [sys.executable, "-m", "allhands.cli.main", "token", "init", str(folder)]
    named = [word for host in hosts for word in ("--host", host)]
    subprocess.run([*command, *named], check=True, capture_output=True)
    return folder
