"""Environment variables of a launched rank."""

import pytest

from allhands.config import derive_port
from allhands.launcher.environment import JobEndpoint, Placement, make_rank_environment

PAIR = Placement(2)
RENDEZVOUS = JobEndpoint("127.0.0.1", 7070, "job", "secret")


def environment(
    rank: int = 0,
    base: dict[str, str] | None = None,
    placement: Placement = PAIR,
    rendezvous: JobEndpoint = RENDEZVOUS,
) -> dict[str, str]:
    return make_rank_environment(
        base or {},
        placement,
        rendezvous,
        rank=rank,
        launch="name",
        master_address="10.0.0.1",
        master_port=29500,
    )


def test_a_rank_gets_what_torchrun_sets_and_where_to_meet() -> None:
    assert environment(rank=5, placement=Placement(2, nodes=3, node=2)) == {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "ALLHANDS_URL": "ah://127.0.0.1:7070/job",
        "ALLHANDS_JOB": "job",
        "ALLHANDS_TOKEN": "secret",
        "ALLHANDS_LAUNCH": "name",
        "ALLHANDS_RESTART_COUNT": "0",
    }


def test_the_ranks_of_all_nodes_make_up_the_world() -> None:
    nodes = [Placement(3, nodes=2, node=node) for node in range(2)]
    assert [rank for node in nodes for rank in node.ranks] == list(range(6))


def test_the_users_own_variables_and_thread_count_are_kept() -> None:
    found = environment(base={"HOME": "/home/me", "OMP_NUM_THREADS": "8"})
    assert (found["HOME"], found["OMP_NUM_THREADS"]) == ("/home/me", "8")


def test_a_launch_within_a_rank_overrides_what_the_rank_was() -> None:
    outer = environment(rank=1)
    inner = environment(rank=0, base=outer, placement=Placement(1))
    assert (inner["RANK"], inner["WORLD_SIZE"]) == ("0", "1")


def test_secrets_for_another_coordinator_are_not_passed_on() -> None:
    base = {"ALLHANDS_TOKEN": "of another", "ALLHANDS_TLS_CA": "/of/another.pem"}
    found = environment(base=base, rendezvous=JobEndpoint("127.0.0.1", 7070, "job", None))
    assert not base.keys() & found.keys()


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert JobEndpoint("::1", 7070, "job", None).url == "ah://[::1]:7070/job"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((0,), "at least one rank"),
        ((1, 0), "at least one node"),
        ((1, 2, 2), "node ranks go from 0 to 1"),
        ((1, 2, -1), "node ranks go from 0 to 1"),
    ],
)
def test_an_impossible_placement_is_refused(arguments: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Placement(*arguments)


def test_the_port_that_nodes_agree_on_is_none_that_the_system_hands_out() -> None:
    ports = [derive_port(f"job-{number}") for number in range(100)]
    assert ports == [derive_port(f"job-{number}") for number in range(100)]
    assert all(1024 < port < 32768 for port in ports)
    assert len(set(ports)) > 90
