"""TLS and users of real etcd clusters."""

import shutil
from pathlib import Path

import pytest
import trustme

from allhands_server.etcd_address import parse_store
from allhands_server.log.engine import Appended, Slot
from allhands_server.log.errors import LogUnavailable
from allhands_server.log.etcd import EtcdEngine
from support.etcd_nodes import EtcdTls, run_nodes

pytestmark = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="etcd is not installed: see `make test-etcd`"
)


def make_tls(folder: Path) -> EtcdTls:
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    tls = EtcdTls(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))
    authority.cert_pem.write_to_path(tls.ca)
    issued.cert_chain_pems[0].write_to_path(tls.cert)
    issued.private_key_pem.write_to_path(tls.key)
    return tls


async def open_when_up(url: str, tls: EtcdTls) -> EtcdEngine:
    """Open an engine as soon as the cluster answers."""
    for _ in range(30):  # of two seconds each
        try:
            return await EtcdEngine.open(parse_store(url, ca=tls.ca, cert=tls.cert, key=tls.key))
        except LogUnavailable:
            continue
    raise TimeoutError(url)


async def test_a_cluster_with_tls_knows_its_clients_and_is_known(tmp_path: Path) -> None:
    tls = make_tls(tmp_path / "tls")
    with run_nodes(tmp_path / "etcd", count=1, tls=tls) as nodes:
        engine = await open_when_up(nodes.url, tls)
        assert await engine.append(1, b"mine") == Appended()
        await engine.close()
        for other in (
            parse_store(nodes.url),
            parse_store(nodes.url, ca=tls.ca),
            parse_store(nodes.url, ca=make_tls(tmp_path / "other").ca),
        ):
            with pytest.raises(LogUnavailable, match=nodes.endpoints[0]):
                await EtcdEngine.open(other)


async def test_a_cluster_with_users_takes_in_those_with_the_password(tmp_path: Path) -> None:
    with run_nodes(tmp_path / "etcd", count=1) as nodes:
        (node,) = nodes.nodes
        node.call("auth/user/add", {"name": "root", "password": "secret"})
        node.call("auth/user/grant", {"user": "root", "role": "root"})
        node.call("auth/enable", {})
        engine = await EtcdEngine.open(parse_store(nodes.url, user="root:secret"))
        assert await engine.append(1, b"mine") == Appended()
        token = node.call("auth/authenticate", {"name": "root", "password": "secret"})["token"]
        node.call("auth/user/add", {"name": "other", "password": "x"}, str(token))
        assert list(await engine.read(1)) == [Slot(1, b"mine")]
        await engine.close()
        for user in (None, "root:wrong"):
            with pytest.raises(LogUnavailable) as raised:
                await EtcdEngine.open(parse_store(nodes.url, user=user))
            assert "wrong" not in str(raised.value)
        with pytest.raises(LogUnavailable, match="permission denied"):
            await EtcdEngine.open(parse_store(nodes.url, user="other:x"))
