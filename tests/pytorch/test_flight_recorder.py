"""Dumps readable for PyTorch's flight-recorder tool, of sound and of failed programs."""

import argparse
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.distributed.flight_recorder.fr_trace import main

import allhands as ah
import allhands.torch
from support.torch.ranks import on_ranks, run_ranks


def read(folder: Path) -> Any:
    """Return the output of PyTorch's tool for the dumps of all ranks."""
    arguments: argparse.Namespace = JobConfig().parse_args([str(folder)])
    details, version = read_dir(arguments)
    return build_db(details, arguments, version)


def calls(size: int) -> None:
    """Make every call known to the tool."""
    rank = dist.get_rank()
    x, every = torch.ones(4), torch.ones(4 * size)
    each = [torch.ones(4) for _ in range(size)]
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.reduce(x, 1)
    dist.all_gather(each, x)
    dist.all_gather_single(every, x)
    dist.reduce_scatter(x, each)
    dist.reduce_scatter_single(x, every)
    dist.all_to_all(each, [x] * size)
    dist.all_to_all_single(every, every.clone())
    dist.gather(x, each if rank == 0 else None)
    dist.scatter(x, each if rank == 0 else None)
    dist.barrier()
    dist.monitored_barrier()
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(every)


def test_pytorchs_tool_matches_the_calls_of_all_ranks(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        part = dist.new_group([0, 2], group_desc="ends")
        calls(3)
        if rank != 1:
            dist.all_reduce(torch.ones(2), group=part)
        if rank:
            (dist.send if rank == 1 else dist.recv)(torch.ones(1), 3 - rank)
        written = allhands.torch.dump_flight_recorder(str(tmp_path / "trace_"))
        assert written == tmp_path / f"trace_{rank}"

    run_ranks(3, body)
    found = read(tmp_path)
    assert [one.pass_check for one in found.collectives] == [True] * 15
    assert {one.type_of_mismatch for one in found.collectives} == {None}
    assert len(found.ncclcalls) == 14 * 3 + 2
    assert {(one.desc, one.size) for one in found.groups} == {("default_pg", 3), ("ends", 2)}
    names = [one.collective_name for one in found.collectives]
    assert names[:3] == ["gloo:all_reduce", "gloo:broadcast", "gloo:reduce"]
    main([str(tmp_path), "-o", str(tmp_path / "database")])  # as it is called by people
    assert (tmp_path / "database").stat().st_size > 0


def test_pytorchs_tool_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if rank != 2:
            with pytest.raises(ah.CollectiveTimeout):
                dist.all_reduce(torch.ones(2))
        allhands.torch.dump_flight_recorder(str(tmp_path / "trace_"))
        store.set(f"dumped {rank}", "")
        store.wait([f"dumped {one}" for one in range(3)], timedelta(seconds=20))

    run_ranks(3, body, timeout=1.0)
    good, bad = read(tmp_path).collectives
    assert good.missing_ranks is None
    assert (bad.collective_name, bad.collective_seq_id) == ("gloo:all_reduce", 2)
    assert bad.missing_ranks == {2}
    assert bad.collective_state in ("started", "scheduled")


def test_pytorchs_tool_sees_calls_that_are_not_alike(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        with pytest.raises(ah.CollectiveMismatch):
            dist.all_reduce(torch.ones(2 + rank))
        allhands.torch.dump_flight_recorder(str(tmp_path / "trace_"))

    run_ranks(2, body)
    [bad] = read(tmp_path).collectives
    assert not bad.pass_check
    assert "SIZE_OR_SYNTAX_MISMATCH" in str(
        [str(one.type_of_mismatch) for one in bad.mismatch_collectives.values()]
    )


@on_ranks(1)
def test_a_dump_says_where_and_when_calls_were_made_and_needs_a_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    with pytest.raises(ValueError, match="TORCH_FR_DUMP_TEMP_FILE"):
        allhands.torch.dump_flight_recorder()
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "new" / "rank_"))
    said = pickle.loads(allhands.torch.dump_flight_recorder().read_bytes())  # noqa: S301
    assert [one["collective_seq_id"] for one in said["entries"]] == [1, 2, 3]
    one = said["entries"][-1]
    assert one["signature"] == "all_reduce(float32[8], SUM)"
    assert one["input_sizes"] == [[32]]
    assert one["time_created_ns"] <= one["time_discovered_completed_ns"]
    assert one["frames"][0]["line"] > 0
    assert said["pg_status"]["0"]["last_completed_collective"] == 3


def test_another_backend_has_a_recorder_of_its_own() -> None:
    def body(rank: int) -> None:
        with pytest.raises(RuntimeError, match="not of 'gloo'"):
            allhands.torch.dump_flight_recorder("x")

    run_ranks(1, body, backend="gloo")
