"""What a command was told about the coordinator to ask, before any file is read."""

from pathlib import Path

from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorChoice:
    """Options for the coordinator and for credentials, by the names of `ClientOptions`."""

    coordinator: str | None = None
    """URL."""
    context: str | None = None
    """Name of a context."""
    token_file: Path | None = None
    tls_dir: Path | None = None
    """Folder of TLS files, and perhaps the token, for what is not given by itself."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    """Whether token and data may be sent in plaintext beyond loopback."""
