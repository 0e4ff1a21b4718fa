"""Certificate, key and authorities of a coordinator, read anew when the files change."""

import logging
import os
import ssl
import threading
from pathlib import Path
from typing import TypeAlias

import grpc

logger = logging.getLogger(__name__)

_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class ServerCertificates:
    """The TLS files of a coordinator, for both of its ports.

    Each new connection gets the files as they are then; connections that are open stay. Files that
    cannot be used, as a certificate whose key is not there yet, leave the ones before in use.
    """

    def __init__(
        self, cert: Path | str, key: Path | str, client_ca: Path | str | None = None
    ) -> None:
        """Read the files; with `client_ca` callers need a certificate of these authorities.

        Raises:
            ValueError: they are no certificate, key and authorities, in PEM.
            OSError: one cannot be read.
        """
        self._paths = (cert, key) if client_ca is None else (cert, key, client_ca)
        self._lock = threading.Lock()  # gRPC asks from threads of its own
        self._stamp = self._read_stamp()
        self._refused: _Stamp | None = None
        self._unreadable = ""
        try:
            self._context, self._open_context, self._configuration = self._load()
        except ssl.SSLError as error:
            raise ValueError(self._describe(error)) from error
        self._given = self._configuration

    def get_context(self) -> ssl.SSLContext:
        """Return a context for one connection, with the files of now."""
        with self._lock:
            self._reload()
            return self._context

    def get_open_context(self) -> ssl.SSLContext:
        """Return such a context that asks callers for a certificate, and lets in who has none."""
        with self._lock:
            self._reload()
            return self._open_context

    @property
    def needs_client_certificate(self) -> bool:
        """Whether callers have to show a certificate."""
        return len(self._paths) == 3

    def make_credentials(self) -> grpc.ServerCredentials:
        """Make gRPC's credentials, which ask for the files with each connection."""
        return grpc.dynamic_ssl_server_credentials(
            self._given,
            self._get_new_configuration,  # type: ignore[arg-type]  # None: the same as before
            self.needs_client_certificate,
        )

    def _get_new_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration once, if it is not the one that gRPC has.

        gRPC ends the process where it replaces one while another thread begins to use it. So that
        is done for new files alone, and not with each connection.
        """
        with self._lock:
            self._reload()
            if self._given is self._configuration:
                return None
            self._given = self._configuration
            return self._configuration

    def _reload(self) -> None:
        try:
            stamp = self._read_stamp()
            if stamp in (self._stamp, self._refused):
                return
            self._refused = stamp
            self._context, self._open_context, self._configuration = self._load()
        except ssl.SSLError as error:
            logger.error("%s; those before stay in use", self._describe(error))
        except OSError as error:
            if str(error) != self._unreadable:  # told once, and not with each connection
                logger.error("TLS files cannot be read, and those before stay in use: %s", error)
            self._unreadable = str(error)
        else:
            self._stamp, self._refused, self._unreadable = stamp, None, ""
            logger.info("new TLS files are in use for new connections: %s", self._paths[0])

    def _read_stamp(self) -> _Stamp:
        found = [os.stat(path) for path in self._paths]
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)

    def _load(
        self,
    ) -> tuple[ssl.SSLContext, ssl.SSLContext, grpc.ServerCertificateConfiguration]:
        cert, key, *client_ca = self._paths
        pair = Path(key).read_bytes(), Path(cert).read_bytes()
        roots = Path(client_ca[0]).read_bytes() if client_ca else None
        context = self._make_context(ssl.CERT_REQUIRED)
        open_context = self._make_context(ssl.CERT_OPTIONAL) if client_ca else context
        return context, open_context, grpc.ssl_server_certificate_configuration([pair], roots)

    def _make_context(self, of_callers: ssl.VerifyMode) -> ssl.SSLContext:
        cert, key, *client_ca = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)  # which checks that they belong together
        if client_ca:
            context.verify_mode = of_callers
            context.load_verify_locations(cafile=client_ca[0])
        return context

    def _describe(self, error: ssl.SSLError) -> str:
        cert, key, *client_ca = self._paths
        text = f"{cert} and {key} are no certificate and its key"
        if client_ca:
            text += f", or {client_ca[0]} holds no authority"
        return f"{text}, in PEM ({error.reason or error})"
