"""The container's health check, against real servers on free loopback ports."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socket import create_server

import grpc
import pytest
import trustme
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from allhands_server.healthcheck import main

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Server:
    """A gRPC server with only a health service."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(1))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[Server]:
    own = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in own.cert_chain_pems)
    server = Server(grpc.ssl_server_credentials([(own.private_key_pem.bytes(), chain)]))
    yield server
    server.stop()


def test_a_serving_coordinator_is_healthy(server: Server) -> None:
    server.health.set("", SERVING)
    assert main([f"127.0.0.1:{server.port}"]) == 0


def test_a_draining_coordinator_is_not_healthy(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.health.set("", NOT_SERVING)
    assert main([f"127.0.0.1:{server.port}"]) == 1
    assert "NOT_SERVING" in capsys.readouterr().err


def test_a_port_where_nobody_listens_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    assert main([f"127.0.0.1:{port}"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_port_that_never_answers_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert main([address, "--timeout", "0.3"]) == 1
    assert "DEADLINE_EXCEEDED" in capsys.readouterr().err


def test_a_server_with_tls_is_healthy_to_who_trusts_its_authority(
    tls_server: Server, authority: trustme.CA, tmp_path: Path
) -> None:
    tls_server.health.set("", SERVING)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    assert main([f"localhost:{tls_server.port}", "--tls-ca", str(bundle)]) == 0


def test_a_server_with_tls_of_a_stranger_is_not_healthy(tls_server: Server, tmp_path: Path) -> None:
    tls_server.health.set("", SERVING)
    bundle = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(bundle))
    assert main([f"localhost:{tls_server.port}", "--tls-ca", str(bundle), "--timeout", "1"]) == 1


def test_a_missing_bundle_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["localhost:1", "--tls-ca", str(tmp_path / "none.pem")]) == 1
    assert "none.pem" in capsys.readouterr().err
