"""TLS contexts of callers in tests."""

import ssl
from pathlib import Path


def open_context(authorities: Path) -> ssl.SSLContext:
    """Return a context for a server that is dialled by another name than its certificate's."""
    context = ssl.create_default_context(cafile=str(authorities))
    context.check_hostname = False
    return context
