"""TLS to the coordinator: by notice on the coordinator's host, and the errors of failures."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from allhands import errors
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.coordinator.probing import probe_coordinator
from allhands.stores import AsyncCoordinatorStore
from allhands.testing.daemon import DaemonProcess, run_daemon
from programs import joins, launched_ranks
from support.ranks.addresses import address_beyond_loopback, free_port
from support.ranks.forking import PATIENCE
from support.ranks.launchers import as_script
from support.ranks.processes import Cluster

NAME = "node7.example"


@dataclass(frozen=True)
class Files:
    cert: str
    key: str
    ca: str


def _self_signed(folder: Path) -> Files:
    """Make a self-signed end certificate, as `openssl req -x509` does."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "self.pem", folder / "self-key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Files(str(cert_file), str(key_file), str(cert_file))


def _issued(folder: Path, *names: str) -> Files:
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    files = Files(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files.cert, append=True)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    return files


@pytest.fixture(params=["self-signed", "issued", "wildcard", "loopback"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with TLS, with a certificate mostly for a name unlike 127.0.0.1."""
    match request.param:
        case "self-signed":
            files = _self_signed(tmp_path)
        case "issued":
            files = _issued(tmp_path, NAME)
        case "wildcard":
            files = _issued(tmp_path, "*.cluster.example")
        case _:
            files = _issued(tmp_path, NAME, "127.0.0.1")
    (tmp_path / "runtime").mkdir(mode=0o700)
    arguments = ("--tls-cert", files.cert, "--tls-key", files.key)
    with run_daemon(tmp_path / "runtime", *arguments) as running:
        yield running


def test_commands_on_the_daemons_own_host_need_no_variables(daemon: DaemonProcess) -> None:
    for arguments in (["kv", "put", "job", "key", "value"], ["status"]):
        done = daemon.run_command(*arguments)
        assert done.returncode == 0, done.stderr
    done = daemon.run_command("kv", "get", "job", "key", "--coordinator", daemon.notice.url)
    assert done.stdout == "value"


@pytest.mark.parametrize("has_tls", [True, False])
def test_commands_and_launches_find_the_daemon_of_their_host_by_its_outside_address(
    tmp_path: Path, has_tls: bool
) -> None:
    address = address_beyond_loopback()  # or skip
    files = _issued(tmp_path, address, "127.0.0.1")
    (tmp_path / "runtime").mkdir(mode=0o700)
    (tmp_path / "token").write_text("sesame")
    tls = ("--tls-cert", files.cert, "--tls-key", files.key) if has_tls else ("--insecure",)
    url = f"ah://{Address(address, free_port()).target}"
    listen = ("--token-file", str(tmp_path / "token"), "--listen", url.removeprefix("ah://"))
    with run_daemon(tmp_path / "runtime", *listen, *tls) as daemon:
        done = daemon.run_command("status", "--coordinator", url)
        assert (done.returncode, done.stdout) == (0, "no jobs\n"), done.stderr
        script = as_script(launched_ranks.show_sum)
        done = daemon.run_command("run", "-n", "2", "--coordinator", url, *script)
        assert done.stdout.count("sum 2.0") == 2, done.stderr


def test_programs_and_launches_on_the_daemons_own_host_need_no_variables(
    daemon: DaemonProcess,
) -> None:
    script = as_script(launched_ranks.set_a_key, f"{daemon.notice.url}/mine")
    alone = subprocess.run(
        [sys.executable, *script],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    script = as_script(launched_ranks.show_sum)
    done = daemon.run_command("run", "-n", "2", "--coordinator", daemon.notice.url, *script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2


async def test_key_value_calls_take_the_port_with_tls_too(daemon: DaemonProcess) -> None:
    async with AsyncCoordinatorStore(daemon.endpoint, job="j", timeout=20) as store:
        assert await store.add("key", 1) == 1
        assert store._connection is not None
    with Control(daemon.endpoint, job="j", timeout=20) as control:
        assert control.add("key", 1) == 2
        assert control._kv_pool._idle


# ---------------------------------------------------------------- what is wrong


def _expired(folder: Path) -> Files:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    files = Files(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    issued.cert_chain_pems[0].write_to_path(files.cert)
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    return files


CASES = {
    "missing CA": ("it speaks TLS, and this side was given no authority", "ALLHANDS_TLS_CA=FILE"),
    "wrong CA": ("its certificate is not vouched for by the authorities of this side", "wrong.pem"),
    "another name": (f"its certificate is for {NAME}, not for '127.0.0.1'", NAME),
    "expired": ("its certificate is not valid: certificate has expired", ""),
    "no TLS": ("it speaks no TLS, and this side wants TLS", "ALLHANDS_TLS_CA="),
    "nobody": ("nothing listens there", "allhands serve"),
    "no name": ("has no address", "nowhere.invalid"),
}


@pytest.fixture(params=CASES)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Endpoint, str, str]]:
    """A misconfigured endpoint, and the expected error text."""
    says = CASES[request.param]
    runtime = tmp_path / "of-the-daemon"
    runtime.mkdir(mode=0o700)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "wrong.pem"))
    files = (_expired if request.param == "expired" else _issued)(
        tmp_path, *(() if request.param == "expired" else (NAME,))
    )
    tls = () if request.param == "no TLS" else ("--tls-cert", files.cert, "--tls-key", files.key)
    with run_daemon(runtime, *tls) as daemon:
        there = Endpoint(daemon.endpoint.address, daemon.notice.token, files.ca)
        match request.param:
            case "missing CA":
                yield replace(there, tls_ca=None), *says
            case "wrong CA":
                yield replace(there, tls_ca=str(tmp_path / "wrong.pem")), *says
            case "nobody":
                yield replace(there, address=replace(there.address, port=free_port())), *says
            case "no name":
                yield replace(there, address=replace(there.address, host="nowhere.invalid")), *says
            case _:
                yield there, *says


def test_a_client_says_what_is_wrong_on_its_way(broken: tuple[Endpoint, str, str]) -> None:
    endpoint, reason, names = broken
    with (
        Control(endpoint, job="j", timeout=10) as control,
        pytest.raises(errors.CoordinatorUnavailable) as caught,
    ):
        control.count()
    assert reason in str(caught.value)
    assert names in str(caught.value)
    assert endpoint.address.target in str(caught.value)


async def test_an_asyncio_store_says_what_is_wrong_on_its_way(
    broken: tuple[Endpoint, str, str],
) -> None:
    endpoint, reason, _ = broken
    async with AsyncCoordinatorStore(endpoint, job="j", timeout=10) as store:
        with pytest.raises(errors.CoordinatorUnavailable) as caught:
            await store.num_keys()
    assert reason in str(caught.value)


def test_a_rank_is_told_at_once_what_would_not_change_by_waiting(
    broken: tuple[Endpoint, str, str], cluster: Cluster
) -> None:
    endpoint, reason, _ = broken
    if reason in ("nothing listens there", "has no address"):
        pytest.skip("that may change")
    rank = cluster.start(
        joins.be_refused_at_once,
        endpoint.address.url + "/j",
        endpoint.tls_ca,
        ALLHANDS_TOKEN=endpoint.token or "",
    )
    told = rank.expect("failed")
    assert told["error"] == "CoordinatorUnavailable"
    assert reason in told["text"]


# ---------------------------------------------------------------- late


def _serve(cluster: Cluster, port: int) -> None:
    cluster.serve("--listen", f"127.0.0.1:{port}", ALLHANDS_TOKEN="t")


@pytest.mark.parametrize("join", ["init", "store", "torchrun url"])
def test_a_port_that_does_not_listen_yet_is_tried_again_and_that_is_said_once(
    cluster: Cluster, join: str
) -> None:
    if join == "torchrun url":
        pytest.importorskip("torch")
    port = free_port()
    rank = cluster.start(
        joins.join_when_it_is_there,
        join,
        "127.0.0.1",
        port,
        ALLHANDS_TOKEN="t",
        **({"ALLHANDS_URL": f"ah://127.0.0.1:{port}"} if join == "torchrun url" else {}),
    )
    said = rank.expect("warned")["text"]
    assert f"127.0.0.1:{port} cannot be reached: nothing listens there" in said
    assert "trying again for" in said
    _serve(cluster, port)
    assert rank.expect("joined")["warnings"] == 1


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_rank_that_is_up_before_its_daemon_takes_what_the_notice_says(
    cluster: Cluster, tmp_path: Path, is_encrypted: bool
) -> None:
    port = free_port()
    rank = cluster.start(joins.join_when_it_is_there, "init", "127.0.0.1", port)
    rank.expect("warned")
    files = _issued(tmp_path, NAME)
    options = ("--tls-cert", files.cert, "--tls-key", files.key) if is_encrypted else ()
    cluster.serve("--listen", f"127.0.0.1:{port}", *options)
    rank.expect("joined")


@pytest.mark.parametrize("join", ["hosting", "store"])
def test_a_name_that_has_no_address_yet_is_tried_again_and_that_is_said_once(
    cluster: Cluster, join: str
) -> None:
    port = free_port()
    arguments = (join, "late.example", port)
    rank = cluster.start(joins.join_when_its_name_is_known, *arguments, ALLHANDS_TOKEN="t")
    said = rank.expect("warned")["text"]
    assert "'late.example' has no address" in said
    if join == "store":
        _serve(cluster, port)
    else:
        cluster.start(joins.join_as_rank_one, port, ALLHANDS_TOKEN="t")
    rank.say("it is known")
    assert rank.expect("joined")["warnings"] == 1


def test_a_one_shot_command_does_not_wait(cluster: Cluster) -> None:
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "status"],
        env={**os.environ, "ALLHANDS_URL": f"ah://127.0.0.1:{port}", "ALLHANDS_TOKEN": "t"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "nothing listens there" in done.stderr
    assert "trying again" not in done.stderr


def test_who_probes_sends_nothing_of_the_users() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(Address("127.0.0.1", listener.getsockname()[1]), "s3cret")
        probe_coordinator(endpoint, seconds=0.2)
        connected, _ = listener.accept()
        with connected:
            connected.settimeout(PATIENCE)
            sent = b""
            while piece := connected.recv(4096):
                sent += piece
    assert b"s3cret" not in sent
