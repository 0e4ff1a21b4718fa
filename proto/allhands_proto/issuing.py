"""Authorities of X.509 and the certificates that they issue: P-256 keys, PEM."""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from allhands_proto.quick_dataclass import dataclass

_TEN_YEARS = timedelta(days=3650)
_CLOCK_SLACK = timedelta(hours=1)
"""Certificates hold a while before they are made, for hosts whose clocks are late."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its key, PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Issued(...)"  # no key


class Authority:
    """An authority with its key."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        name: str,
        lifetime: timedelta = _TEN_YEARS,
        since: datetime | None = None,
    ) -> None:
        """Make the certificate of an authority, valid since now or earlier."""
        self._key = key
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = (
            _begin(self._name, self._name, key, lifetime, since)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_make_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> "Authority":
        """Return the authority of a certificate and key, PEM.

        Raises:
            ValueError: they are no certificate and its P-256 key.
        """
        loaded = serialization.load_pem_private_key(key, None)
        known = x509.load_pem_x509_certificate(certificate)
        if (
            not isinstance(loaded, ec.EllipticCurvePrivateKey)
            or known.public_key() != loaded.public_key()
        ):
            raise ValueError("this is not the key of the authority")
        self = cls.__new__(cls)
        self._key, self._name, self._certificate = loaded, known.subject, known
        return self

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The authority's key, PEM."""
        return _encode_key(self._key)

    def issue(
        self, name: str, hosts: Iterable[str], lifetime: timedelta, since: datetime | None = None
    ) -> Issued:
        """Issue a certificate for both ends of connections, with names and addresses of hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (
            _begin(self._name, subject, key, lifetime, since)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(map(_make_name, hosts)), critical=False)
            .add_extension(_make_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Issued(made.public_bytes(serialization.Encoding.PEM), _encode_key(key))


def read_hosts(certificate: bytes) -> list[str]:
    """Return the names and addresses of hosts in a certificate, PEM.

    Raises:
        ValueError: it is no certificate.
    """
    known = x509.load_pem_x509_certificate(certificate)
    try:
        names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def is_expired(certificate: bytes) -> bool:
    """Return whether a certificate, PEM, is not valid any more.

    Raises:
        ValueError: it is no certificate.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc < datetime.now(UTC)


def _begin(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    lifetime: timedelta,
    since: datetime | None,
) -> x509.CertificateBuilder:
    begin = since or datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_SLACK)
        .not_valid_after(begin + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _make_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _make_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
