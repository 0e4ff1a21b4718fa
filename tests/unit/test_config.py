"""Configuration of a process from arguments and environment: rank and rendezvous."""

from collections.abc import Mapping
from typing import Any

import pytest

from allhands.config import (
    Daemon,
    FileRendezvous,
    HostedByRank0,
    SingleProcess,
    WorldConfig,
    resolve_config,
)

URL = {"ALLHANDS_URL": "ah://c:7070/train"}
RANKS = {"RANK": "1", "WORLD_SIZE": "4"}
MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN = {
    **RANKS,
    **MASTER,
    "LOCAL_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-1@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
}


def complaint(environ: Mapping[str, str] = {}, **arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        resolve_config(environ, **arguments)
    return str(caught.value)


# ---------------------------------------------------------------- who


def test_a_process_that_nobody_launched_is_a_world_of_one() -> None:
    assert resolve_config({}) == WorldConfig(
        SingleProcess(), "default", rank=0, world_size=1, timeout=30.0
    )


def test_said_to_be_the_only_one_it_is_a_world_of_one_as_well() -> None:
    for environ in ({"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "1"}):
        assert resolve_config(environ) == resolve_config({})


@pytest.mark.parametrize("launched", [RANKS, OPEN_MPI, MPICH, SLURM])
def test_every_launcher_says_rank_and_size(launched: Mapping[str, str]) -> None:
    found = resolve_config({**launched, **URL})
    assert (found.rank, found.world_size) == (1, 4)


def test_an_indexed_job_says_the_rank_alone() -> None:
    found = resolve_config({"JOB_COMPLETION_INDEX": "3", **URL})
    assert (found.rank, found.world_size) == (3, 0)


def test_an_indexed_job_says_its_size_as_a_variable() -> None:
    found = resolve_config({"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", **URL})
    assert (found.rank, found.world_size) == (3, 4)
    assert resolve_config({"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", **MASTER}).rank == 3


def test_a_size_without_a_rank_lets_the_coordinator_assign_one() -> None:
    found = resolve_config({"WORLD_SIZE": "4", **URL})
    assert (found.rank, found.world_size) == (-1, 4)


def test_an_indexed_job_without_its_size_is_told_which_variable_says_it() -> None:
    text = complaint({"JOB_COMPLETION_INDEX": "3", **MASTER})
    assert "set WORLD_SIZE;" in text


def test_at_a_running_coordinator_both_may_be_left_open() -> None:
    found = resolve_config(URL)
    assert (found.rank, found.world_size) == (-1, 0)


def test_arguments_go_before_the_environment_one_by_one() -> None:
    assert resolve_config({**RANKS, **URL}, rank=3).rank == 3
    assert resolve_config({**RANKS, **URL}, rank=3).world_size == 4
    assert resolve_config({**RANKS, **URL}, world_size=2).world_size == 2
    assert resolve_config({**RANKS, **URL}, world_size=2).rank == 1


def test_the_own_and_torchruns_names_go_before_those_of_other_launchers() -> None:
    everybody = {"JOB_COMPLETION_INDEX": "9", **SLURM, **MPICH, **OPEN_MPI}
    assert resolve_config({**everybody, "RANK": "0", "WORLD_SIZE": "7", **URL}).world_size == 7
    assert resolve_config({**everybody, "OMPI_COMM_WORLD_RANK": "2", **URL}).rank == 2
    assert resolve_config({**SLURM, **MPICH, "PMI_RANK": "3", **URL}).rank == 3


@pytest.mark.parametrize(
    ("environ", "arguments", "text"),
    [
        ({"RANK": "one", **URL}, {}, "RANK must be a whole number, not 'one'"),
        ({**RANKS, "WORLD_SIZE": "", **URL}, {}, "WORLD_SIZE must be a whole number, not ''"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "x"}, {}, "OMPI_COMM_WORLD_SIZE must be a whole"),
        ({**RANKS, "RANK": "4", **URL}, {}, "rank 4 is not in a world of 4: ranks go from 0 to 3"),
        ({**RANKS, "RANK": "-2", **URL}, {}, "rank must be from 0 up, or -1 to be given one"),
        ({**RANKS, "WORLD_SIZE": "0", **URL}, {}, "world_size must be positive, not 0"),
        (URL, {"world_size": -7}, "world_size must be positive, not -7"),
        ({}, {"world_size": 0}, "world_size must be positive, not 0"),
        (URL, {"rank": -2}, "rank must be from 0 up, or -1 to be given one, not -2"),
        (URL, {"rank": 2, "world_size": 2}, "rank 2 is not in a world of 2"),
        (URL, {"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        (URL, {"timeout": -1.0}, "timeout must be a positive number of seconds"),
        (URL, {"timeout": float("nan")}, "timeout must be a positive number of seconds"),
        (URL, {"timeout": float("inf")}, "timeout must be a positive number of seconds"),
    ],
)
def test_nonsense_is_refused_with_the_reason(
    environ: Mapping[str, str], arguments: dict[str, Any], text: str
) -> None:
    assert text in complaint(environ, **arguments)


# ---------------------------------------------------------------- where


def test_a_running_coordinator_goes_before_every_other_place_of_the_environment() -> None:
    for environ in (RANKS, MASTER, TORCHRUN, OPEN_MPI, MPICH, SLURM):
        assert resolve_config({**environ, **URL}).rendezvous == Daemon("ah://c:7070/train")


@pytest.mark.parametrize(
    ("method", "place"),
    [
        ("ah://d:1/job", Daemon("ah://d:1/job")),
        ("tcp://d:1", HostedByRank0("d", 1)),
        ("tcp://[::1]:29500", HostedByRank0("::1", 29500)),
        ("file:///shared/note", FileRendezvous("/shared/note.0")),
    ],
)
def test_an_init_method_goes_before_the_environment(method: str, place: object) -> None:
    assert resolve_config({**TORCHRUN, **URL}, init_method=method).rendezvous == place


def test_env_is_the_default_init_method() -> None:
    for environ in (URL, TORCHRUN, {**RANKS, **MASTER}, {}):
        assert resolve_config(environ, init_method="env://") == resolve_config(environ)


def test_rank_zero_hosts_the_coordinator_at_the_masters_address() -> None:
    assert resolve_config({**RANKS, **MASTER}).rendezvous == HostedByRank0("node0", 29500)
    assert resolve_config({**SLURM, **MASTER}).rendezvous == HostedByRank0("node0", 29500)


def test_under_torchrun_the_masters_port_is_taken_and_the_ranks_gather() -> None:
    assert isinstance(resolve_config(TORCHRUN).rendezvous, FileRendezvous)


@pytest.mark.parametrize("launched", [TORCHRUN, OPEN_MPI, MPICH, SLURM])
def test_the_ranks_of_one_launch_gather_at_one_place_of_their_own(
    launched: dict[str, str],
) -> None:
    names = {name for name in launched if name.endswith(("RANK", "PROCID"))}
    places = {
        resolve_config(
            {**launched, **dict.fromkeys(names, str(rank))}, parent="mpirun 7"
        ).rendezvous
        for rank in range(4)
    }
    assert len(places) == 1
    assert resolve_config(launched, parent="mpirun 7", attempt=1).rendezvous not in places


@pytest.mark.parametrize("launched", [TORCHRUN, OPEN_MPI, MPICH])
def test_launches_by_different_processes_do_not_meet(launched: dict[str, str]) -> None:
    assert (
        resolve_config(launched, parent="mpirun 7").rendezvous
        != resolve_config(launched, parent="mpirun 8").rendezvous
    )


@pytest.mark.parametrize(
    ("launched", "name"),
    [
        (TORCHRUN, "TORCHELASTIC_RUN_ID"),
        (TORCHRUN, "TORCHELASTIC_RESTART_COUNT"),
        (TORCHRUN, "MASTER_PORT"),
        (OPEN_MPI, "PMIX_NAMESPACE"),
        (SLURM, "SLURM_JOB_ID"),
        (SLURM, "SLURM_STEP_ID"),
    ],
)
def test_launches_that_say_who_they_are_do_not_meet(launched: dict[str, str], name: str) -> None:
    assert resolve_config(launched).rendezvous != resolve_config({**launched, name: "9"}).rendezvous


def test_ranks_of_one_slurm_step_meet_although_each_has_a_parent_of_its_own() -> None:
    assert (
        resolve_config(SLURM, parent="slurmstepd 1").rendezvous
        == resolve_config(SLURM, parent="slurmstepd 2").rendezvous
    )


SPREAD = {**SLURM, "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[01-02]"}


def test_ranks_of_a_slurm_step_over_nodes_meet_on_its_first() -> None:
    found = [resolve_config({**SPREAD, "SLURM_PROCID": str(rank)}).rendezvous for rank in range(4)]
    assert len(set(found)) == 1
    assert isinstance(found[0], HostedByRank0)
    assert (found[0].host, found[0].spans_hosts) == ("n01", True)
    assert 20000 <= found[0].port < 30000
    other = resolve_config({**SPREAD, "SLURM_JOB_ID": "18"}).rendezvous
    assert isinstance(other, HostedByRank0)
    assert other.port != found[0].port


def test_what_slurm_says_of_the_step_goes_before_its_job() -> None:
    step = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n02", "SLURM_NTASKS_PER_NODE": "2"}
    assert isinstance(resolve_config({**SPREAD, **step}).rendezvous, FileRendezvous)


def test_a_master_or_a_coordinator_goes_before_the_nodes_of_slurm() -> None:
    assert resolve_config({**SPREAD, **MASTER}).rendezvous == HostedByRank0("node0", 29500)
    assert resolve_config({**SPREAD, **URL}).rendezvous == Daemon("ah://c:7070/train")


def test_nodes_that_slurm_does_not_name_are_asked_for() -> None:
    text = complaint({**SLURM, "SLURM_NNODES": "2"})
    assert "srun has spread 4 ranks over 2 nodes" in text
    assert "MASTER_ADDR" in text


def test_a_file_gives_every_attempt_a_note_of_its_own() -> None:
    places = [
        resolve_config(RANKS, init_method="file:///s/x", attempt=at).rendezvous for at in range(2)
    ]
    assert places == [FileRendezvous("/s/x.0"), FileRendezvous("/s/x.1")]


@pytest.mark.parametrize(
    ("launched", "name", "launcher"),
    [
        (TORCHRUN, "LOCAL_WORLD_SIZE", "torchrun"),
        (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun"),
        (MPICH, "MPI_LOCALNRANKS", "mpirun"),
        (SLURM, "SLURM_NTASKS_PER_NODE", "srun"),
    ],
)
def test_ranks_on_several_hosts_are_told_to_start_a_coordinator(
    launched: dict[str, str], name: str, launcher: str
) -> None:
    text = complaint({**launched, name: "2"})
    assert f"{launcher} has spread 4 ranks over several hosts, 2 on this one" in text
    assert "`allhands serve`" in text
    assert resolve_config({**launched, name: "2", **URL}).rendezvous == Daemon(URL["ALLHANDS_URL"])


@pytest.mark.parametrize(
    ("environ", "arguments", "who"),
    [
        (RANKS, {}, "rank 1 of 4"),
        ({}, {"world_size": 2}, "this rank of 2"),
        ({"WORLD_SIZE": "2"}, {}, "this rank of 2"),
        ({}, {"rank": 1}, "rank 1"),
        ({"JOB_COMPLETION_INDEX": "0"}, {}, "rank 0"),
        ({"JOB_COMPLETION_INDEX": "2"}, {}, "rank 2"),
        ({"RANK": "0"}, {}, "rank 0"),
        ({**RANKS, "MASTER_ADDR": "node0"}, {}, "rank 1 of 4"),
    ],
)
def test_a_rank_of_many_that_knows_no_place_is_never_alone(
    environ: Mapping[str, str], arguments: dict[str, Any], who: str
) -> None:
    text = complaint(environ, **arguments)
    assert text.startswith(f"{who} does not know where to meet the others: set ALLHANDS_URL")


@pytest.mark.parametrize("method", ["tcp://h:1", "file:///s/x", "env://"])
@pytest.mark.parametrize("known", [{}, {"rank": 0}, {"world_size": 2}])
def test_where_rank_zero_hosts_everybody_must_know_their_rank(
    method: str, known: dict[str, Any]
) -> None:
    text = complaint(MASTER, init_method=method, **known)
    assert "rank and world_size are needed where rank 0 hosts the coordinator" in text


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("http://c:1", "init_method 'http://c:1' is not known; give ah://host:port/job"),
        ("c:1", "init_method 'c:1' is not known"),
        ("tcp://c", "tcp:// wants a host and a port"),
        ("tcp://:29500", "tcp:// wants a host and a port"),
        ("tcp://c:0", "tcp:// wants a host and a port"),
        ("tcp://c:65536", "Port out of range"),
        ("file://note", "file:// wants an absolute path"),
        ("file://shared/note", "file:// wants an absolute path"),
        ("file:///", "file:// wants an absolute path"),
    ],
)
def test_a_malformed_init_method_is_refused_with_what_to_write(method: str, text: str) -> None:
    assert text in complaint(RANKS, init_method=method)


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_master_port_that_is_none_is_refused(port: str) -> None:
    text = complaint({**RANKS, **MASTER, "MASTER_PORT": port})
    assert text == f"MASTER_PORT must be from 1 to 65535, not {port}"


# ---------------------------------------------------------------- what else


def test_the_job_is_that_of_the_argument_else_the_url_else_the_environment() -> None:
    environ = {**URL, "ALLHANDS_JOB": "environment"}
    assert resolve_config(environ, job="argument").job == "argument"
    assert resolve_config(environ).job == "train"
    assert resolve_config({**environ, "ALLHANDS_URL": "ah://c:1/"}).job == "environment"
    assert resolve_config({"ALLHANDS_URL": "ah://c:1"}).job == "default"
    assert resolve_config(environ, init_method="ah://d:1/other").job == "other"


def test_token_and_authority_are_those_of_the_arguments_else_the_environment() -> None:
    environ = {**URL, "ALLHANDS_TOKEN": "t", "ALLHANDS_TLS_CA": "/ca"}
    found = resolve_config(environ)
    assert (found.token, found.tls_ca) == ("t", "/ca")
    found = resolve_config(environ, token="u", tls="/other")
    assert (found.token, found.tls_ca) == ("u", "/other")
    found = resolve_config({**URL, "ALLHANDS_TOKEN": "", "ALLHANDS_TLS_CA": ""})
    assert (found.token, found.tls_ca) == (None, None)


def test_the_certificate_of_what_rank_zero_hosts_is_in_the_environment() -> None:
    found = resolve_config({**URL, "ALLHANDS_TLS_CERT": "/cert", "ALLHANDS_TLS_KEY": "/key"})
    assert (found.tls_cert, found.tls_key) == ("/cert", "/key")
    assert (resolve_config(URL).tls_cert, resolve_config(URL).tls_key) == (None, None)


def test_listening_without_tls_must_be_asked_for_in_so_many_words() -> None:
    assert resolve_config({**URL, "ALLHANDS_INSECURE": "1"}).insecure
    assert not any(
        resolve_config({**URL, "ALLHANDS_INSECURE": said}).insecure for said in ("", "0", "no")
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ALLHANDS_PORT_RANGE", "30000", "must be LOW-HIGH"),
        ("ALLHANDS_PORT_RANGE", "a-b", "must be LOW-HIGH"),
        ("ALLHANDS_PORT_RANGE", "30009-30000", "the lower port first"),
        ("ALLHANDS_PORT_RANGE", "0-9", "from 1-65535"),
        ("ALLHANDS_PORT_RANGE", "65000-70000", "from 1-65535"),
        ("ALLHANDS_ADVERTISE", "host:4000", "a host alone"),
        ("ALLHANDS_ADVERTISE", "ah://host", "a host alone"),
        ("ALLHANDS_ADVERTISE", "two words", "a host alone"),
        ("ALLHANDS_ADVERTISE", "0.0.0.0", "one address that peers can dial"),
        ("ALLHANDS_ADVERTISE", "::", "one address that peers can dial"),
    ],
)
def test_addresses_that_make_no_sense_are_refused(name: str, text: str, said: str) -> None:
    found = complaint({**URL, name: text})
    assert found.startswith(name)
    assert said in found


def test_where_peers_reach_this_rank_is_in_the_environment() -> None:
    found = resolve_config(
        {
            **URL,
            "ALLHANDS_ADVERTISE": "fe80::1",
            "ALLHANDS_INTERFACE": "ib0",
            "ALLHANDS_PORT_RANGE": "30000-30009",
        }
    )
    assert (found.advertise, found.interface) == ("fe80::1", "ib0")
    assert found.ports == range(30000, 30010)
    assert resolve_config({**URL, "ALLHANDS_ADVERTISE": "node-7.site"}).advertise == "node-7.site"
    assert resolve_config(URL).ports is None


def test_the_rest_is_passed_on() -> None:
    found = resolve_config(URL, timeout=7.5, label="trainer", heartbeat_window=2.0)
    assert (found.timeout, found.label, found.heartbeat_window) == (7.5, "trainer", 2.0)


def test_the_next_world_at_one_address_is_a_job_of_its_own() -> None:
    at = {"init_method": "tcp://host:1", "rank": 0, "world_size": 2}
    names = [resolve_config({}, **at, attempt=attempt).job for attempt in range(3)]  # type: ignore[arg-type]
    assert names == ["default", "default.1", "default.2"]
