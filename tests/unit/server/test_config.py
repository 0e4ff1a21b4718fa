"""Configurations of a coordinator: closed by default."""

import logging
from pathlib import Path

import pytest

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdicts import AbsentRank, Verdict
from allhands_server.addresses import format_worker_address, get_local_host, parse_peer_host
from allhands_server.config import FLAGS, VARIABLES, ServerConfig, SettingNames, read_token
from allhands_server.etcd_address import parse_store
from allhands_server.rpc.service import encode_bounded_verdict

TLS = {"tls_cert": "cert.pem", "tls_key": "key.pem"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    ServerConfig(host=host).validate()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node7", "localhost.evil"])
def test_beyond_loopback_token_and_tls_are_needed(host: str) -> None:
    with pytest.raises(ValueError, match=r"token.*TLS"):
        ServerConfig(host=host).validate()
    with pytest.raises(ValueError, match="needs TLS"):
        ServerConfig(host=host, token="secret").validate()
    with pytest.raises(ValueError, match="needs a token"):
        ServerConfig(host=host, **TLS).validate()
    ServerConfig(host=host, token="secret", **TLS).validate()


@pytest.mark.parametrize(
    ("spelling", "names"),
    [
        (FLAGS, ("--token-file", "ALLHANDS_TOKEN", "--tls-cert", "--tls-key", "--insecure")),
        (
            VARIABLES,
            ("ALLHANDS_TOKEN", "ALLHANDS_TLS_CERT", "ALLHANDS_TLS_KEY", "ALLHANDS_INSECURE"),
        ),
    ],
)
def test_errors_name_settings_as_they_are_written(
    spelling: SettingNames, names: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as raised:
        ServerConfig(host="0.0.0.0", setting_names=spelling).validate()
    for name in names:
        assert name in str(raised.value)
    with pytest.raises(ValueError, match=rf"{spelling.tls_cert}\) .*\({spelling.tls_key}"):
        ServerConfig(tls_cert="cert.pem", setting_names=spelling).validate()


def test_insecure_overrides_with_a_warning() -> None:
    config = ServerConfig(host="0.0.0.0", token="secret", insecure=True)
    config.validate()
    [warning] = config.list_warnings()
    assert "in the clear" in warning
    assert len(ServerConfig(host="0.0.0.0", insecure=True).list_warnings()) == 2
    assert ServerConfig(insecure=True).list_warnings() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": ""},
        {"port": -1},
        {"port": 65536},
        {"token": ""},
        {"token": "two words"},
        {"token": "line\n"},
        {"token": "schön"},
        {"tls_cert": "cert.pem"},
        {"tls_key": "key.pem"},
        {"kind": "other"},
        {"drain_timeout": -1.0},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ServerConfig(**wrong).validate()  # type: ignore[arg-type]


def test_a_config_does_not_show_its_token(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().warning("%r", ServerConfig(token="hush-hush"))
    assert "hush" not in caplog.text


def test_the_token_comes_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    environ = {"ALLHANDS_TOKEN": "from-environment"}
    assert read_token(path, environ) == "from-file"
    assert read_token(None, environ) == "from-environment"
    assert read_token(None, {}) is None
    path.write_text("\n")
    with pytest.raises(ValueError, match="no token"):
        read_token(path, environ)


STORE = parse_store("etcd://127.0.0.1:2379")


def test_one_of_several_daemons_has_a_token_and_an_address_for_clients() -> None:
    ServerConfig(store=STORE, token="t").validate()
    wild = ServerConfig(host="0.0.0.0", insecure=True, store=STORE, token="t", advertise=("h:1",))
    wild.validate()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ServerConfig(store=STORE), "daemons that share a store share their token"),
        (ServerConfig(store=STORE, token="t", data_dir="d"), "in a folder or in a store"),
        (
            ServerConfig(host="0.0.0.0", insecure=True, store=STORE, token="t"),
            "say where they reach this daemon",
        ),
        (
            ServerConfig(store=parse_store("etcd://10.0.0.1:2379"), token="t"),
            "sent there in the clear",
        ),
    ],
)
def test_settings_of_several_daemons_are_complete(config: ServerConfig, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        config.validate()


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.1.2.3:4711", "10.1.2.3"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[2001:db8::7]:4711", "2001:db8::7"),
        ("ipv6:%5B::ffff:10.1.2.3%5D:4711", "10.1.2.3"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1%eth0"),
        ("unix:/run/socket", "127.0.0.1"),
        ("unix:", "127.0.0.1"),
    ],
)
def test_a_peer_is_read_as_grpc_writes_it(peer: str, host: str) -> None:
    assert parse_peer_host(peer) == host


def test_a_workers_address_can_be_dialled() -> None:
    assert format_worker_address("ipv4:10.1.2.3:4711", 5000) == "10.1.2.3:5000"
    assert format_worker_address("ipv6:%5B::1%5D:4711", 5000) == "[::1]:5000"
    assert get_local_host("0.0.0.0") == "127.0.0.1"
    assert get_local_host("10.1.2.3") == "10.1.2.3"


def test_what_is_no_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="vsock"):
        parse_peer_host("vsock:2:3")


@pytest.mark.parametrize("count", [1, 15, 100, 10_000])
def test_a_verdict_fits_into_a_trailer(count: int) -> None:
    ranks = (AbsentRank(rank, "paused", "text " * 30, "host", 1) for rank in range(count))
    serialised = encode_bounded_verdict(Verdict("group", 7, "all_reduce", tuple(ranks), "text"))
    assert len(serialised) <= 3072
    absent = wire.Verdict.FromString(serialised).absent
    assert [one.rank for one in absent] == list(range(len(absent)))
    assert len(absent) >= min(count, 100)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ServerConfig(advertise=("h:x",)), "advertise is HOST or HOST:PORT, .* and not 'h:x'"),
        (ServerConfig(advertise=("h:0",)), "and not 'h:0'"),
        (ServerConfig(kv_advertise=("[::1",)), "kv_advertise is HOST or HOST:PORT"),
        (ServerConfig(advertise=("h:1", "0.0.0.0")), "clients cannot dial 0.0.0.0"),
        (ServerConfig(more_listens=(("::1", 70000),)), "no such port: 70000"),
        (ServerConfig(kv_port=-1), "no such port: -1"),
        (ServerConfig(more_listens=(("10.0.0.1", 1),)), "listening on 10.0.0.1, beyond loopback"),
    ],
)
def test_addresses_are_checked_before_a_port_is_opened(config: ServerConfig, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        config.validate()


def test_advertised_addresses_have_the_port_that_was_chosen_unless_given() -> None:
    config = ServerConfig(advertise=("h", "g:1", "::1", "[::2]:3"), kv_advertise=("h",))
    assert config.get_advertised(70) == ("h:70", "g:1", "[::1]:70", "[::2]:3")
    assert config.get_kv_advertised(71) == ("h:71",)


def test_a_wildcard_address_includes_the_others_of_its_port() -> None:
    more = (("0.0.0.0", 7), ("::", 7), ("::1", 8), ("127.0.0.1", 0))
    assert ServerConfig("127.0.0.1", 7, more_listens=more).listens == (
        ("::", 7),
        ("::1", 8),
        ("127.0.0.1", 0),
    )
