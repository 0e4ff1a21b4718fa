"""Addresses of etcd clusters, and what is wrong with others."""

from pathlib import Path

import pytest

from allhands_server.etcd_address import EtcdAddress, parse_store, read_store_user


def test_an_address_has_endpoints_and_a_path() -> None:
    found = parse_store("etcd://h1:2379,[::1]:2380/a/b", ca="ca.pem", user="me:se:cret")
    expected = EtcdAddress(("h1:2379", "[::1]:2380"), "a/b", "ca.pem", None, None, "me", "se:cret")
    assert found == expected
    assert str(found) == "etcd://h1:2379,[::1]:2380/a/b"
    assert "se:cret" not in repr(found)
    assert parse_store("etcd://h1:2379").path == "allhands"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h:1", "no store that allhands knows"),
        ("etcd://", "no host in"),
        ("etcd://h", "no HOST:PORT: 'h'"),
        ("etcd://h:0", "no HOST:PORT"),
        ("etcd://h1:1,h2", "no HOST:PORT: 'h2'"),
        ("etcd://::1:2379", "in brackets"),
        ("etcd://me:secret@h:1", "holds no password"),
        ("etcd://h:1/a b", "not the path of keys"),
    ],
)
def test_other_addresses_are_refused(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        parse_store(url)
    assert "secret" not in str(raised.value)


def test_credentials_are_complete() -> None:
    with pytest.raises(ValueError, match="comes with its key"):
        parse_store("etcd://h:1", ca="ca", cert="cert")
    with pytest.raises(ValueError, match="needs the store's authorities"):
        parse_store("etcd://h:1", cert="cert", key="key")
    for user in ("me", "me:", ":secret"):
        with pytest.raises(ValueError, match="NAME:PASSWORD"):
            parse_store("etcd://h:1", user=user)


@pytest.mark.parametrize(
    ("url", "ca", "is_private"),
    [
        ("etcd://127.0.0.1:1,[::1]:2", None, True),
        ("etcd://127.0.0.1:1,10.0.0.1:2", None, False),
        ("etcd://10.0.0.1:2", "ca", True),
    ],
)
def test_an_address_beyond_this_host_is_private_with_tls(
    url: str, ca: str | None, is_private: bool
) -> None:
    assert parse_store(url, ca=ca).is_private == is_private


def test_the_user_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("me:secret\n")
    assert read_store_user(tmp_path / "user", {}) == "me:secret"
    assert read_store_user(None, {"ALLHANDS_STORE_USER": "you:other"}) == "you:other"
    assert read_store_user(None, {}) is None
    (tmp_path / "user").write_text("")
    with pytest.raises(ValueError, match="no user in"):
        read_store_user(tmp_path / "user", {})
