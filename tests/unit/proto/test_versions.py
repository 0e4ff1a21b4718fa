"""Versions of the protocol in first messages."""

import pytest
from google.protobuf.message import Message

from allhands_proto import versions
from allhands_proto.kv_handshake import (
    CallerHandshake,
    CoordinatorHandshake,
    HandshakeRefused,
    NoCommonVersion,
)
from allhands_proto.v1 import coordinator_pb2, peer_pb2
from allhands_proto.versions import Versions, explain_mismatch, read_versions, write_versions

_OWN = Versions(3, 5)


@pytest.fixture(autouse=True)
def other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "OWN", _OWN)


def say(oldest: int, newest: int) -> peer_pb2.Hello:
    return peer_pb2.Hello(min_version=oldest, max_version=newest)


@pytest.mark.parametrize(("oldest", "newest"), [(3, 3), (1, 3), (5, 9), (4, 4), (1, 9)])
def test_ranges_that_overlap_have_a_version_in_common(oldest: int, newest: int) -> None:
    assert explain_mismatch(say(oldest, newest), "here", "there") == ""


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (say(1, 2), "here speaks versions 3 to 5, there versions 1 to 2; there is older"),
        (say(6, 7), "here speaks versions 3 to 5, there versions 6 to 7; here is older"),
        (say(0, 0), "here speaks versions 3 to 5, there version 1; there is older"),
    ],
)
def test_a_mismatch_names_both_sides_and_the_older(said: peer_pb2.Hello, text: str) -> None:
    told = explain_mismatch(said, "here", "there")
    assert told == f"no version of the protocol in common: {text}: upgrade allhands there"


@pytest.mark.parametrize(
    "kind",
    [
        coordinator_pb2.Join,
        coordinator_pb2.Resume,
        coordinator_pb2.Joined,
        coordinator_pb2.Resumed,
        coordinator_pb2.DescribeCoordinatorRequest,
        coordinator_pb2.CoordinatorDescription,
        coordinator_pb2.KvHello,
        coordinator_pb2.KvChallenge,
        peer_pb2.Hello,
        peer_pb2.Challenge,
    ],
)
def test_each_first_message_has_the_versions(kind: type[Message]) -> None:
    message = kind()
    assert read_versions(message) == Versions(1, 1)
    write_versions(message)
    assert read_versions(kind.FromString(message.SerializeToString())) == _OWN


def shake_hands(caller: Versions, coordinator: Versions, patch: pytest.MonkeyPatch) -> None:
    """Run both sides of the handshake of the key-value port."""

    def as_side(side: Versions) -> None:
        patch.setattr(versions, "OWN", side)

    one, other = CallerHandshake(b"secret"), CoordinatorHandshake(b"secret")
    as_side(caller)
    hello = other.strip_preface(one.start())[4:]
    as_side(coordinator)
    challenge = other.answer(hello)[4:]
    as_side(caller)
    proof = one.answer(challenge)[4:]
    as_side(coordinator)
    assert one.finish(other.answer(proof)[4:]) is None


def test_both_sides_of_the_key_value_port_compare_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    shake_hands(Versions(1, 3), Versions(3, 4), monkeypatch)
    with pytest.raises(NoCommonVersion, match="this client is older"):
        shake_hands(Versions(1, 2), Versions(3, 4), monkeypatch)
    monkeypatch.setattr(versions, "OWN", Versions(3, 4))
    handshake = CoordinatorHandshake(b"secret")
    hello = coordinator_pb2.KvHello(nonce=bytes(16), min_version=1, max_version=2)
    handshake.answer(hello.SerializeToString())
    proof = coordinator_pb2.KvProof(proof=b"").SerializeToString()
    with pytest.raises(HandshakeRefused, match="the caller is older") as refused:
        handshake.answer(proof)
    welcome = coordinator_pb2.KvWelcome.FromString(refused.value.reply[4:])
    assert (welcome.refused.code, not handshake.is_complete) == (9, True)
