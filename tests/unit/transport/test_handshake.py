"""Workers prove their identity; strangers cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allhands.transport.handshake import (
    NONCE_BYTES,
    HandshakeError,
    check_challenge,
    check_hello,
    check_proof,
    make_challenge,
    make_hello,
    make_nonce,
    make_proof,
)
from allhands_proto.v1.peer_pb2 import Hello

SECRET = b"s" * 32
NONCE = b"n" * NONCE_BYTES


def greeting(**change: object) -> Hello:
    """The hello of rank 2 to rank 1, with some fields changed."""
    said = make_hello(job="j", incarnation="i", member="m", rank=2, to_rank=1)
    for name, value in change.items():
        setattr(said, name, value)
    return said


def check(said: Hello) -> None:
    check_hello(said, job="j", incarnation="i", rank=1, world_size=3)


def test_the_hello_of_a_peer_is_accepted() -> None:
    check(greeting())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "peer protocol 2, this worker speaks 1"),
        ({"max_version": 0}, "rank 1 speaks version 7, rank 2 version 1; rank 2 is older"),
        ({"min_version": 8, "max_version": 9}, "rank 2 versions 8 to 9; rank 1 is older"),
        ({"job": "k"}, "belongs to job 'k', this worker to 'j'"),
        ({"incarnation": "h"}, "another run of job 'j'"),
        ({"to_rank": 0}, "looks for rank 0, this is rank 1"),
        ({"from_rank": 3}, "rank 3 is no peer in a world of 3"),
        ({"from_rank": -1}, "rank -1 is no peer"),
        ({"from_rank": 1}, "rank 1 is no peer"),
        ({"nonce": b""}, "nonce of 0 bytes instead of 16"),
        ({"nonce": b"n" * 17}, "nonce of 17 bytes"),
    ],
)
def test_who_is_in_the_wrong_place_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(HandshakeError, match=reason):
        check(greeting(**change))


def test_an_empty_hello_is_refused() -> None:
    with pytest.raises(HandshakeError):
        check(Hello())


def test_the_acceptor_of_another_version_is_refused() -> None:
    said = greeting()
    challenge = make_challenge(SECRET, said)
    check_challenge(SECRET, said, challenge)
    challenge.max_version = 0
    with pytest.raises(HandshakeError, match="rank 1 version 1; rank 1 is older"):
        check_challenge(SECRET, said, challenge)


@pytest.mark.parametrize("role", ["accept", "dial"])
def test_the_proof_of_who_holds_the_secret_is_accepted(role: str) -> None:
    said = greeting()
    check_proof(SECRET, role, said, NONCE, make_proof(SECRET, role, said, NONCE))


@pytest.mark.parametrize(
    "change",
    [
        {"job": "k"},
        {"incarnation": "h"},
        {"from_member": "n"},
        {"from_rank": 0},
        {"to_rank": 0},
        {"nonce": b"x" * NONCE_BYTES},
        {"from_member": "", "job": "jm"},  # the same bytes, had they been strung together
    ],
)
def test_a_proof_holds_for_one_hello_only(change: dict[str, object]) -> None:
    said = greeting()
    proof = make_proof(SECRET, "dial", said, NONCE)
    for name, value in change.items():
        setattr(said, name, value)
    with pytest.raises(HandshakeError, match="does not hold the secret"):
        check_proof(SECRET, "dial", said, NONCE, proof)


def test_a_proof_is_not_for_the_other_role_nor_for_another_challenge() -> None:
    said = greeting()
    proof = make_proof(SECRET, "accept", said, NONCE)
    with pytest.raises(HandshakeError):
        check_proof(SECRET, "dial", said, NONCE, proof)  # mirrored back to its maker
    with pytest.raises(HandshakeError):
        check_proof(SECRET, "accept", said, b"m" * NONCE_BYTES, proof)  # replayed


def test_another_secret_proves_nothing_and_none_is_told() -> None:
    said = greeting()
    proof = make_proof(b"t" * 32, "dial", said, NONCE)
    with pytest.raises(HandshakeError) as caught:
        check_proof(SECRET, "dial", said, NONCE, proof)
    assert SECRET.decode() not in str(caught.value)


@pytest.mark.parametrize("nonce", [b"", b"n" * (NONCE_BYTES - 1)])
def test_a_short_challenge_is_refused_even_with_a_good_proof(nonce: bytes) -> None:
    said = greeting()
    with pytest.raises(HandshakeError, match="nonce of"):
        check_proof(SECRET, "accept", said, nonce, make_proof(SECRET, "accept", said, nonce))


@given(st.binary(max_size=64))
def test_random_bytes_are_no_proof(proof: bytes) -> None:
    with pytest.raises(HandshakeError):
        check_proof(SECRET, "dial", greeting(), NONCE, proof)


def test_nonces_are_new_each_time() -> None:
    assert len({make_nonce() for _ in range(100)} | {greeting().nonce for _ in range(100)}) == 200
