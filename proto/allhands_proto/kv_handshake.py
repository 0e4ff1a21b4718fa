"""Handshake of the key-value port without I/O, for both sides; see coordinator.proto.

    caller       preface, KvHello(nonce)
    coordinator  KvChallenge(nonce, proof)
    caller       KvProof(proof)
    coordinator  KvWelcome

Either side proves knowledge of the secret by an HMAC over its role and both nonces, so that the
secret itself stays off the connection.
"""

import hashlib
import hmac
import secrets
from typing import Literal

from allhands_proto.framing import PREFACE, MalformedFrame, encode_frame
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.versions import explain_mismatch, write_versions

NONCE_BYTES = 16

Role = Literal["coordinator", "caller"]

_UNAUTHENTICATED, _FAILED_PRECONDITION = 16, 9
"""gRPC's numbers of the statuses."""
_NO_PROOF = "this is no proof of the secret of its lines, which it tells to who has its token"


class HandshakeRefused(MalformedFrame):
    """Wrong proof of a caller, or no common version; `reply` is the frame that says so."""

    def __init__(self, text: str, code: int) -> None:
        """Take the reason, and gRPC's number of its status."""
        super().__init__(text)
        welcome = wire.KvWelcome(refused=wire.Refused(code=code, text=text))
        self.reply = encode_frame(welcome.SerializeToString())


class NoCommonVersion(Exception):
    """The coordinator speaks no version of the protocol that the caller speaks."""


class CallerHandshake:
    """The caller's side of one handshake: `start`, `answer`, `finish`, once each, in this order."""

    def __init__(self, secret: bytes, token_id: str = "") -> None:
        """Take the secret, and the id of the token that it was derived for."""
        self._secret = secret
        self._token_id = token_id
        self._nonce = new_nonce()

    def start(self) -> bytes:
        """Return the first bytes on the connection."""
        hello = wire.KvHello(nonce=self._nonce, token_id=self._token_id)
        write_versions(hello)
        return PREFACE + encode_frame(hello.SerializeToString())

    def answer(self, body: bytes) -> bytes:
        """Check the coordinator's proof in its challenge, and return the frame of the caller's.

        Raises:
            NoCommonVersion: the coordinator speaks only others.
            PermissionError: the coordinator does not know the secret.
            DecodeError: `body` is no challenge.
        """
        challenge = wire.KvChallenge.FromString(body)
        if problem := explain_mismatch(challenge, "this client", "the coordinator"):
            raise NoCommonVersion(problem)
        nonces = self._nonce, challenge.nonce
        if not is_proof(challenge.proof, self._secret, "coordinator", *nonces):
            raise PermissionError("somebody else listens there")
        proof = prove(self._secret, "caller", *nonces)
        return encode_frame(wire.KvProof(proof=proof).SerializeToString())

    def finish(self, body: bytes) -> wire.Refused | None:
        """Read the welcome; return the refusal in it, or None.

        Raises:
            DecodeError: `body` is no welcome.
        """
        welcome = wire.KvWelcome.FromString(body)
        return welcome.refused if welcome.HasField("refused") else None


class CoordinatorHandshake:
    """The coordinator's side of one handshake."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._preface = PREFACE
        self._nonces: tuple[bytes, bytes] | None = None  # the caller's, the coordinator's
        self._problem = ""
        """Why there is no common version; empty: there is one."""
        self.token_id = ""
        """Id of the caller's token; empty: the cluster's own."""
        self.is_complete = False
        """Whether the caller has authenticated."""

    def strip_preface(self, data: bytes) -> bytes:
        """Return the arriving bytes without the preface, which may arrive in pieces.

        Raises:
            MalformedFrame: the caller speaks another protocol.
        """
        begin = data[: len(self._preface)]
        if not self._preface.startswith(begin):
            raise MalformedFrame("what it says is not for this port")
        self._preface = self._preface[len(begin) :]
        return data[len(begin) :]

    def answer(self, body: bytes) -> bytes:
        """Return the frame that answers the caller's hello, or its proof.

        Raises:
            HandshakeRefused: a wrong proof, or no common version.
            MalformedFrame, DecodeError: neither hello nor proof.
        """
        if self._nonces is None:
            hello = wire.KvHello.FromString(body)
            self._problem = explain_mismatch(hello, "this coordinator", "the caller")
            if hello.token_id:
                self.token_id = hello.token_id
                self._secret = derive_secret(self._secret, hello.token_id)
            return self._answer_hello(hello.nonce)
        if self._problem:
            raise HandshakeRefused(self._problem, _FAILED_PRECONDITION)
        proof = wire.KvProof.FromString(body).proof
        if not is_proof(proof, self._secret, "caller", *self._nonces):
            raise HandshakeRefused(_NO_PROOF, _UNAUTHENTICATED)
        self.is_complete = True
        return encode_frame(wire.KvWelcome().SerializeToString())

    def _answer_hello(self, nonce: bytes) -> bytes:
        if len(nonce) != NONCE_BYTES:
            raise MalformedFrame(f"a nonce of {len(nonce)} bytes, not of {NONCE_BYTES}")
        self._nonces = nonces = nonce, new_nonce()
        proof = prove(self._secret, "coordinator", *nonces)
        challenge = wire.KvChallenge(nonce=nonces[1], proof=proof)
        write_versions(challenge)
        return encode_frame(challenge.SerializeToString())


def derive_secret(secret: bytes, token_id: str) -> bytes:
    """Return the secret for callers with a token; they cannot derive it for another one."""
    return hmac.digest(secret, b"token " + token_id.encode(), hashlib.sha256)


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: bytes, role: Role, caller_nonce: bytes, coordinator_nonce: bytes) -> bytes:
    """Return the proof of one role; the roles differ, so none can be reflected."""
    message = role.encode() + caller_nonce + coordinator_nonce
    return hmac.digest(secret, message, hashlib.sha256)


def is_proof(
    shown: bytes, secret: bytes, role: Role, caller_nonce: bytes, coordinator_nonce: bytes
) -> bool:
    return hmac.compare_digest(shown, prove(secret, role, caller_nonce, coordinator_nonce))
