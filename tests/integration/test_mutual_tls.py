"""Certificates of both sides: made by one command, demanded on both ports, renewed in place."""

import contextlib
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from allhands import errors
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint, find_coordinator, tls_context
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.certificates import make_client_context
from allhands_proto.issuing import Authority, Issued
from allhands_proto.kv_handshake import CallerHandshake
from allhands_server import healthcheck
from programs import launched_ranks
from support.ranks.addresses import free_port
from support.ranks.forking import PATIENCE
from support.ranks.launchers import as_script, environment

ALLHANDS = (sys.executable, "-m", "allhands.cli.main")


def run_token(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ALLHANDS, "token", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of `allhands token init`, which tests copy."""
    folder = tmp_path_factory.mktemp("made") / "tls"
    done = run_token("init", str(folder), "--host", "node7.example")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def files(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "tls"))


@pytest.fixture
def daemon(files: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    (tmp_path / "runtime").mkdir(mode=0o700)
    with run_daemon(tmp_path / "runtime", "--tls-dir", str(files / "daemon")) as running:
        yield running


def as_worker(daemon: DaemonProcess, folder: Path) -> dict[str, str]:
    """Return the environment of another host of workers."""
    others = {name: value for name, value in os.environ.items() if "ALLHANDS" not in name}
    runtime = {"XDG_RUNTIME_DIR": "/nonexistent"}
    return others | runtime | {"ALLHANDS_URL": daemon.notice.url, "ALLHANDS_TLS_DIR": str(folder)}


# ---------------------------------------------------------------- the command


def test_init_keeps_keys_and_token_private_and_prints_what_to_run(made: Path) -> None:
    private = [path for path in made.rglob("*") if path.name in ("ca.key", "tls.key", "token")]
    assert len(private) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o700}


def test_init_prints_what_to_run_and_no_secret(tmp_path: Path) -> None:
    done = run_token("init", str(tmp_path / "new"), "--host", "10.1.2.3")
    assert f"--tls-dir {tmp_path}/new/daemon" in done.stdout
    assert f"ALLHANDS_TLS_DIR={tmp_path}/new/worker" in done.stdout
    assert "ah://10.1.2.3:7070/JOB" in done.stdout
    assert (tmp_path / "new/daemon/token").read_text().strip() not in done.stdout


@pytest.mark.parametrize("left", ["authority", "daemon", "worker"])
def test_init_overwrites_nothing(files: Path, left: str) -> None:
    for part in {"authority", "daemon", "worker"} - {left}:
        shutil.rmtree(files / part)
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    done = run_token("init", str(files))
    assert done.returncode == 2
    assert "nothing is overwritten" in done.stderr.replace("\n", " ")
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("host", ["two words", "0.0.0.0", "a:7070", "", "-x"])
def test_init_refuses_a_host_that_is_none(tmp_path: Path, host: str) -> None:
    done = run_token("init", str(tmp_path / "new"), f"--host={host}")
    assert done.returncode == 2
    assert "--host wants" in done.stderr
    assert not (tmp_path / "new").exists()


# ---------------------------------------------------------------- who is let in


def test_commands_on_the_daemons_own_host_need_no_variables(daemon: DaemonProcess) -> None:
    for arguments in (["kv", "put", "job", "key", "value"], ["status"]):
        done = daemon.run_command(*arguments)
        assert done.returncode == 0, done.stderr


def test_ranks_with_the_workers_directory_join_and_compute(
    daemon: DaemonProcess, files: Path
) -> None:
    script = as_script(launched_ranks.show_sum)
    done = subprocess.run(
        [*ALLHANDS, "run", "-n", "2", *script],
        env=as_worker(daemon, files / "worker"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_links_between_ranks_are_encrypted(
    daemon: DaemonProcess, files: Path, backend: str
) -> None:
    script = as_script(launched_ranks.show_sums_and_plaintext)
    done = subprocess.run(
        [*ALLHANDS, "run", "-n", "2", *script],
        env=as_worker(daemon, files / "worker") | {"ALLHANDS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sockets = 1 if backend == "socket" else 0
    assert done.stdout.count(f"sums, plaintext 0 sockets {sockets}") == 2, done.stdout


def test_ranks_meet_at_rank_0_though_its_certificate_has_another_name(
    files: Path, tmp_path: Path
) -> None:
    authority = load_authority(files)
    write_pair(files / "daemon", authority.issue("daemon", ["node7.example"], timedelta(days=1)))
    shared = environment(tmp_path) | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "ALLHANDS_TLS_NAME": "node7.example",
        "ALLHANDS_BACKEND": "socket",
    }
    script = as_script(launched_ranks.show_sums_and_plaintext)
    ranks = [
        subprocess.Popen(
            [sys.executable, *script],
            env=shared | {"RANK": str(rank), "ALLHANDS_TLS_DIR": str(files / folder)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, folder in enumerate(("daemon", "worker"))
    ]
    try:
        said = [one.communicate(timeout=PATIENCE)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    assert [one.returncode for one in ranks] == [0, 0]
    assert all("sums, plaintext 0 sockets 1" in one for one in said), said


def test_rank_0_with_the_certificate_of_a_worker_is_told_whose_it_needs(
    files: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, *as_script(launched_ranks.show_sums_and_plaintext)],
        env=environment(tmp_path)
        | {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "ALLHANDS_TLS_DIR": str(files / "worker"),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert "is for worker.allhands.invalid: give it one for 127.0.0.1." in done.stderr
    assert "ALLHANDS_TLS_DIR=tls/daemon on rank 0's host" in done.stderr


def test_the_key_value_port_is_used_with_a_certificate(daemon: DaemonProcess, files: Path) -> None:
    endpoint = find_coordinator(None, as_worker(daemon, files / "worker"))
    with Control(endpoint, job="j", timeout=PATIENCE) as control:
        assert control.add("key", 1) == 1
        assert control._kv_pool._idle


def test_the_health_check_takes_the_directory(
    daemon: DaemonProcess, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"127.0.0.1:{daemon.notice.port}"
    for name in ("ALLHANDS_TLS_CA", "ALLHANDS_TLS_CERT", "ALLHANDS_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALLHANDS_TLS_DIR", str(files / "worker"))
    assert healthcheck.main([target]) == 0
    monkeypatch.delenv("ALLHANDS_TLS_DIR")
    assert healthcheck.main([target, "--tls-ca", str(files / "worker/ca.crt")]) == 1


def load_authority(files: Path) -> Authority:
    folder = files / "authority"
    return Authority.load((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())


def write_pair(folder: Path, issued: Issued) -> None:
    (folder / "tls.crt").write_bytes(issued.certificate)
    (folder / "tls.key").write_bytes(issued.key)


def make_refused(case: str, files: Path, endpoint: Endpoint) -> Endpoint:
    worker = files / "worker"
    other = Authority(ec.generate_private_key(ec.SECP256R1()), "another")
    authority = load_authority(files)
    match case:
        case "no certificate":
            return replace(endpoint, tls_cert=None, tls_key=None)
        case "another authority":
            write_pair(worker, other.issue("worker", ["w"], timedelta(days=1)))
        case _:
            write_pair(worker, authority.issue("worker", ["w"], timedelta(seconds=-1)))
    return endpoint


REFUSED = {
    "no certificate": ("wants a certificate of this side", "ALLHANDS_TLS_DIR"),
    "another authority": ("does not trust the authority of this side's certificate", "tls.crt"),
    "expired": ("has expired", "renew it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_caller_without_a_good_certificate_is_told_what_is_wrong(
    daemon: DaemonProcess, files: Path, case: str
) -> None:
    endpoint = find_coordinator(None, as_worker(daemon, files / "worker"))
    refused = make_refused(case, files, endpoint)
    with (
        Control(refused, job="j", timeout=PATIENCE) as control,
        pytest.raises(errors.CoordinatorUnavailable) as caught,
    ):
        control.put("key", b"")
    for words in REFUSED[case]:
        assert words in str(caught.value)


def test_a_command_says_in_one_line_that_the_daemon_is_of_another_authority(
    daemon: DaemonProcess, files: Path
) -> None:
    other = Authority(ec.generate_private_key(ec.SECP256R1()), "another")
    (files / "worker/ca.crt").write_bytes(other.certificate)
    environ = as_worker(daemon, files / "worker")
    del environ["ALLHANDS_TLS_DIR"]
    done = subprocess.run(
        [*ALLHANDS, "status", "--tls-dir", str(files / "worker")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "its certificate is not vouched for by the authorities" in done.stderr


def say_hello(context: ssl.SSLContext, connected: socket.socket) -> bytes:
    """Return the first byte of the answer to a hello; none: the connection is over."""
    with context.wrap_socket(connected, server_hostname="localhost") as secure:
        try:
            secure.sendall(CallerHandshake(b"").start())
            return secure.recv(1)
        except ssl.SSLCertVerificationError:
            raise  # by this side
        except OSError:
            return b""


def test_the_key_value_port_answers_a_good_certificate(daemon: DaemonProcess, files: Path) -> None:
    endpoint = find_coordinator(None, as_worker(daemon, files / "worker"))
    context = tls_context(endpoint)
    with socket.create_connection(("127.0.0.1", read_kv_port(daemon)), PATIENCE) as connected:
        assert say_hello(context, connected)


def read_kv_port(daemon: DaemonProcess) -> int:
    with Control(daemon.endpoint, job="j", timeout=PATIENCE) as control:
        control.put("key", b"")
        [line] = control._kv_pool._idle
        port: int = line._socket.getpeername()[1]
        return port


@pytest.mark.parametrize("case", REFUSED)
def test_the_key_value_port_wants_a_good_certificate(
    daemon: DaemonProcess, files: Path, case: str
) -> None:
    endpoint = find_coordinator(None, as_worker(daemon, files / "worker"))
    refused = make_refused(case, files, endpoint)
    assert refused.tls_ca is not None
    context = make_client_context(refused.tls_ca, refused.tls_cert, refused.tls_key)
    with socket.create_connection(("127.0.0.1", read_kv_port(daemon)), PATIENCE) as connected:
        connected.settimeout(PATIENCE)
        assert say_hello(context, connected) == b""


def test_a_workers_certificate_does_not_pass_for_the_daemons(files: Path, tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    with run_daemon(tmp_path / "runtime", "--tls-dir", str(files / "worker")) as impostor:
        endpoint = find_coordinator(None, as_worker(impostor, files / "worker"))
        with (
            Control(endpoint, job="j", timeout=PATIENCE) as control,
            pytest.raises(errors.CoordinatorUnavailable, match=r"certificate is for worker\."),
        ):
            control.count()


def test_strangers_write_no_line_for_each_handshake_that_fails(daemon: DaemonProcess) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", daemon.notice.port), PATIENCE) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
    assert daemon.run_command("status").returncode == 0
    assert "Handshake failed" not in "".join(daemon.log_lines)


@pytest.mark.parametrize("lost", ["ca.crt", "tls.crt", "tls.key"])
def test_a_directory_without_a_file_is_refused_by_name(files: Path, lost: str) -> None:
    with pytest.raises(ValueError, match=r"give \S+/daemon or \S+/worker$"):
        find_coordinator("ah://h:1", {"ALLHANDS_TLS_DIR": str(files)})
    (files / "worker" / lost).unlink()
    with pytest.raises(ValueError, match=rf"ALLHANDS_TLS_DIR=.*holds no {lost}"):
        find_coordinator("ah://h:1", {"ALLHANDS_TLS_DIR": str(files / "worker")})
    with pytest.raises(ValueError, match="holds no"):
        find_coordinator(None, {"ALLHANDS_TLS_DIR": str(files / "worker")})


# ---------------------------------------------------------------- rotation


def read_served_certificate(port: int, folder: Path) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    context = make_client_context(
        str(folder / "ca.crt"), str(folder / "tls.crt"), str(folder / "tls.key")
    )
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as connected,
        context.wrap_socket(connected, server_hostname="localhost") as secure,
    ):
        served = secure.getpeercert(binary_form=True)
        assert served is not None
        return x509.load_der_x509_certificate(served).serial_number


def read_serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_renewed_certificates_are_served_without_a_restart(
    daemon: DaemonProcess, files: Path
) -> None:
    ports = (daemon.notice.port, read_kv_port(daemon))
    old = read_serial(files / "daemon/tls.crt")
    assert [read_served_certificate(port, files / "worker") for port in ports] == [old, old]
    with Control(daemon.endpoint, job="j", timeout=PATIENCE) as open_before:
        open_before.put("key", b"before")
        done = run_token("renew", str(files))
        assert done.returncode == 0, done.stderr
        new = read_serial(files / "daemon/tls.crt")
        assert new != old
        assert [read_served_certificate(port, files / "worker") for port in ports] == [new, new]
        assert open_before.get("key") == b"before"
    assert daemon.run_command("kv", "get", "j", "key").stdout == "before"


def test_files_that_cannot_be_used_leave_those_before_in_use(
    daemon: DaemonProcess, files: Path
) -> None:
    ports = (daemon.notice.port, read_kv_port(daemon))
    old = read_serial(files / "daemon/tls.crt")
    whole = (files / "daemon/tls.crt").read_bytes()
    (files / "daemon/tls.crt").write_bytes((files / "worker/tls.crt").read_bytes())
    assert [read_served_certificate(port, files / "worker") for port in ports] == [old, old]
    (files / "daemon/tls.crt").unlink()
    assert [read_served_certificate(port, files / "worker") for port in ports] == [old, old]
    (files / "daemon/tls.crt").write_bytes(whole)
    assert [read_served_certificate(port, files / "worker") for port in ports] == [old, old]
    poll_until(lambda: "cannot be read, and those before stay in use" in "".join(daemon.log_lines))
    assert "".join(daemon.log_lines).count("are no certificate and its key") == 1


def test_an_authority_that_is_taken_out_is_not_trusted_any_more(
    daemon: DaemonProcess, files: Path
) -> None:
    endpoint = find_coordinator(None, as_worker(daemon, files / "worker"))
    with Control(endpoint, job="j", timeout=PATIENCE) as control:
        control.put("key", b"")
    other = Authority(ec.generate_private_key(ec.SECP256R1()), "another")
    (files / "daemon/ca.crt").write_bytes(other.certificate)
    with (
        Control(endpoint, job="j", timeout=PATIENCE) as control,
        pytest.raises(errors.CoordinatorUnavailable, match="does not trust"),
    ):
        control.put("key", b"")
