"""Key-value connections byte by byte: authentication, order of calls, limits."""

import contextlib
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.framing import LARGEST_FRAME, PREFACE, FrameDecoder, encode_frame
from allhands_proto.kv_handshake import NONCE_BYTES, prove
from allhands_proto.v1 import coordinator_pb2
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1.coordinator_pb2 import (
    AppendRequest,
    CountRequest,
    GetRequest,
    SetRequest,
    WaitRequest,
)

_NONCE = bytes(range(NONCE_BYTES))
_UNAUTHENTICATED, _INVALID, _TOO_LATE, _UNAVAILABLE = 16, 3, 4, 14


class RawLine:
    """A key-value connection with bytes of the test alone."""

    def __init__(self, daemon: DaemonProcess) -> None:
        with Control(daemon.endpoint, job=None) as control:
            found = control._stub.DescribeCoordinator(
                coordinator_pb2.DescribeCoordinatorRequest(),
                metadata=control._channel_config.metadata,
            )
        self.secret = found.kv_secret
        self.socket = socket.create_connection(("127.0.0.1", found.kv_port), timeout=20)
        self.name = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self._cutter = FrameDecoder()
        self._bodies: Iterator[bytes] = iter(())
        self._replies: list[wire.Reply] = []

    def say(self, *calls: wire.Call) -> None:
        self.socket.sendall(encode_frame(wire.Calls(calls=calls).SerializeToString()))

    def greet(self) -> wire.KvWelcome:
        """Send the hello, read the server's proof, and send a proof."""
        return self.prove(prove(self.secret, "caller", _NONCE, self.challenge().nonce))

    def challenge(self) -> wire.KvChallenge:
        hello = wire.KvHello(nonce=_NONCE).SerializeToString()
        self.socket.sendall(PREFACE + encode_frame(hello))
        return wire.KvChallenge.FromString(self.body())

    def prove(self, proof: bytes) -> wire.KvWelcome:
        self.socket.sendall(encode_frame(wire.KvProof(proof=proof).SerializeToString()))
        return wire.KvWelcome.FromString(self.body())

    def hear(self, count: int) -> list[wire.Reply]:
        """Read so many replies."""
        while len(self._replies) < count:
            self._replies += wire.Replies.FromString(self.body()).replies
        found, self._replies = self._replies[:count], self._replies[count:]
        return found

    def is_closed(self) -> bool:
        """Read to the end."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(65536):
                pass
        return True

    def body(self) -> bytes:
        while (body := next(self._bodies, None)) is None:
            come = self.socket.recv(65536)
            assert come, "the line was closed"
            self._bodies = iter(list(self._cutter.feed(come)))
        return body


@pytest.fixture
def stranger(daemon: DaemonProcess) -> Iterator[RawLine]:
    """A line on which nothing has been said."""
    made = RawLine(daemon)
    yield made
    made.socket.close()


@pytest.fixture
def line(stranger: RawLine) -> RawLine:
    """An authenticated key-value connection."""
    assert not stranger.greet().HasField("refused")
    return stranger


def get(id: int, job: str, key: str, timeout: float = 30.0) -> wire.Call:
    return wire.Call(id=id, timeout=timeout, get=GetRequest(job=job, key=key, wait=True))


def put(id: int, job: str, key: str, value: bytes = b"") -> wire.Call:
    return wire.Call(id=id, set=SetRequest(job=job, key=key, value=value))


def refusals(daemon: DaemonProcess, line: RawLine) -> list[str]:
    """Wait for the log's entry on a connection; return the whole log."""
    poll_until(
        lambda: any(f"refused a line from {line.name}: " in said for said in daemon.log_lines)
    )
    return [said for said in daemon.log_lines if line.name in said]


# ---------------------------------------------------------------- who is let in


@pytest.mark.parametrize("proof", ["nothing", "noise", "the other side's own", "another secret's"])
def test_who_does_not_know_the_secret_is_refused(
    daemon: DaemonProcess, stranger: RawLine, proof: str
) -> None:
    challenge = stranger.challenge()
    refused = stranger.prove(
        {
            "nothing": b"",
            "noise": bytes(32),
            "the other side's own": challenge.proof,
            "another secret's": prove(bytes(32), "caller", _NONCE, challenge.nonce),
        }[proof]
    ).refused
    assert refused.code == _UNAUTHENTICATED
    assert stranger.is_closed()
    [said] = refusals(daemon, stranger)
    assert refused.text in said


def test_a_proof_cannot_be_used_again(daemon: DaemonProcess, stranger: RawLine) -> None:
    proof = prove(stranger.secret, "caller", _NONCE, stranger.challenge().nonce)
    another = RawLine(daemon)
    another.challenge()
    assert another.prove(proof).HasField("refused")
    another.socket.close()
    assert not stranger.prove(proof).HasField("refused")


def test_a_coordinator_proves_that_it_is_the_one(stranger: RawLine) -> None:
    challenge = stranger.challenge()
    assert challenge.proof == prove(stranger.secret, "coordinator", _NONCE, challenge.nonce)


def test_calls_in_the_wake_of_a_wrong_proof_are_not_carried_out(
    stranger: RawLine, control: Control, job_name: str
) -> None:
    calls = wire.Calls(calls=[put(1, job_name, "key")]).SerializeToString()
    hello = wire.KvHello(nonce=_NONCE).SerializeToString()
    proof = wire.KvProof(proof=bytes(32)).SerializeToString()
    stranger.socket.sendall(PREFACE + b"".join(map(encode_frame, (hello, proof, calls))))
    assert stranger.is_closed()
    assert control.count() == 0


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not for this port"),
        (b"\x00\xff" * 500, "not for this port"),
        (PREFACE + b"\xff\xff\xff\xff", "4,294,967,295 bytes"),
        (PREFACE + (257).to_bytes(4, "big"), "257 bytes"),  # no hello is so long
        (PREFACE + encode_frame(b"\xff" * 100), ""),
        (
            PREFACE + encode_frame(wire.KvHello(nonce=b"short").SerializeToString()),
            "nonce of 5 bytes",
        ),
    ],
    ids=["http", "noise", "huge frame", "long hello", "no message", "short nonce"],
)
def test_garbage_is_refused_with_one_line_in_the_log(
    daemon: DaemonProcess, stranger: RawLine, garbage: bytes, why: str
) -> None:
    stranger.socket.sendall(garbage)
    assert stranger.is_closed()
    [said] = refusals(daemon, stranger)
    assert "WARNING" in said
    assert why in said
    assert "no hello within" not in said


def test_a_frame_that_is_too_large_is_refused_by_its_length(
    daemon: DaemonProcess, line: RawLine
) -> None:
    line.socket.sendall((LARGEST_FRAME + 1).to_bytes(4, "big"))
    assert line.is_closed()
    [said] = refusals(daemon, line)
    assert "8,388,609 bytes" in said


def test_who_connects_and_says_nothing_is_dropped(daemon: DaemonProcess, stranger: RawLine) -> None:
    stranger.socket.sendall(PREFACE[:5])
    assert stranger.is_closed()
    [said] = refusals(daemon, stranger)
    assert re.search(r"no hello within \d", said)


def test_a_hello_may_come_byte_by_byte(stranger: RawLine) -> None:
    hello = wire.KvHello(nonce=_NONCE).SerializeToString()
    for byte in PREFACE + encode_frame(hello):
        stranger.socket.sendall(bytes([byte]))
    challenge = wire.KvChallenge.FromString(stranger.body())
    proof = prove(stranger.secret, "caller", _NONCE, challenge.nonce)
    assert not stranger.prove(proof).HasField("refused")


# ---------------------------------------------------------------- calls


def test_calls_of_a_line_are_carried_out_in_their_order(line: RawLine, job_name: str) -> None:
    letters = [bytes([65 + one % 26]) for one in range(3000)]  # more than fits into a turn
    appends = [
        wire.Call(id=id, append=AppendRequest(job=job_name, key="k", value=letter))
        for id, letter in enumerate(letters)
    ]
    line.say(*appends[:2000])
    line.say(*appends[2000:], get(5000, job_name, "k"))
    replies = line.hear(3001)
    assert [reply.id for reply in replies] == [*range(3000), 5000]
    assert [reply.append.length for reply in replies[:-1]] == [*range(1, 3001)]
    assert replies[-1].get.value == b"".join(letters)


def test_a_wait_does_not_hold_up_the_calls_behind_it(line: RawLine, job_name: str) -> None:
    line.say(get(1, job_name, "late"), put(2, job_name, "other"))
    assert [reply.id for reply in line.hear(1)] == [2]
    line.say(put(3, job_name, "late", b"here"))
    first, second = line.hear(2)
    assert (first.id, second.id, second.get.value) == (3, 1, b"here")


def test_a_key_wakes_who_waits_on_another_line(
    line: RawLine, control: Control, job_name: str
) -> None:
    line.say(get(1, job_name, "late"))
    control.put("late", b"here")
    assert line.hear(1)[0].get.value == b"here"


def test_a_wait_is_refused_before_its_time_is_over_and_names_the_keys(
    line: RawLine, job_name: str
) -> None:
    line.say(wire.Call(id=7, timeout=0.2, wait=WaitRequest(job=job_name, keys=["b", "a"])))
    [reply] = line.hear(1)
    assert (reply.id, reply.refused.code) == (7, _TOO_LATE)
    assert reply.refused.text == f"nobody has set 'a', 'b' of job {job_name} (2 of 2 keys)"


def test_a_wait_without_a_timeout_lasts(line: RawLine, control: Control, job_name: str) -> None:
    line.say(get(1, job_name, "late", timeout=0), get(2, job_name, "later", timeout=0.1))
    assert line.hear(1)[0].id == 2
    control.put("late", b"")
    assert line.hear(1)[0].id == 1


def test_what_is_withdrawn_is_not_answered(line: RawLine, job_name: str) -> None:
    line.say(get(1, job_name, "late"), wire.Call(id=1, cancel=wire.Cancel()))
    line.say(put(2, job_name, "late"), get(3, job_name, "late"))
    assert [reply.id for reply in line.hear(2)] == [2, 3]


def test_withdrawing_what_is_over_changes_nothing(line: RawLine, job_name: str) -> None:
    line.say(put(1, job_name, "k"), wire.Call(id=1, cancel=wire.Cancel()), put(2, job_name, "k"))
    assert [reply.id for reply in line.hear(2)] == [1, 2]


def test_a_line_that_closes_withdraws_its_waits(
    line: RawLine, control: Control, job_name: str
) -> None:
    line.say(get(1, job_name, "never"))

    def is_known() -> bool:
        return job_name in [job.job for job in control.jobs()]

    poll_until(is_known)
    line.socket.close()
    poll_until(lambda: not is_known())  # a job in which nobody waits, and that holds nothing


@pytest.mark.parametrize(
    "call",
    [
        wire.Call(id=1),
        wire.Call(id=1, timeout=-1, count=CountRequest(job="j")),
        wire.Call(id=1, timeout=float("nan"), count=CountRequest(job="j")),
        wire.Call(id=1, set=SetRequest(job="j", key="")),
        wire.Call(id=1, set=SetRequest(job="no such name", key="k")),
    ],
    ids=["no call", "negative", "no number", "no key", "no job"],
)
def test_nonsense_is_refused_and_the_line_goes_on(
    line: RawLine, job_name: str, call: wire.Call
) -> None:
    line.say(call, put(2, job_name, "k"))
    first, second = line.hear(2)
    assert (first.id, first.refused.code) == (1, _INVALID)
    assert not second.HasField("refused")


def test_an_id_that_waits_cannot_be_used_again(line: RawLine, job_name: str) -> None:
    line.say(get(1, job_name, "late"), get(1, job_name, "late"))
    assert line.hear(1)[0].refused.code == _INVALID
    line.say(put(2, job_name, "late"))
    assert [reply.id for reply in line.hear(2)] == [2, 1]


def test_a_timeout_beyond_all_clocks_is_a_long_one(line: RawLine, job_name: str) -> None:
    line.say(get(1, job_name, "late", timeout=1e300), get(2, job_name, "l", timeout=float("inf")))
    line.say(put(3, job_name, "late"))
    assert [reply.id for reply in line.hear(2)] == [3, 1]


def test_a_peer_that_takes_nothing_in_costs_no_more_than_its_keys(
    daemon: DaemonProcess, line: RawLine, control: Control, job_name: str
) -> None:
    value = b"x" * (1 << 20)
    control.put("large", value)
    before = _resident(daemon)
    line.say(*(get(id, job_name, "large") for id in range(200)))
    line.say(*(get(id, job_name, "late") for id in range(200, 400)))
    control.put("late", value)  # answers them all at once
    for _ in range(50):
        assert control.get("large") == value  # the others are served
    assert _resident(daemon) - before < 100 << 20  # and not 400 MiB
    replies = line.hear(400)
    assert sorted(reply.id for reply in replies) == [*range(400)]
    assert all(reply.get.value == value for reply in replies)


def _resident(daemon: DaemonProcess) -> int:
    pages = Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


# ---------------------------------------------------------------- the end


def test_who_waits_hears_that_the_coordinator_goes_down(tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        line = RawLine(daemon)
        line.greet()
        line.say(get(1, "j", "never"), put(2, "j", "k"))
        assert line.hear(1)[0].id == 2
        daemon.process.send_signal(signal.SIGTERM)
        assert line.hear(1)[0].refused.code == _UNAVAILABLE
        assert line.is_closed()
        line.socket.close()
        assert daemon.process.wait(10) == 0


async def test_a_coordinator_tells_port_and_secret_only_to_who_has_the_token(
    call_at: Callable[..., Any], daemon: DaemonProcess
) -> None:
    target = f"127.0.0.1:{daemon.notice.port}"
    request = coordinator_pb2.DescribeCoordinatorRequest()
    known = await call_at(target, daemon.notice.token).call("DescribeCoordinator", request)
    assert known.kv_port not in (0, daemon.notice.port)
    assert len(known.kv_secret) == 32
    error = await call_at(target, None).refused("DescribeCoordinator", request)
    assert error.code().value[0] == _UNAUTHENTICATED


def test_a_call_that_cannot_be_decoded_is_refused_and_the_line_goes_on(
    daemon: DaemonProcess, line: RawLine, job_name: str
) -> None:
    name = job_name.encode()
    request = b"\x0a" + bytes([len(name)]) + name + b"\x12\x02\xff\xfe"  # a key that is no UTF-8
    garbled = b"\x08\x07\x1a" + bytes([len(request)]) + request
    calls = [put(1, job_name, "k").SerializeToString(), garbled, get(2, job_name, "k")]
    encoded = [one if isinstance(one, bytes) else one.SerializeToString() for one in calls]
    line.socket.sendall(encode_frame(wire.EncodedCalls(calls=encoded).SerializeToString()))
    replies = {reply.id: reply for reply in line.hear(3)}
    assert replies[7].refused.code == _INVALID
    assert not replies[1].HasField("refused")
    assert not replies[2].HasField("refused")
    [said] = refusals(daemon, line)
    assert "cannot be decoded" in said
