"""Commands with a job ask the coordinator of this user on this host that has it."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.embed import start_coordinator
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.testing.daemon import DaemonProcess, run_daemon

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonProcess]:
    """A daemon with the job `daemons`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with run_daemon(tmp_path) as running:
        _add_job(running.endpoint, "daemons")
        yield running


@pytest.fixture
async def embedded(daemon: DaemonProcess) -> AsyncIterator[list[str]]:
    """The URLs of two coordinators beside it, as of `allhands run`: jobs `first`, `second`; `both`.

    The job `daemons` is at the first one, too.
    """
    async with AsyncExitStack() as stack:
        urls = []
        for job in ("first", "second"):
            running = await start_coordinator()
            stack.push_async_callback(running.stop)
            endpoint = Endpoint(parse_url(running.url), running.token)
            for name in (job, "both", *(["daemons"] if job == "first" else [])):
                await asyncio.to_thread(_add_job, endpoint, name)
            urls.append(running.url)
        yield urls


def _add_job(endpoint: Endpoint, job: str) -> None:
    with Control(endpoint, job=job) as control:
        control.put("at", endpoint.address.url)


async def _run(daemon: DaemonProcess, *arguments: str) -> Done:
    return await asyncio.to_thread(daemon.run_command, *arguments)


async def test_a_job_is_found_wherever_it_is_and_at_the_daemon_first(
    daemon: DaemonProcess, embedded: list[str]
) -> None:
    places = {"first": embedded[0], "second": embedded[1], "daemons": daemon.notice.url}
    for job, url in places.items():
        assert (await _run(daemon, "kv", "get", job, "at")).stdout == url
    assert (await _run(daemon, "status", "second")).stdout.startswith("job second: ")


async def test_a_job_that_is_nowhere_fails_with_the_coordinators_that_were_asked(
    daemon: DaemonProcess, embedded: list[str]
) -> None:
    for command in ("status", "diagnose"):
        done = await _run(daemon, command, "nowhere")
        assert done.returncode == 1
        for url in (daemon.notice.url, *embedded):
            assert url in done.stderr
    assert (await _run(daemon, "kv", "put", "nowhere", "key", "value")).returncode == 0
    known = await _run(daemon, "status", "--coordinator", daemon.notice.url, "-o", "name")
    assert known.stdout.split() == ["daemons", "nowhere"], "a new job is the daemon's"


async def test_of_two_jobs_of_a_name_none_is_guessed(
    daemon: DaemonProcess, embedded: list[str]
) -> None:
    done = await _run(daemon, "abort", "both")
    assert done.returncode == 2
    assert "2 coordinators of yours" in " ".join(done.stderr.split())
    assert all(url in done.stderr for url in embedded)


async def test_no_other_coordinator_is_asked_where_one_is_named(
    daemon: DaemonProcess, embedded: list[str]
) -> None:
    done = await _run(daemon, "status", "first", "--coordinator", daemon.notice.url)
    assert done.returncode == 1
    assert embedded[0] not in done.stderr
    daemon.environ["ALLHANDS_URL"] = daemon.notice.url
    assert (await _run(daemon, "status", "first")).returncode == 1
