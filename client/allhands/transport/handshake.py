"""Mutual authentication of two workers of one world.

Each side shows an HMAC-SHA256 under the secret of the job's incarnation, over the hello and the
nonces of both sides: so a proof can neither be replayed nor be mirrored back to its maker.
"""

import hashlib
import hmac
import secrets

from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import peer_pb2
from allhands_proto.versions import PEERS, explain_mismatch, write_versions

VERSION = 1
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """Place of this worker among the workers of one run of a job."""

    job: str
    incarnation: str
    secret: bytes
    member: str
    rank: int
    world_size: int
    """One more than the highest rank there is."""

    def __repr__(self) -> str:
        return f"Identity({self.job!r}, rank {self.rank} of {self.world_size})"  # no secret


def make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


class HandshakeError(ValueError):
    """The peer is not the expected one; the text has the reason, never the secret."""


def make_hello(
    *, job: str, incarnation: str, member: str, rank: int, to_rank: int
) -> peer_pb2.Hello:
    hello = peer_pb2.Hello(
        version=VERSION,
        job=job,
        incarnation=incarnation,
        from_rank=rank,
        from_member=member,
        to_rank=to_rank,
        nonce=make_nonce(),
    )
    write_versions(hello, PEERS)
    return hello


def make_challenge(secret: bytes, hello: peer_pb2.Hello) -> peer_pb2.Challenge:
    """Return the acceptor's answer to a hello, with its proof."""
    nonce = make_nonce()
    challenge = peer_pb2.Challenge(nonce=nonce, proof=make_proof(secret, "accept", hello, nonce))
    write_versions(challenge, PEERS)
    return challenge


def check_challenge(secret: bytes, hello: peer_pb2.Hello, challenge: peer_pb2.Challenge) -> None:
    """Check the acceptor's answer to a hello.

    Raises:
        HandshakeError: no version in common, or a wrong proof.
    """
    here, there = f"rank {hello.from_rank}", f"rank {hello.to_rank}"
    if problem := explain_mismatch(challenge, here, there, PEERS):
        raise HandshakeError(problem)
    check_proof(secret, "accept", hello, challenge.nonce, challenge.proof)


def check_hello(
    hello: peer_pb2.Hello, *, job: str, incarnation: str, rank: int, world_size: int
) -> None:
    """Refuse a peer in the wrong place, before any secret is used.

    Raises:
        HandshakeError: wrong version, job, incarnation or rank.
    """
    if problem := explain_mismatch(hello, f"rank {rank}", f"rank {hello.from_rank}", PEERS):
        raise HandshakeError(problem)
    if hello.version != VERSION:
        raise HandshakeError(f"peer protocol {hello.version}, this worker speaks {VERSION}")
    if hello.job != job:
        raise HandshakeError(f"it belongs to job {hello.job!r}, this worker to {job!r}")
    if hello.incarnation != incarnation:
        raise HandshakeError(f"it belongs to another run of job {job!r}")
    if hello.to_rank != rank:
        raise HandshakeError(f"it looks for rank {hello.to_rank}, this is rank {rank}")
    if not 0 <= hello.from_rank < world_size or hello.from_rank == rank:
        raise HandshakeError(f"rank {hello.from_rank} is no peer in a world of {world_size}")
    if len(hello.nonce) != NONCE_BYTES:
        raise HandshakeError(f"nonce of {len(hello.nonce)} bytes instead of {NONCE_BYTES}")


def make_proof(secret: bytes, role: str, hello: peer_pb2.Hello, nonce: bytes) -> bytes:
    """Return the proof of `role` ("accept" or "dial"); `nonce` is the acceptor's."""
    # One field after the other with its length: no two conversations give the same text.
    fields = [
        role.encode(),
        hello.nonce,
        nonce,
        hello.job.encode(),
        hello.incarnation.encode(),
        hello.from_member.encode(),
        b"%d>%d" % (hello.from_rank, hello.to_rank),
    ]
    text = b"".join(len(field).to_bytes(4, "little") + field for field in fields)
    return hmac.new(secret, text, hashlib.sha256).digest()


def check_proof(
    secret: bytes, role: str, hello: peer_pb2.Hello, nonce: bytes, proof: bytes
) -> None:
    """Compare in constant time.

    Raises:
        HandshakeError: the proof is not that of somebody who holds the secret.
    """
    if len(nonce) != NONCE_BYTES:
        raise HandshakeError(f"nonce of {len(nonce)} bytes instead of {NONCE_BYTES}")
    if not hmac.compare_digest(make_proof(secret, role, hello, nonce), proof):
        raise HandshakeError("it does not hold the secret of this job")
