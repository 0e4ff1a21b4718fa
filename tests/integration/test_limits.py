"""Limits of a daemon, as its clients meet them and `allhands status --limits` shows them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import allhands as ah
from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until

_MIB = 1 << 20


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with low limits."""
    limits = ("job-keys=3", "memory=16MiB", "value-size=1MiB", "job-waiters=2")
    with run_daemon(tmp_path, *(one for limit in limits for one in ("--limit", limit))) as daemon:
        yield daemon


@pytest.mark.parametrize("use_lines", [True, False], ids=["lines", "gRPC"])
def test_one_key_too_many_is_refused_by_name(limited: DaemonProcess, use_lines: bool) -> None:
    with Control(limited.endpoint, job="j", use_lines=use_lines) as control:
        for key in "abc":
            control.put(key, b"")
        with pytest.raises(ah.LimitExceeded, match=r"job j has 3 keys.*--limit job-keys=NUMBER"):
            control.put("d", b"")
        with pytest.raises(ValueError, match=r"value-size|1,048,576 is the most"):
            control.put("a", bytes(_MIB + 1))
        assert control.count() == 3
    with Control(limited.endpoint, job="other", use_lines=use_lines) as control:
        control.put("d", b"")


def test_asyncio_clients_are_refused_by_name(limited: DaemonProcess) -> None:
    async def fill() -> None:
        async with ah.aio.AsyncControl(limited.endpoint, job="j") as control:
            for key in "abc":
                await control.put(key, b"")
            with pytest.raises(ah.LimitExceeded, match="job j has 3 keys"):
                await control.put("d", b"")

    asyncio.run(fill())


def test_above_the_memory_writes_are_refused_and_the_rest_goes_on(limited: DaemonProcess) -> None:
    value = bytes(_MIB)
    clients = [Control(limited.endpoint, job=f"j{number}") for number in range(4)]
    written = []
    for control in clients:
        for key in "abc":
            try:
                control.put(key, value)
                written.append((control, key))
            except ah.LimitExceeded as error:
                refusal = str(error)
    assert 6 <= len(written) < 12
    assert "all jobs together have" in refusal
    assert "--limit memory=SIZE" in refusal
    for control, key in written:
        assert control.get(key) == value
    assert len(clients[0].jobs()) >= 3
    control, key = written[0]
    assert control.delete(key)
    control.put(key, value)
    for control in clients:
        control.close()


def test_commands_show_the_limits_and_who_uses_most(limited: DaemonProcess) -> None:
    with Control(limited.endpoint, job="j") as control:
        control.put("a", b"")
    shown = limited.run_command("status", "--limits")
    assert shown.returncode == 0, shown.stderr
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows["job-keys"] == ["3", "1", "job", "j"]
    assert rows["client-rate"] == ["-"]
    assert rows["memory"][0] == "16,777,216"
    found = json.loads(limited.run_command("status", "--limits", "-o", "json").stdout)
    limits = {one["name"]: one for one in found["limits"]}
    assert limits["job-keys"] == {"name": "job-keys", "most": 3, "used": 1, "job": "j"}
    assert limits["job-bytes"]["most"] == 4 * _MIB
    assert found["resident_bytes"] > _MIB


def test_the_use_of_a_limit_is_gone_with_the_job(limited: DaemonProcess) -> None:
    with Control(limited.endpoint, job="j") as control:
        control.put("a", bytes(_MIB))
        used = {one.name: one for one in control.limits().limits}
        assert used["job-bytes"].used is not None
        assert used["job-bytes"].used > _MIB
        control.delete_job()
        used = {one.name: one for one in control.limits().limits}
        assert (used["job-bytes"].used, used["jobs"].used) == (0, 0)


def test_so_many_calls_wait_and_one_that_ends_makes_room(limited: DaemonProcess) -> None:
    async def wait() -> None:
        async with ah.aio.AsyncControl(limited.endpoint, job="j") as control:
            waiting = [asyncio.create_task(control.get(key, wait=True)) for key in "ab"]
            with Control(limited.endpoint, job="j") as other:
                await asyncio.to_thread(poll_until, lambda: find_used(other, "job-waiters") == 2)
                with pytest.raises(ah.LimitExceeded, match="2 waiting calls"):
                    await control.get("c", wait=True)
                other.put("a", b"1")
                assert await waiting[0] == b"1"
                waiting[0] = asyncio.create_task(control.get("c", wait=True))
                await asyncio.to_thread(poll_until, lambda: find_used(other, "job-waiters") == 2)
                other.put("b", b"2")
                other.put("c", b"3")
                assert await asyncio.gather(*waiting) == [b"3", b"2"]

    asyncio.run(wait())


def find_used(control: Control, name: str) -> int | None:
    return next(one.used for one in control.limits().limits if one.name == name)


def test_a_daemon_with_a_limit_that_is_none_does_not_start(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="there is no limit 'keys'; there are: memory"),
        run_daemon(tmp_path, "--limit", "keys=3"),
    ):
        pass


def test_a_log_written_under_larger_limits_is_read(tmp_path: Path) -> None:
    data_dir, runtime = tmp_path / "data", tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    with (
        run_daemon(runtime, "--data-dir", str(data_dir)) as daemon,
        Control(daemon.endpoint, job="j") as control,
    ):
        for key in "abcd":
            control.put(key, bytes(_MIB))
    with (
        run_daemon(runtime, "--data-dir", str(data_dir), "--limit", "job-keys=2") as daemon,
        Control(daemon.endpoint, job="j") as control,
    ):
        assert control.count() == 4
        with pytest.raises(ah.LimitExceeded, match="job j has 4 keys"):
            control.put("e", b"")
        assert control.delete_prefix("") == 4
        control.put("e", b"")
