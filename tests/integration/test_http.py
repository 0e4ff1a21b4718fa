"""The HTTP port of a daemon: health, readiness, leadership; with TLS, and without the extra."""

import asyncio
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from allhands.testing.daemon import run_daemon
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server import embedded
from allhands_server.config import ServerConfig
from allhands_server.http.port import HttpPort
from allhands_server.http.readiness import Readiness
from support.fake_etcd import FakeEtcd
from support.http_pages import fetch, find_url

HTTP = ("--http", "127.0.0.1:0")


def test_a_daemon_lives_serves_and_leads(tmp_path: Path) -> None:
    with run_daemon(tmp_path, *HTTP) as daemon:
        url = find_url(daemon)
        assert fetch(url, "/healthz").text == "alive\n"
        assert fetch(url, "/readyz").text == "ready\n"
        assert fetch(url, "/leader").status == 200
        assert fetch(url, "/nothing").status == 404
        assert fetch(url, "/healthz").headers["cache-control"] == "no-store"
    assert "HTTP/1.1" not in "".join(daemon.log_lines), "requests are not logged one by one"


async def test_a_daemon_that_drains_lives_and_is_not_ready(
    tmp_path: Path, call_at: Callable[..., Any]
) -> None:
    with run_daemon(tmp_path, *HTTP) as daemon:
        url = find_url(daemon)
        caller = call_at(f"127.0.0.1:{daemon.notice.port}", daemon.notice.token)
        member = await caller.join("j", 0, 1)
        daemon.process.terminate()
        await member.hear("draining")
        page = fetch(url, "/readyz")
        assert (page.status, page.text) == (503, "the coordinator drains, and takes in nobody\n")
        assert fetch(url, "/healthz").status == 200
        await member.say(leave=wire.Leave())
        assert daemon.process.wait(10) == 0


async def test_a_daemon_that_has_not_read_its_log_lives_and_is_not_ready() -> None:
    port = HttpPort(("127.0.0.1", 0), None)
    try:
        assert (await asyncio.to_thread(fetch, port.url, "/healthz")).status == 200
        page = await asyncio.to_thread(fetch, port.url, "/readyz")
        assert page.status == 503
        assert "reads its log" in page.text
        assert (await asyncio.to_thread(fetch, port.url, "/leader")).status == 503
    finally:
        await port.close()


async def test_of_several_daemons_all_are_ready_and_one_leads() -> None:
    fake = FakeEtcd()
    await fake.start()
    daemons = []
    try:
        for _ in range(2):
            config = ServerConfig(
                token="token-of-all",
                store=fake.get_address(),
                post_notice=False,
                http=("127.0.0.1", 0),
            )
            daemons.append(await embedded.start(config))
        assert not daemons[0].http_url.endswith(":0")
        urls = [one.http_url for one in daemons]

        async def get(path: str) -> list[int]:
            pages = [await asyncio.to_thread(fetch, url, path) for url in urls]
            return [page.status for page in pages]

        async with asyncio.timeout(60):
            while await get("/readyz") != [200, 200]:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.05)
            while sorted(await get("/leader")) != [200, 503]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        for one in daemons:
            await one.stop()
        await fake.stop()


async def test_a_follower_without_a_leader_is_not_ready() -> None:
    fake = FakeEtcd()
    await fake.start()
    config = ServerConfig(
        token="t", store=fake.get_address(), post_notice=False, http=("127.0.0.1", 0)
    )
    daemon = await embedded.start(config)
    try:
        page = await asyncio.to_thread(fetch, daemon.http_url, "/readyz")
        assert page.status == 503
        assert "stands by" in page.text
    finally:
        await daemon.stop()
        await fake.stop()


def make_files(folder: Path) -> dict[str, str]:
    """Make a certificate for loopback, and its authority, in files."""
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {name: str(folder / name) for name in ("cert", "key", "ca")}
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return files


def test_it_has_the_certificate_of_the_other_ports_and_takes_a_new_one(tmp_path: Path) -> None:
    files = make_files(tmp_path / "files")
    (tmp_path / "runtime").mkdir(mode=0o700)
    tls = ("--tls-cert", files["cert"], "--tls-key", files["key"])
    with run_daemon(tmp_path / "runtime", *tls, *HTTP) as daemon:
        url = find_url(daemon)
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=files["ca"])
        assert fetch(url, "/healthz", tls=context).status == 200
        others = make_files(tmp_path / "others")
        for name in ("cert", "key"):
            shutil.copy(others[name], files[name])
        renewed = ssl.create_default_context(cafile=others["ca"])
        assert fetch(url, "/healthz", tls=renewed).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(url, "/healthz", tls=context)


def test_beyond_loopback_it_wants_a_token_and_certificates() -> None:
    config = ServerConfig(http=("0.0.0.0", 0))
    with pytest.raises(
        ValueError, match=r"listening on 0\.0\.0\.0, beyond loopback, needs a token"
    ):
        config.validate()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with run_daemon(tmp_path, *HTTP) as daemon:
        taken = find_url(daemon).removeprefix("http://")
        second = daemon.run_command("serve", "--listen", "127.0.0.1:0", "--http", taken)
    assert second.returncode == 1
    assert f"{taken} is taken" in second.stderr
    assert "Traceback" not in second.stderr


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    hiding = (
        "import sys, importlib.util as util; found = util.find_spec; "
        "util.find_spec = lambda name, *more: None if name == 'uvicorn' else found(name, *more); "
        "from allhands.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hiding, "serve", "--listen", "127.0.0.1:0", *HTTP],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "--http needs uvicorn" in done.stderr
    assert "pip install 'allhands[http]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_option_none_of_its_packages_is_loaded(tmp_path: Path) -> None:
    listing = (
        "import sys, asyncio; from allhands_server import embedded; "
        "from allhands_server.config import ServerConfig\n"
        "async def main():\n"
        "    running = await embedded.start(ServerConfig(post_notice=False))\n"
        "    await running.stop()\n"
        "asyncio.run(main()); "
        "print(sorted({'starlette', 'uvicorn', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_readiness_says_nothing_before_there_is_a_coordinator() -> None:
    readiness = Readiness()
    assert not readiness.leads
    assert readiness.find_obstacle()


@pytest.mark.parametrize("text", ["7071", "host", "host:port"])
def test_an_address_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    with run_daemon(tmp_path) as daemon:
        done = daemon.run_command("serve", "--http", text)
    assert done.returncode == 2
    assert "--http wants HOST:PORT" in done.stderr
