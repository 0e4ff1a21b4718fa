"""A real coordinator, and members of a job there that say what they are told."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from allhands.control import Control
from allhands.testing.daemon import Daemon, running_daemon
from allhands.testing.raw_member import RawMember
from allhands_proto.v1 import coordinator_pb2 as wire

_jobs = itertools.count(1)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that the tests share; each brings its own job."""
    with running_daemon(tmp_path_factory.mktemp("runtime")) as running:
        yield running


@pytest.fixture
def job_name() -> str:
    """A job's name that no other test uses."""
    return f"job-{next(_jobs)}"


@pytest.fixture
def control(daemon: Daemon, job_name: str) -> Iterator[Control]:
    """A client of the daemon, for the test's job."""
    with Control(daemon.endpoint, job=job_name, timeout=10) as made:
        yield made


@pytest.fixture
def join_job(daemon: Daemon, job_name: str) -> Iterator[Callable[[int, int], RawMember]]:
    """Give a function that joins the test's job with a rank and a world size."""
    made: list[RawMember] = []

    def join(rank: int, world_size: int) -> RawMember:
        request = wire.Join(
            job=job_name,
            rank=rank,
            world_size=world_size,
            host="node-a",
            pid=4000 + rank,
            port=5000 + rank,
            heartbeat_window=60,  # they beat only when they are told to
            label=f"label-{rank}",
        )
        made.append(RawMember(daemon.endpoint, request))
        made[-1].hear("joined")
        return made[-1]

    yield join
    for member in made:
        member.close()
