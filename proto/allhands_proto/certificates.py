"""Names in a certificate, for dialling a coordinator with TLS."""

import ssl
from typing import Any


def choose_tls_name(server: ssl.SSLContext, cert: str, host: str) -> str:
    """Return the certificate's name to expect when dialling its server as `host`.

    That is one that the certificate has; empty: it has `host`, or none. `server` is a context that
    has loaded the certificate, which is in the PEM file `cert`.
    """
    names = _read_names(server, cert)
    if not names or host in names:
        return ""
    return names[0].replace("*", "coordinator")


def make_client_context(
    authorities: str, cert: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return a context that trusts a PEM file's certificates, even end certificates.

    It shows `cert`, with its key, to servers that ask for a certificate.

    Raises:
        OSError: a file cannot be read, or does not hold what it should.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=authorities)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def _read_names(server: ssl.SSLContext, cert: str) -> list[str]:
    """Return the certificate's names, by a handshake in memory that verifies it."""
    client = make_client_context(cert)
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return []  # it has expired, for one: whoever dials is told so
            if not end.server_side:
                found: dict[str, Any] = end.getpeercert() or {}
                return [name for kind, name in found.get("subjectAltName", ()) if kind in _KINDS]
            ends.remove(end)
    return []


_KINDS = ("DNS", "IP Address")
