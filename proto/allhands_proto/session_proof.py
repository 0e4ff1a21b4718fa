"""Proof by which a member resumes its session: knowledge of the world's secret."""

import hashlib
import hmac


def prove_membership(secret: bytes, incarnation: str, member_id: str) -> bytes:
    """Return the HMAC-SHA256 of a member's identity under the secret of its world."""
    text = f"resume\n{incarnation}\n{member_id}".encode()
    return hmac.digest(secret, text, hashlib.sha256)


def is_proof(proof: bytes, secret: bytes, incarnation: str, member_id: str) -> bool:
    """Whether a proof shows knowledge of the secret."""
    return hmac.compare_digest(proof, prove_membership(secret, incarnation, member_id))
