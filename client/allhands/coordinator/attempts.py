"""Diagnosis of an unreachable coordinator, and repeated attempts to connect.

gRPC has one status for a dead server, a missing or wrong certificate authority, and plaintext where
TLS is required. To distinguish them a new connection is made, on which no user data is sent.
"""

import contextlib
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc

from allhands.coordinator.endpoint import Endpoint, tls_context
from allhands.errors import AllhandsError, CoordinatorUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 0.1
QUIET_SECONDS = 2.0
"""Ranks that start together, and the one that hosts the coordinator, may be apart so far."""
_PROBE_SECONDS = 2.0
_PROBE_INTERVAL = 1.0
_NAME_MISMATCH = 62, 64
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""
_UNTRUSTED = 2, 18, 19, 20, 21
"""X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, of a self-signed certificate, and their kin."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""What OpenSSL makes of an answer in plaintext, depending on its version."""


@dataclass(frozen=True, slots=True)
class ConnectProblem:
    """Why a coordinator cannot be reached."""

    text: str
    is_final: bool
    """Whether trying again cannot help: something has to be changed."""


def probe_coordinator(endpoint: Endpoint, seconds: float = _PROBE_SECONDS) -> ConnectProblem | None:
    """Connect to a coordinator, and return the problem on the way; None: none found.

    Blocks for `seconds` at most, plus the time to resolve a name. Of several daemons, one that can
    be reached is enough.
    """
    address = endpoint.address
    if address.others:
        share = seconds / len(address.daemons)
        problems = []
        for one in address.daemons:
            if (found := probe_coordinator(replace(endpoint, address=one), share)) is None:
                return None
            problems.append(found)
        text = "; ".join(one.text for one in problems)
        return ConnectProblem(text, all(one.is_final for one in problems))
    at = f"the coordinator at {address.target} cannot be reached"
    until = time.monotonic() + seconds
    try:
        connected = socket.create_connection((address.host, address.port), seconds)
    except socket.gaierror as error:
        return ConnectProblem(
            f"{at}: the name {address.host!r} has no address ({error.strerror})", False
        )
    except ConnectionRefusedError:
        text = "nothing listens there; start one with `allhands serve`, or check host and port"
        return ConnectProblem(f"{at}: {text}", False)
    except TimeoutError:
        text = f"no answer within {seconds:g} s; is a firewall between?"
        return ConnectProblem(f"{at}: {text}", False)
    except OSError as error:
        return ConnectProblem(f"{at}: {error.strerror or error}", False)
    with connected:
        connected.settimeout(max(until - time.monotonic(), 0.1))
        if endpoint.tls_ca is None:
            return _probe_without_ca(at, connected)
        return _probe_with_ca(at, connected, endpoint)


def explain_unavailable(error: grpc.RpcError, endpoint: Endpoint) -> str:
    """Return why a call failed with UNAVAILABLE, as far as that can be found out; else empty."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return ""
    found = probe_coordinator(endpoint)
    return "" if found is None else found.text


def _probe_without_ca(prefix: str, sock: socket.socket) -> ConnectProblem | None:
    """Find out whether a coordinator called in plaintext requires TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed
    try:
        with context.wrap_socket(sock):
            pass
    except OSError:
        return None
    return ConnectProblem(
        f"{prefix}: it speaks TLS, and this side was given no authority: set ALLHANDS_TLS_CA=FILE "
        "(in Python also tls=) to the one that vouches for it",
        True,
    )


def _probe_with_ca(prefix: str, sock: socket.socket, endpoint: Endpoint) -> ConnectProblem | None:
    ours = f"ALLHANDS_TLS_CA={endpoint.tls_ca}"
    name = endpoint.tls_name or endpoint.address.host
    try:
        context = tls_context(endpoint)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(sock, server_hostname=name) as secure:
            return _await_greeting(prefix, secure, endpoint)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _NAME_MISMATCH:
            found = ", ".join(_read_certificate_names(endpoint)) or "no name"
            text = f"its certificate is for {found}, not for {name!r}: dial it by such a name"
        elif error.verify_code in _UNTRUSTED:
            text = f"its certificate is not vouched for by the authorities of this side ({ours})"
        else:
            text = f"its certificate is not valid: {error.verify_message}"
        return ConnectProblem(f"{prefix}: {text}", True)
    except TimeoutError:
        return ConnectProblem(f"{prefix}: it accepts connections, but does not answer", False)
    except ssl.SSLEOFError:
        return ConnectProblem(f"{prefix}: it closed the connection in the TLS handshake", False)
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            return ConnectProblem(
                f"{prefix}: it speaks no TLS, and this side wants TLS ({ours})", True
            )
        return ConnectProblem(f"{prefix}: the TLS handshake fails: {error.reason}", False)
    except OSError as error:
        return ConnectProblem(f"{prefix}: {error.strerror or error}", False)


def _await_greeting(
    prefix: str, secure: ssl.SSLSocket, endpoint: Endpoint
) -> ConnectProblem | None:
    """Find out whether a coordinator refuses this side's certificate.

    With TLS 1.3 that comes after the client's handshake; gRPC then closes without a word.
    """
    try:
        if secure.recv(1):
            return None  # the settings of HTTP/2
    except TimeoutError:
        return None
    except OSError:
        pass  # an alert
    cert = endpoint.tls_cert
    if cert is None:
        text = (
            "it wants a certificate of this side: set ALLHANDS_TLS_DIR=DIR, or ALLHANDS_TLS_CERT "
            "and ALLHANDS_TLS_KEY, as `allhands token init` says"
        )
    elif _has_expired(cert):
        text = (
            f"the certificate of this side ({cert}) has expired: renew it (`allhands token renew`)"
        )
    else:
        text = f"it does not trust the authority of this side's certificate ({cert})"
    return ConnectProblem(f"{prefix}: {text}", True)


def _has_expired(path: str) -> bool:
    from allhands_proto.issuing import is_expired  # which takes long to load

    return is_expired(Path(path).read_bytes())


def _read_certificate_names(endpoint: Endpoint) -> list[str]:
    """Return the names in the certificate of a coordinator that the authorities vouch for."""
    context = tls_context(endpoint)
    context.check_hostname = False
    address = (endpoint.address.host, endpoint.address.port)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, _PROBE_SECONDS) as connected,
        context.wrap_socket(connected) as secure,
    ):
        found: dict[str, Any] = secure.getpeercert() or {}
        return [name for _, name in found.get("subjectAltName", ())]
    return []


class ConnectAttempts:
    """Repeated attempts to reach a coordinator that may still be starting; for one caller.

    They go on until `deadline` (monotonic clock, s), unless the problem needs a change by the user.
    A warning is logged once, after `quiet` seconds of failure.
    """

    def __init__(self, deadline: float, quiet: float = QUIET_SECONDS) -> None:
        self._started = time.monotonic()
        self._deadline = deadline
        self._quiet = quiet
        self._has_warned = False
        self._last_probe = -math.inf
        self._problem: ConnectProblem | None = None

    def record_failure(
        self, error: AllhandsError, endpoint: Endpoint | None, is_guess: bool
    ) -> None:
        """Return if another attempt is to be made; may block for a second or two.

        Nothing has to be changed where the endpoint is a guess: the next may be right.

        Raises:
            CoordinatorUnavailable: no attempt is left, or none would help; says what is wrong.
            AllhandsError: the given one, which no look at the network explains.
        """
        now = time.monotonic()
        is_last = now + RETRY_SECONDS > self._deadline
        if endpoint is not None and (is_last or now - self._last_probe > _PROBE_INTERVAL):
            self._last_probe = now
            self._problem = probe_coordinator(
                endpoint, max(min(self._deadline - now, _PROBE_SECONDS), 0.1)
            )
        found = self._problem
        if found is not None and found.is_final and not is_guess:
            raise CoordinatorUnavailable(found.text) from error
        if is_last:
            if found is None:
                raise error
            passed = f"tried again for {now - self._started:.0f} s"
            raise CoordinatorUnavailable(f"{found.text}; {passed}") from error
        if not self._has_warned and now - self._started >= self._quiet:
            self._has_warned = True
            what = error if found is None else found.text
            logger.warning("%s; trying again for %.0f s", what, self._deadline - now)


def call_until_available(
    call: Callable[[], T], endpoint: Endpoint, deadline: float, quiet: float = QUIET_SECONDS
) -> T:
    """Repeat a call of a coordinator until it answers or the deadline passes.

    Raises:
        CoordinatorUnavailable: the deadline passed; the text says what is wrong on the way.
    """
    attempts = ConnectAttempts(deadline, quiet)
    while True:
        try:
            return call()
        except CoordinatorUnavailable as error:
            attempts.record_failure(error, endpoint, is_guess=False)
        time.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
