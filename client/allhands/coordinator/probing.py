"""Diagnosis of an unreachable coordinator.

gRPC has one status for a dead server, a missing or wrong certificate authority, and plaintext where
TLS is required. To distinguish them a new connection is made, on which no user data is sent.
"""

import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from allhands.coordinator.dialling import FailedAttempt, NoConnection, connect_to_any
from allhands.coordinator.endpoint import Address, Endpoint, tls_context
from allhands.escapes import escape_line
from allhands_proto.quick_dataclass import dataclass

PROBE_SECONDS = 2.0
_LAST_PROBE_SECONDS = 0.5
"""After the deadline of a call."""
_START = "start one with `allhands serve`, or check host and port"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of HTTP/2 begins: with this text and its settings, which are the usual ones."""
_HTTP2_HEADER = 9
_HTTP2_SETTINGS = b"\x04"
"""Type of the first frame of a server."""
_SHOWN_BYTES = 64
_TLS_BYTES = 16 << 10
"""Read at once of a handshake."""
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


def probe_coordinator(endpoint: Endpoint, seconds: float = PROBE_SECONDS) -> ConnectProblem | None:
    """Connect to a coordinator, and return the problem on the way; None: none found.

    Blocks for `seconds` at most, plus the time to resolve a name. Of several daemons or addresses,
    one that can be reached is enough; else the problem names each.
    """
    daemons = [replace(endpoint, address=one) for one in endpoint.address.daemons]
    if len(daemons) == 1:
        return _probe_daemon(endpoint, seconds)
    with ThreadPoolExecutor(len(daemons)) as pool:
        problems = list(pool.map(partial(_probe_daemon, seconds=seconds), daemons))
    found = [one for one in problems if one is not None]
    if len(found) < len(problems):
        return None
    text = "; ".join(one.text for one in found)
    return ConnectProblem(text, all(one.is_final for one in found))


def _probe_daemon(endpoint: Endpoint, seconds: float) -> ConnectProblem | None:
    address = endpoint.address
    at = f"the coordinator at {address.target}"
    until = time.monotonic() + seconds
    try:
        connected, _ = connect_to_any([(address.host, address.port)], seconds)
    except NoConnection as error:
        return ConnectProblem(_explain_no_connection(address, error.attempts, seconds), False)
    with connected:
        connected.settimeout(max(until - time.monotonic(), 0.1))
        host = connected.getpeername()[0]
        at += f" cannot be reached{'' if host == address.host else f' ({host})'}"
        if endpoint.tls_ca is not None:
            return _probe_with_ca(at, connected, endpoint)
        if (found := _probe_without_ca(at, connected, seconds)) is not None:
            return found
    return _probe_protocol(at, address, max(until - time.monotonic(), 0.1))


def _explain_no_connection(
    address: Address, attempts: Sequence[FailedAttempt], seconds: float
) -> str:
    """Say what each address of a host said, and what to do."""
    at = f"the coordinator at {address.target} cannot be reached"
    reasons, advice = [], []
    for one in attempts:
        match one.code:
            case None:
                why = one.reason.removeprefix("no address: ")
                reasons.append(f"the name {address.host!r} has no address ({why})")
                continue
            case errno.ECONNREFUSED:
                reason, what = "nothing listens there", _START
            case errno.ETIMEDOUT:
                reason, what = f"no answer within {seconds:g} s", "is a firewall between?"
            case _:
                reason, what = one.reason, ""
        known = one.where in (address.target, address.host)
        reasons.append(reason if known and len(attempts) == 1 else f"{one.where}: {reason}")
        if what and what not in advice:
            advice.append(what)
    return "; ".join([f"{at}: {', '.join(reasons)}", *advice])


def explain_failure(code: grpc.StatusCode, endpoint: Endpoint, *, has_answered: bool = True) -> str:
    """Return why a coordinator was unavailable, or silent from the start until a deadline.

    Empty: as far as can be found out, for none of its addresses' sake.
    """
    if code is grpc.StatusCode.UNAVAILABLE:
        found = probe_coordinator(endpoint)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and not has_answered:
        found = probe_coordinator(endpoint, _LAST_PROBE_SECONDS)
    else:
        return ""
    return "" if found is None else found.text


def _probe_without_ca(prefix: str, sock: socket.socket, seconds: float) -> ConnectProblem | None:
    """Find out whether a coordinator called in plaintext requires TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and nothing believed
    try:
        _shake_hands(context, sock, time.monotonic() + seconds)
    except TimeoutError:
        text = f"it accepts connections, and has not answered within {seconds:g} s"
        return ConnectProblem(f"{prefix}: {text}", False)
    except OSError:
        return None
    return ConnectProblem(
        f"{prefix}: it speaks TLS, and this side was given no authority: set ALLHANDS_TLS_CA=FILE "
        "(in Python also tls=) to the one that vouches for it",
        True,
    )


def _shake_hands(context: ssl.SSLContext, sock: socket.socket, until: float) -> None:
    """Make the TLS handshake of a client, on a connection that stays open, until `until`.

    That is on the monotonic clock. Wrapping the socket would take the connection, and leave it
    unclosed where the other side ends it just then.

    Raises:
        OSError: the other side does not speak TLS, has gone away, or does not answer in time.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            client.do_handshake()
            sock.sendall(outgoing.read())
            return
        except ssl.SSLWantReadError:
            sock.settimeout(max(until - time.monotonic(), 0.001))
            sock.sendall(outgoing.read())
        if not (came := sock.recv(_TLS_BYTES)):
            raise ConnectionResetError("it closed the connection within the handshake")
        incoming.write(came)


def _probe_protocol(prefix: str, address: Address, seconds: float) -> ConnectProblem | None:
    """Find out whether gRPC is spoken in plaintext, by its first bytes."""
    came = b""
    try:
        connected, _ = connect_to_any([(address.host, address.port)], seconds)
        with connected:
            connected.settimeout(seconds)
            connected.sendall(_HTTP2_PREFACE)
            while len(came) < _HTTP2_HEADER and (more := connected.recv(_SHOWN_BYTES)):
                came += more
    except OSError:
        if not came:
            return None  # it may have too much to do, or end
    if came[3:4] == _HTTP2_SETTINGS:
        return None
    if came:
        shown = escape_line(came[:_SHOWN_BYTES].decode("ascii", "replace").strip())
        text = (
            f"something else than a coordinator listens there, which says {shown!r}; check host "
            "and port"
        )
    else:
        text = (
            "what listens there closes the connection without a word: it is no coordinator (check "
            "host and port), or one with as many connections as it takes (try again)"
        )
    return ConnectProblem(f"{prefix}: {text}", False)


def _probe_with_ca(prefix: str, sock: socket.socket, endpoint: Endpoint) -> ConnectProblem | None:
    ours = f"ALLHANDS_TLS_CA={endpoint.tls_ca}"
    name = endpoint.tls_name or endpoint.address.host
    try:
        context = tls_context(endpoint)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(sock, server_hostname=name) as secure:
            if secure.selected_alpn_protocol() != "h2":
                text = "something else than a coordinator speaks TLS there; check host and port"
                return ConnectProblem(f"{prefix}: {text}", False)
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
        socket.create_connection(address, PROBE_SECONDS) as connected,
        context.wrap_socket(connected) as secure,
    ):
        found: dict[str, Any] = secure.getpeercert() or {}
        return [name for _, name in found.get("subjectAltName", ())]
    return []
