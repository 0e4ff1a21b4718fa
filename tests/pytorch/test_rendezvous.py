"""Where the ranks of torch.distributed meet: by URL, by environment, through a store."""

import ctypes
import gc
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from allhands.bench import netns
from allhands.errors import StoreTimeout
from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.torch.rendezvous.store import Store
from programs import torch_launched
from support.ranks.addresses import address_beyond_loopback, free_port
from support.ranks.launchers import COMMAND, as_script
from support.torch.ranks import RanksFailed, run_ranks

_OWN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ALLHANDS_URL", "TORCHELASTIC_RUN_ID")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with run_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def known(daemon: DaemonProcess) -> dict[str, str]:
    """Return the ranks' environment variables for the daemon."""
    return {"XDG_RUNTIME_DIR": daemon.environ["XDG_RUNTIME_DIR"]}


def _url(daemon: DaemonProcess, job: str) -> str:
    return f"ah://127.0.0.1:{daemon.notice.port}/{job}"


def _sum(rank: int) -> float:
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    return float(x[0])


def _by_url(url: str, world_size: int) -> Callable[[int], Any]:
    """Join by a URL with ranks; return the outcome."""

    def body(rank: int) -> Any:
        dist.init_process_group("allhands", init_method=url, rank=rank, world_size=world_size)
        job = dist.group.WORLD.world.job
        told = _sum(rank), dist.get_rank(), dist.get_world_size(), job
        dist.destroy_process_group()
        return told

    return body


def test_p118_ranks_meet_at_a_coordinators_url(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    body = _by_url(_url(daemon, "url"), 3)
    told = run_ranks(3, body, init=False, environment=known)
    assert told == [(6.0, rank, 3, "url") for rank in range(3)]


def test_a_coordinator_gives_ranks_to_those_who_bring_none(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    def body(_: int) -> int:
        dist.init_process_group("allhands", init_method=_url(daemon, "given"), world_size=3)
        assert _sum(dist.get_rank()) == 6.0
        rank = dist.get_rank()
        dist.destroy_process_group()
        return rank

    assert sorted(run_ranks(3, body, init=False, environment=known)) == [0, 1, 2]


def test_p116_the_process_leaves_and_joins_again(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    def body(rank: int) -> list[float]:
        return [_by_url(_url(daemon, "again"), 2)(rank)[0] for _ in range(3)]

    assert run_ranks(2, body, init=False, environment=known) == [[3.0] * 3] * 2


@pytest.mark.parametrize("method", ["env", "tcp"])
def test_p116_ranks_that_pytorchs_store_brings_together_do_so_again(method: str) -> None:
    port = free_port()

    def body(rank: int) -> list[float]:
        os.environ.update(RANK=str(rank), MASTER_PORT=str(port))
        url = {"env": "env://", "tcp": f"tcp://127.0.0.1:{port}"}[method]
        return [_by_url(url, 2)(rank)[0] for _ in range(2)]

    told = run_ranks(2, body, init=False, environment={"MASTER_ADDR": "127.0.0.1"})
    assert told == [[3.0, 3.0]] * 2


def test_other_backends_meet_at_a_coordinators_url_too(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    def body(rank: int) -> list[Any]:
        url = _url(daemon, "gloo")
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
        gc.collect()  # nobody in Python holds the store
        told = [_sum(rank)]
        ours = dist.new_group([0, 1], backend="allhands")
        theirs = dist.new_group([0, 1])
        for group in (ours, theirs):
            x = torch.ones(2)
            dist.all_reduce(x, group=group)
            told.append(float(x[0]))
        told.append(dist.get_backend(ours))
        dist.destroy_process_group()
        return told

    told = run_ranks(2, body, init=False, environment=known)
    assert told == [[3.0, 2.0, 2.0, "allhands"]] * 2


def test_the_keys_of_the_job_are_the_store_that_ranks_have_met_by(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    def body(rank: int) -> bytes:
        url = _url(daemon, "keys")
        store, found, size = next(dist.rendezvous(url, rank, 2))
        assert (found, size) == (rank, 2)
        if rank == 0:
            store.set("said", "by rank 0")
        found = store.get("said")
        store.barrier("end", 2)
        return bytes(found)

    assert run_ranks(2, body, init=False, environment=known) == [b"by rank 0"] * 2
    assert "said" in daemon.run_command("kv", "ls", "keys").stdout


def test_ranks_meet_through_a_coordinators_store(
    daemon: DaemonProcess, known: dict[str, str]
) -> None:
    def body(rank: int) -> float:
        store = Store.connect(_url(daemon, "store"))
        dist.init_process_group("allhands", store=store, rank=rank, world_size=2)
        told = _sum(rank)
        dist.destroy_process_group()
        return told

    assert run_ranks(2, body, init=False, environment=known) == [3.0, 3.0]
    assert "world-" in daemon.run_command("status").stdout


@pytest.mark.parametrize("restarted", [False, True])
def test_p119_the_environment_names_the_coordinator(
    daemon: DaemonProcess, known: dict[str, str], restarted: bool
) -> None:
    job = f"environment-{restarted}"
    port = free_port()
    variables = {
        **known,
        "ALLHANDS_URL": _url(daemon, job),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        **({"TORCHELASTIC_RUN_ID": "run"} if restarted else {}),
    }

    def body(rank: int) -> tuple[float, str]:
        os.environ["RANK"] = str(rank)
        dist.init_process_group("allhands")
        told = _sum(rank), dist.group.WORLD.world.job
        dist.destroy_process_group()
        return told

    (first, found), second = run_ranks(2, body, init=False, environment=variables)
    assert second == (first, found) == (3.0, found)
    # What torchrun has started again must not be held up by what it has just ended.
    assert found.startswith(f"{job}-world-") if restarted else found == job


def test_p101_the_rank_within_the_host_comes_from_the_environment() -> None:
    def body(rank: int) -> tuple[int, int]:
        fallback = dist.get_node_local_rank(fallback_rank=7)
        with pytest.raises(RuntimeError, match="LOCAL_RANK"):
            dist.get_node_local_rank()
        os.environ["LOCAL_RANK"] = str(rank + 5)
        return fallback, dist.get_node_local_rank()

    assert run_ranks(2, body) == [(7, 5), (7, 6)]


def test_p001_meeting_by_the_environment_leaves_the_handlers_of_the_log_alone() -> None:
    port = free_port()

    def body(rank: int) -> tuple[int, int]:
        before = len(logging.getLogger().handlers)
        dist.init_process_group("allhands")
        told = before, len(logging.getLogger().handlers)
        dist.destroy_process_group()
        return told

    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    [(before, after)] = run_ranks(1, body, init=False, environment=alone)
    assert before == after


@pytest.mark.parametrize("method", ["file", "tcp", "ah"])
def test_p002_a_key_that_nobody_sets_is_waited_for_as_long_as_the_group_says(
    method: str, tmp_path: Path, daemon: DaemonProcess, known: dict[str, str]
) -> None:
    url = {
        "file": f"file://{tmp_path / 'store'}",
        "tcp": f"tcp://127.0.0.1:{free_port()}",
        "ah": _url(daemon, "patience"),
    }[method]

    def body(rank: int) -> float:
        limit = timedelta(seconds=1)
        dist.init_process_group("allhands", init_method=url, rank=0, world_size=1, timeout=limit)
        store = dist.distributed_c10d._get_default_store()
        begun = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?i)timeout"):
            store.get("nobody sets me")
        waited = time.monotonic() - begun
        dist.destroy_process_group()
        return waited

    [waited] = run_ranks(1, body, init=False, environment=known)
    assert 0.9 < waited < 3  # a coordinator answers a little before the caller gives up


@pytest.mark.parametrize("backend", ["allhands", "cpu:allhands", "cpu:allhands,cuda:allhands"])
def test_p106_a_group_knows_its_rank_its_size_and_its_name(backend: str) -> None:
    def body(rank: int) -> tuple[int, int, str]:
        world = dist.group.WORLD
        return world.rank(), world.size(), world.name()

    told = run_ranks(2, body, backend=backend)
    assert told == [(rank, 2, "allhands") for rank in range(2)]


def test_p098_a_string_of_backends_is_read_as_pytorch_reads_it() -> None:
    config = dist.distributed_c10d.BackendConfig
    both = config(dist.Backend("cpu:allhands,cuda:nccl")).get_device_backend_map()
    assert both == {"cpu": "allhands", "cuda": "nccl"}
    plain = config(dist.Backend("allhands")).get_device_backend_map()
    built_for = ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]
    assert plain == dict.fromkeys(built_for, "allhands")
    for wrong in ("cpu:allhands,cuda:allhands,", "cpu:allhands,cpu:gloo"):
        with pytest.raises(ValueError, match=r"(?i)invalid|duplicate"):
            config(dist.Backend(wrong))


def test_p098_a_backend_is_registered_once_however_often_it_is_asked_for() -> None:
    from allhands.torch import register

    register()
    register()
    assert dist.Backend("allhands") == "allhands"
    assert dist.is_backend_available("allhands")


# ---------------------------------------------------------------- what goes wrong


def test_a_url_that_makes_no_sense_is_refused_at_once() -> None:
    for url in ("ah://127.0.0.1", "ah://:1/job", "ah://127.0.0.1:1/job?colour=red"):
        with pytest.raises(ValueError, match="ah://"):
            next(dist.rendezvous(url, 0, 1))


def test_rank_0_says_which_ranks_did_not_come(tmp_path: Path) -> None:
    def body(rank: int) -> str:
        if rank == 2:
            return ""
        with pytest.raises(StoreTimeout) as caught:
            dist.init_process_group(
                "allhands",
                init_method=f"file://{tmp_path / 'store'}",
                rank=rank,
                world_size=3,
                timeout=timedelta(seconds=3),
            )
        return str(caught.value)

    first, second, _ = run_ranks(3, body, init=False)
    assert "ranks [2] of 3 did not come" in first
    assert "rank 1 waited 3 s for rank 0" in second


def test_one_world_after_another_meets_through_a_file_that_stays(tmp_path: Path) -> None:
    def body(rank: int) -> list[float]:
        store = dist.FileStore(str(tmp_path / "store"), -1)
        told = []
        for _ in range(2):
            dist.init_process_group("allhands", store=store, rank=rank, world_size=2)
            told.append(_sum(rank))
            dist.destroy_process_group()
        return told

    for _ in range(2):
        assert run_ranks(2, body, init=False) == [[3.0, 3.0]] * 2


def _two_hosts(folder: Path, host: str, **environment: str) -> list[Any]:
    """Meet by `env://` as ranks with unshared files do; rank 0 is at `host`."""
    port = free_port()

    def body(rank: int) -> tuple[float, str]:
        (folder / str(rank)).mkdir()
        os.environ["XDG_RUNTIME_DIR"] = str(folder / str(rank))
        os.environ["RANK"] = str(rank)
        limit = timedelta(seconds=20)
        dist.init_process_group("allhands", timeout=limit)
        told = _sum(rank), dist.group.WORLD.world.endpoint.address.host
        dist.destroy_process_group()
        return told

    variables = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": "2", **environment}
    return run_ranks(2, body, init=False, environment=variables)


def test_p119_ranks_of_two_containers_of_one_host_meet_with_a_token(tmp_path: Path) -> None:
    told = _two_hosts(tmp_path, "127.0.0.1", ALLHANDS_TOKEN="between-us")
    assert told == [(3.0, "127.0.0.1")] * 2


def test_without_a_token_they_are_told_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed) as caught:
        _two_hosts(tmp_path, "127.0.0.1")
    for outcome in caught.value.outcomes:
        assert outcome is not None
        assert "set the same ALLHANDS_TOKEN on all ranks" in outcome.error


def test_p119_ranks_in_two_networks_meet_at_the_address_of_rank_0(tmp_path: Path) -> None:
    port = free_port()  # of loopback here; nobody else listens in those namespaces

    def body(rank: int) -> tuple[float, str, str]:
        enter = hosts[rank].command_prefix
        pid = enter[enter.index("--target") + 1]
        for kind in ("net", "uts"):
            with open(f"/proc/{pid}/ns/{kind}") as space:
                assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0) == 0
        os.environ["RANK"] = str(rank)
        dist.init_process_group("allhands", timeout=timedelta(seconds=20))
        told = _sum(rank), dist.group.WORLD.world.endpoint.address.host, socket.gethostname()
        dist.destroy_process_group()
        return told

    try:
        with netns.open_two_hosts(None) as hosts:
            variables = {
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(port),
                "WORLD_SIZE": "2",
                "ALLHANDS_INSECURE": "1",
            }
            told = run_ranks(2, body, init=False, environment=variables)
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))
    (first, there, here), (second, same, elsewhere) = told
    assert first == second == 3.0
    assert there == same == hosts[0].address
    assert here != elsewhere


def test_p119_a_launch_of_this_package_is_the_job_that_torch_joins(tmp_path: Path) -> None:
    run = subprocess.run(
        [*COMMAND, "-n", "2", *as_script(torch_launched.show_job)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for rank in range(2):
        assert f"sum 2.0 local {rank} same job True" in run.stdout


def test_beyond_loopback_rank_0_hosts_only_where_it_is_told_to(tmp_path: Path) -> None:
    host = address_beyond_loopback()
    with pytest.raises(RanksFailed) as caught:
        _two_hosts(tmp_path, host)
    for outcome in caught.value.outcomes:
        assert outcome is not None
        assert "ALLHANDS_INSECURE=1" in outcome.error
        assert "ALLHANDS_URL" in outcome.error


def test_p119_ranks_of_two_hosts_meet_where_rank_0_is_reached(tmp_path: Path) -> None:
    host = address_beyond_loopback()
    told = _two_hosts(tmp_path, host, ALLHANDS_INSECURE="1")
    assert told == [(3.0, host)] * 2
