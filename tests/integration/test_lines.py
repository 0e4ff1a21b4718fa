"""Clients on key-value connections: threads, tasks, interrupts, forks, lost coordinators."""

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from allhands import errors
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.coordinator.kv.blocking import KvConnectionPool
from allhands.coordinator.kv.calls import KvCallError, KvPort
from allhands.stores import AsyncCoordinatorStore
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.framing import HEADER, PREFACE, encode_frame
from allhands_proto.kv_handshake import prove
from allhands_proto.kv_verbs import find_verb
from allhands_proto.v1 import coordinator_pb2 as wire
from programs import control as programs
from support.ranks.processes import Cluster

_SECRET = bytes(32)
_LONG = 100.0
"""Seconds that no test takes: a call that lasts so long was not woken."""


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon for the test to kill."""
    runtime = tmp_path / "own"
    runtime.mkdir(mode=0o700)
    with run_daemon(runtime) as running:
        yield running


def on_lines(control: Control) -> Control:
    """Disable the client's gRPC, which leaves key-value connections for calls."""
    control._stub = None
    return control


def begin(call: Callable[[], object]) -> "Future[object]":
    """Run a call on a new thread."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def waits_for(control: Control, count: int) -> Callable[[], bool]:
    """Return a claim: `count` connections are in use."""
    return lambda: len(control._kv_pool._connections) - len(control._kv_pool._idle) >= count


# ---------------------------------------------------------------- threads


def test_a_wait_of_one_thread_does_not_hold_up_another(control: Control) -> None:
    on_lines(control)
    waiting = begin(lambda: control.get("late", wait=True, timeout=_LONG))
    poll_until(waits_for(control, 1))
    control.put("other", b"")
    assert not waiting.done()
    control.put("late", b"here")
    assert waiting.result(10) == b"here"


def test_one_thread_uses_one_line(control: Control) -> None:
    on_lines(control)
    for number in range(20):
        control.put("key", str(number))
    assert len(control._kv_pool._connections) == 1


def test_more_threads_than_there_may_be_lines_are_all_answered(control: Control) -> None:
    with ThreadPoolExecutor(50) as pool:
        waiting = [
            pool.submit(control.get, f"late {one}", wait=True, timeout=_LONG) for one in range(50)
        ]
        poll_until(waits_for(control, 32))
        for one in range(50):
            control.put(f"late {one}", str(one))  # by gRPC: no line is free
        assert [future.result(10) for future in waiting] == [b"%d" % one for one in range(50)]
    assert len(control._kv_pool._connections) == 32


def test_a_large_value_goes_and_comes_on_a_line(control: Control) -> None:
    on_lines(control)
    value = os.urandom(4 << 20)
    control.put("large", value)
    assert control.get("large") == value


def test_a_client_that_nobody_holds_any_more_leaves_no_socket(
    daemon: DaemonProcess, job_name: str
) -> None:
    control = Control(daemon.endpoint, job=job_name)
    control.put("key", b"")
    [line] = control._kv_pool._connections
    gc.collect()  # what other tests have left is not this one's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del control
        gc.collect()
    assert line._socket.fileno() == -1


# ---------------------------------------------------------------- interrupts and forks


def test_an_interrupt_ends_a_wait_and_the_next_call_is_right(cluster: Cluster) -> None:
    process = cluster.start(programs.wait_for_a_key, ALLHANDS_URL=cluster.daemon() + "/job")
    process.expect("waiting")
    os.kill(process.child.pid, signal.SIGINT)
    assert process.expect("interrupted")["n"] == 2
    assert process.ended() == 0


def test_a_forked_child_has_lines_of_its_own(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    process = cluster.start(programs.count_in_parent_and_child, ALLHANDS_URL=url)
    assert process.expect("parent")["is_right"]
    assert process.expect("child")["status"] == 0


# ---------------------------------------------------------------- coordinators that vanish


def test_a_daemon_that_is_killed_ends_its_calls_at_once(own_daemon: DaemonProcess) -> None:
    with Control(own_daemon.endpoint, job="j", timeout=_LONG) as control:
        control.put("key", b"")
        on_lines(control)
        waiting = begin(lambda: control.get("never", wait=True))
        poll_until(waits_for(control, 1))
        own_daemon.process.kill()
        target = own_daemon.endpoint.address.target
        with pytest.raises(errors.CoordinatorUnavailable, match=rf"{target}.*get key 'never'"):
            waiting.result(10)


def test_a_daemon_that_is_killed_between_calls_is_unavailable(own_daemon: DaemonProcess) -> None:
    with Control(own_daemon.endpoint, job="j", timeout=_LONG) as control:
        control.put("key", b"")
        own_daemon.process.kill()
        own_daemon.process.wait()
        with pytest.raises(errors.CoordinatorUnavailable):
            control.put("key", b"")


def test_a_daemon_in_the_place_of_another_is_found_with_its_new_port(
    tmp_path: Path, own_daemon: DaemonProcess
) -> None:
    token = tmp_path / "token"
    token.write_text(str(own_daemon.notice.token))
    (tmp_path / "next").mkdir(mode=0o700)
    listen = ("--listen", own_daemon.endpoint.address.target, "--token-file", str(token))
    with Control(own_daemon.endpoint, job="j", timeout=_LONG) as control:
        control.put("key", b"first")
        own_daemon.process.kill()
        own_daemon.process.wait()
        with run_daemon(tmp_path / "next", *listen):
            control.put("key", b"second")
            assert on_lines(control).get("key") == b"second"


def test_a_daemon_that_does_not_answer_costs_no_more_than_the_timeout(
    own_daemon: DaemonProcess,
) -> None:
    with Control(own_daemon.endpoint, job="j", timeout=_LONG) as control:
        control.put("key", b"")
        on_lines(control)
        own_daemon.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(errors.StoreTimeout, match="timeout: get key 'key' of job 'j'"):
                control.get("key", timeout=0.05)
        finally:
            own_daemon.process.send_signal(signal.SIGCONT)
        with pytest.raises(errors.NotFound):  # and not the answer to the call before
            control.get("other")


def test_closing_ends_the_calls_of_other_threads(daemon: DaemonProcess, job_name: str) -> None:
    control = Control(daemon.endpoint, job=job_name, timeout=_LONG)
    control.put("key", b"")
    waiting = begin(lambda: on_lines(control).get("never", wait=True))
    poll_until(waits_for(control, 1))
    control.close()
    with pytest.raises(errors.CoordinatorUnavailable):
        waiting.result(10)
    with pytest.raises(errors.CoordinatorUnavailable, match="closed"):
        control.get("key")


# ---------------------------------------------------------------- other listeners


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A listening socket without an acceptor."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def lines_at(*ports: int) -> KvConnectionPool:
    """Make a client whose coordinator names these ports in turn."""
    named = iter(ports)
    endpoint = Endpoint(Address("127.0.0.1", 7070), "token")
    return KvConnectionPool(endpoint, lambda _: KvPort(next(named), _SECRET))


def count(lines: KvConnectionPool, seconds: float = 20.0) -> wire.CountReply | None:
    request = wire.CountRequest(job="j")
    return lines.call(find_verb(request, wire.CountReply), request, time.monotonic() + seconds)


def test_where_nobody_listens_there_is_no_line_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, listener: socket.socket
) -> None:
    port = listener.getsockname()[1]
    listener.close()
    lines = lines_at(port)
    with caplog.at_level(logging.INFO):
        assert count(lines) is None
        assert count(lines) is None
    [record] = caplog.records
    assert f"no line to port {port} of the coordinator at 127.0.0.1:7070" in record.message


def test_without_a_line_the_same_calls_go_by_grpc(daemon: DaemonProcess, control: Control) -> None:
    control._kv_pool = KvConnectionPool(
        daemon.endpoint, lambda _: KvPort(1, _SECRET)
    )  # nobody listens on port 1
    control.put("key", b"value")
    assert control.get("key") == b"value"
    with pytest.raises(errors.StoreTimeout, match="missing"):
        control.get("missing", wait=True, timeout=0.2)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x02\xff\xff", b""],
    ids=["http", "no message", "nothing"],
)
def test_who_answers_with_something_else_is_no_coordinator(
    listener: socket.socket, answer: bytes
) -> None:
    def serve() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.recv(100)
            connected.sendall(answer)

    served = begin(serve)
    assert count(lines_at(listener.getsockname()[1])) is None
    served.result(10)


def test_who_does_not_answer_the_hello_is_given_up_after_a_while(listener: socket.socket) -> None:
    assert count(lines_at(listener.getsockname()[1])) is None


def test_a_deadline_in_opening_a_line_is_the_callers_and_no_judgement_of_the_port(
    listener: socket.socket,
) -> None:
    lines = lines_at(listener.getsockname()[1])
    with pytest.raises(KvCallError, match="Deadline Exceeded"):
        count(lines, 0.05)
    assert not lines._is_kv_unavailable


def test_another_coordinator_on_the_port_is_sent_nothing(
    daemon: DaemonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with Control(daemon.endpoint, job="j") as control:
        control.count()
        port = control._kv_pool._port
    assert port is not None
    with caplog.at_level(logging.INFO):
        assert count(lines_at(port.port)) is None
    assert "somebody else listens there" in caplog.text


def test_a_port_that_is_not_there_any_more_is_asked_for_again(
    daemon: DaemonProcess, listener: socket.socket
) -> None:
    with Control(daemon.endpoint, job="j") as control:
        control.count()
        known = control._kv_pool._port
        assert known is not None
        named = iter([known])
        lines = KvConnectionPool(daemon.endpoint, lambda _: next(named))
        lines._port = KvPort(1, _SECRET)  # where nobody listens
        found = count(lines)
        assert found is not None
        lines.close()


def test_a_reply_that_is_none_of_ours_breaks_the_line(listener: socket.socket) -> None:
    def serve() -> None:
        connected, _ = listener.accept()
        with connected:
            come = connected.recv(len(PREFACE) + HEADER + 18, socket.MSG_WAITALL)
            hello = wire.KvHello.FromString(come[len(PREFACE) + HEADER :])
            proof = prove(_SECRET, "coordinator", hello.nonce, b"nonce")
            challenge = wire.KvChallenge(nonce=b"nonce", proof=proof)
            connected.sendall(encode_frame(challenge.SerializeToString()))
            connected.recv(HEADER + 34, socket.MSG_WAITALL)
            connected.sendall(encode_frame(b""))  # welcome
            connected.recv(100)
            connected.sendall(b"\xff\xff\xff\xff")
            connected.recv(100)

    served = begin(serve)
    lines = lines_at(listener.getsockname()[1])
    with pytest.raises(KvCallError, match="line broke: a frame of 4,294,967,295 bytes"):
        count(lines)
    served.result(10)


# ---------------------------------------------------------------- TLS


@pytest.fixture
def tls_daemon(tmp_path: Path) -> Iterator[tuple[DaemonProcess, Endpoint]]:
    """A daemon with TLS, and the daemon's endpoint."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, ca = (tmp_path / f"{name}.pem" for name in ("cert", "key", "ca"))
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    (tmp_path / "runtime").mkdir(mode=0o700)
    files = ("--tls-cert", str(cert), "--tls-key", str(key))
    with run_daemon(tmp_path / "runtime", *files) as daemon:
        yield daemon, Endpoint(daemon.endpoint.address, daemon.notice.token, str(ca))


def test_lines_have_tls_where_grpc_has_it(tls_daemon: tuple[DaemonProcess, Endpoint]) -> None:
    daemon, endpoint = tls_daemon
    with Control(endpoint, job="j", timeout=20) as control:
        control.put("key", b"x" * 300_000)
        on_lines(control)
        assert control.get("key") == b"x" * 300_000
        with pytest.raises(errors.StoreTimeout, match="missing"):
            control.get("missing", wait=True, timeout=0.2)
        assert control.count() == 1
        port = control._kv_pool._port
    assert port is not None
    plain = KvConnectionPool(Endpoint(endpoint.address, endpoint.token), lambda _: port)
    assert count(plain) is None  # it says nothing to who speaks no TLS
    assert daemon.process.poll() is None


async def test_an_asyncio_line_has_tls_too(tls_daemon: tuple[DaemonProcess, Endpoint]) -> None:
    _, endpoint = tls_daemon
    async with AsyncCoordinatorStore(endpoint, job="j", timeout=20) as store:
        await asyncio.gather(*(store.append("key", b"x" * 1000) for _ in range(100)))
        assert await store.get("key") == b"x" * 100_000
        assert store._connection is not None


# ---------------------------------------------------------------- tasks


@pytest.fixture
def async_store(daemon: DaemonProcess, job_name: str) -> Callable[..., Any]:
    """Return a factory of stores of the test's job."""
    return lambda **more: AsyncCoordinatorStore(daemon.endpoint, job=job_name, **more)


async def test_calls_of_many_tasks_are_carried_out_in_the_order_of_their_beginning(
    async_store: Callable[..., Any],
) -> None:
    async with async_store() as store:
        await store.set("k", b"")
        letters = [bytes([65 + one % 26]) for one in range(3000)]
        await asyncio.gather(*(store.append("k", letter) for letter in letters))
        assert await store.get("k") == b"".join(letters)


async def test_frames_stay_small_whatever_is_said_at_once(
    async_store: Callable[..., Any],
) -> None:
    value = os.urandom(3 << 20)
    async with async_store() as store:
        await store.num_keys()  # connect: what follows is said in one turn
        await asyncio.gather(*(store.set(f"k{one}", value) for one in range(6)))
        found = await asyncio.gather(*(store.get(f"k{one}") for one in range(6)))
        assert all(one == value for one in found)


async def test_a_cancelled_wait_is_withdrawn(
    async_store: Callable[..., Any], control: Control, job_name: str
) -> None:
    def is_known() -> bool:
        return job_name in [job.job for job in control.jobs()]

    async with async_store() as store:
        waiting = asyncio.create_task(store.get("never"))
        await asyncio.to_thread(poll_until, is_known)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # A job in which nobody waits, and that holds nothing, is forgotten.
        await asyncio.to_thread(poll_until, lambda: not is_known())
        await store.set("key", b"value")
        assert await store.get("key") == b"value"


async def test_tasks_hear_at_once_that_the_daemon_was_killed(own_daemon: DaemonProcess) -> None:
    async with AsyncCoordinatorStore(own_daemon.endpoint, job="j", timeout=_LONG) as store:
        await store.set("key", b"")
        waiting = [asyncio.create_task(store.get(f"never {one}")) for one in range(3)]
        await store.set("key", b"")  # behind them
        own_daemon.process.kill()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(one) for one in found] == [errors.CoordinatorUnavailable] * 3
            with pytest.raises(errors.CoordinatorUnavailable):
                await store.set("key", b"")


async def test_tasks_are_not_kept_beyond_their_time_by_a_daemon_that_hangs(
    own_daemon: DaemonProcess,
) -> None:
    async with AsyncCoordinatorStore(own_daemon.endpoint, job="j", timeout=_LONG) as store:
        await store.set("key", b"value")
        own_daemon.process.send_signal(signal.SIGSTOP)
        slow = asyncio.create_task(store.get("key"))
        try:
            with pytest.raises(errors.StoreTimeout, match=r"timeout: wait for key 'other'"):
                await store.wait(["other"], 0.05)
        finally:
            own_daemon.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(10):
            assert await slow == b"value"


async def test_closing_ends_the_calls_of_tasks(async_store: Callable[..., Any]) -> None:
    store = async_store(timeout=_LONG)
    await store.set("key", b"")
    waiting = asyncio.create_task(store.get("never"))
    await store.set("key", b"")
    await store.aclose()
    with pytest.raises(errors.CoordinatorUnavailable):
        await waiting
    await store.aclose()


async def test_without_a_line_tasks_call_by_grpc(
    daemon: DaemonProcess,
    job_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(*_: object) -> None:
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr("allhands.coordinator.kv.asynchronous.AsyncKvConnection.open", refuse)
    async with AsyncCoordinatorStore(daemon.endpoint, job=job_name, timeout=10) as store:
        with caplog.at_level(logging.INFO):
            await asyncio.gather(*(store.add("n", 1) for _ in range(20)))
        assert await store.get("n") == b"20"
        with pytest.raises(errors.StoreTimeout, match="missing"):
            await store.wait(["missing"], 0.2)
    assert len([one for one in caplog.records if "no line" in one.message]) == 1


async def test_a_wrong_token_is_refused_to_tasks(daemon: DaemonProcess) -> None:
    stranger = Endpoint(daemon.endpoint.address, "wrong")
    async with AsyncCoordinatorStore(stranger, job="j") as store:
        with pytest.raises(errors.Unauthenticated):
            await store.set("key", b"")
