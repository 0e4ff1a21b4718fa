"""An authority and a certificate for one launch, in memory: nothing of them is left behind.

The files are anonymous memory of this process, which its user reaches by path as long as it lives.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from allhands_proto.quick_dataclass import dataclass

NAME = "launcher.allhands.invalid"
"""In the certificate, so that it fits however the launcher is reached."""
_LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class ThrowawayTls:
    """Paths of PEM files."""

    authority: str
    certificate: str
    key: str


@contextmanager
def open_throwaway_tls() -> Iterator[ThrowawayTls]:
    """Make an authority and a certificate for a block."""
    from cryptography.hazmat.primitives.asymmetric import ec

    from allhands_proto.issuing import Authority

    authority = Authority(ec.generate_private_key(ec.SECP256R1()), "allhands run", _LIFETIME)
    issued = authority.issue("allhands run", [NAME], _LIFETIME)
    with ExitStack() as stack:

        def keep(name: str, content: bytes) -> str:
            descriptor = os.memfd_create(f"allhands-{name}")
            stack.callback(os.close, descriptor)
            os.write(descriptor, content)
            return f"/proc/{os.getpid()}/fd/{descriptor}"

        yield ThrowawayTls(
            keep("authority", authority.certificate),
            keep("certificate", issued.certificate),
            keep("key", issued.key),
        )
