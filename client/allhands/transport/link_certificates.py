"""Certificates of encrypted links: who holds the job's secret can make them, and nobody else.

All ranks of one incarnation derive the key of one authority from the secret that the coordinator
has given them, and each issues a certificate for a fresh key of its own. So a handshake of TLS with
certificates on both sides proves that both hold the secret, to each other and to nobody in between,
and that without files on the hosts of workers. The data is encrypted under keys that do not follow
from the secret: who learns it later cannot read what was recorded.
"""

import os
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc

PEER_NAME = "peer.allhands.invalid"
"""Name in the certificate of each rank."""
_PURPOSE = b"authority of the links"
_SINCE = datetime(2000, 1, 1, tzinfo=UTC)
_LIFETIME = timedelta(days=365 * 200)
"""The secret ends with its incarnation; clocks of hosts may be wrong."""


class LinkCertificates:
    """Certificate of this process for the links of one incarnation of a job, and its authority."""

    def __init__(self, secret: bytes) -> None:
        # Here, as they take long to load: only worlds with TLS need them.
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        from allhands_proto.issuing import Authority

        # 128 bits more than the curve's order has: so the remainder is as good as even.
        spread = HKDF(SHA256(), 48, salt=None, info=_PURPOSE).derive(secret)
        number = int.from_bytes(spread) % (_ORDER_OF_P256 - 1) + 1
        authority = Authority(
            ec.derive_private_key(number, ec.SECP256R1()), "links of a job", _LIFETIME, _SINCE
        )
        self._authority = authority.certificate
        self._own = authority.issue("rank", [PEER_NAME], _LIFETIME, _SINCE)
        self.server_context = self._make_context(ssl.PROTOCOL_TLS_SERVER)
        self.server_context.num_tickets = 0  # no session is taken up again
        self.client_context = self._make_context(ssl.PROTOCOL_TLS_CLIENT)

    def make_grpc_credentials(self) -> "grpc.ChannelCredentials":
        """Make the credentials of a channel to a peer."""
        import grpc  # which links over sockets do without

        return grpc.ssl_channel_credentials(self._authority, self._own.key, self._own.certificate)

    def make_grpc_server_credentials(self) -> "grpc.ServerCredentials":
        """Make the credentials of a server for peers, who show certificates as well."""
        import grpc

        pair = (self._own.key, self._own.certificate)
        return grpc.ssl_server_credentials([pair], self._authority, require_client_auth=True)

    def _make_context(self, protocol: "ssl._SSLMethod") -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self._authority.decode())
        # `ssl` takes a certificate from a file alone: this one is in memory, and nobody else's.
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, self._own.certificate + self._own.key)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return context


_ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
