"""Files of the MPI of allhands, opened by real ranks; mpi4py's own tests run in `make test-mpi`."""

from pathlib import Path

import pytest

from programs import mpi_files as program
from support.ranks.processes import Job, Program


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("run", [program.share_pointers, program.keep_views])
def test_files_are_what_all_ranks_see(job: Job, tmp_path: Path, size: int, run: Program) -> None:
    _end_well(job, size, run, tmp_path)


def test_what_fails_on_a_rank_fails_on_all(job: Job, tmp_path: Path) -> None:
    _end_well(job, 3, program.fail_alone, tmp_path)


def test_ranks_on_several_hosts_have_no_pointer_of_all(job: Job, tmp_path: Path) -> None:
    _end_well(job, 2, program.share_nothing, tmp_path)


def _end_well(job: Job, size: int, run: Program, folder: Path) -> None:
    for rank in job(size, run, str(folder)):
        rank.expect("done")
        assert rank.ended() == 0, "".join(rank.errors)
