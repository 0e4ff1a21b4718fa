"""Mutual proof of the key-value port's secret, see kv.proto."""

import hashlib
import hmac
import secrets
from typing import Literal

NONCE_BYTES = 16

Role = Literal["coordinator", "caller"]


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
