"""Groups across hosts: two network namespaces, shared memory within each."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from allhands.bench.launchers import BenchHost
from programs import hosts as programs
from programs.deaths import call_forever
from support.ranks.processes import Cluster, Process
from support.ranks.two_hosts import CREDENTIALS, PORT, Span, Spread, pid_of


@pytest.fixture
def serve(cluster: Cluster, hosts: tuple[BenchHost, BenchHost]) -> Callable[[str], Process]:
    """Return a function to start a daemon on host a at a named address."""

    def start(address: str) -> Process:
        options = ("--listen", f"{address}:{PORT}", "--insecure")
        return cluster.serve(*options, holder=pid_of(hosts[0]), ALLHANDS_TOKEN="sesame")

    return start


def explained(ranks: list[Process]) -> dict[str, set[str]]:
    """Return how each operation was carried out, if not over links as a whole."""
    said: dict[str, set[str]] = {}
    for rank in ranks:
        for what, text in rank.expect("said")["all"]:
            if "hosts of" in text:
                said.setdefault(what, set()).add(text.partition(", where")[0])
    for rank in ranks:
        assert rank.ended() == 0, rank.errors
    return said


@pytest.mark.parametrize("places", ["aabb", "abab"])
def test_even_hosts_share_memory_inside_and_rings_between(span: Span, places: str) -> None:
    said = explained(span(places, programs.call_every_operation))
    assert said["all_reduce"] == {
        "2 hosts of 2 ranks: shared memory within hosts, between them doubling over links",
        "2 hosts of 2 ranks: all_reduce in shared memory, all_reduce across hosts, "
        "reduce_scatter in shared memory, all_gather in shared memory",
    }
    for what in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
        assert all(
            text.startswith("2 hosts of 2 ranks: ") and "shared memory" in text
            for text in said[what]
        ), said[what]


def test_uneven_hosts_let_one_rank_each_speak(span: Span) -> None:
    said = explained(span("aab", programs.call_every_operation))
    assert said["all_reduce"] == {
        "2 hosts of 2/1 ranks: shared memory within hosts, between them doubling over links",
        "2 hosts of 2/1 ranks: reduce in shared memory, all_reduce across hosts, "
        "broadcast in shared memory",
        "2 hosts of 2/1 ranks: reduce in shared memory, broadcast in shared memory",
        "2 hosts of 2/1 ranks: all_reduce across hosts",
    }
    within = "2 hosts of 2/1 ranks: shared memory within hosts, between them "
    assert all(text.startswith(within) for text in said["all_gather"]), said["all_gather"]
    assert said["barrier"] == {within + "dissemination over links"}


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize("length", [2, 1 << 20, 4 << 20])
def test_a_killed_rank_is_named_on_both_hosts(span: Span, length: int, victim: int) -> None:
    ranks = span("aabb", call_forever, length)
    pids = [rank.expect("running")["pid"] for rank in ranks]
    os.kill(pids[victim], signal.SIGKILL)
    for survivor in (rank for at, rank in enumerate(ranks) if at != victim):
        told = survivor.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [victim]
        assert f"pid {pids[victim]}" in told["text"]
        assert told["op"] is None or told["op"] == "all_reduce"


@pytest.mark.parametrize("length", [8_000, 1 << 20, 4 << 20])
def test_a_rank_that_does_not_come_is_named_on_both_hosts(span: Span, length: int) -> None:
    ranks = span("aabb", programs.come_late, length, 1.5, 0.5)
    for rank in (0, 2, 3):
        told = ranks[rank].expect("late")
        assert told["error"] == "CollectiveTimeout", told
        assert (told["op"], told["seq"], told["ranks"]) == ("all_reduce", 1, [1]), told
        assert "(step 7)" in told["text"]
    ranks[1].say()
    assert ranks[1].expect("late")["error"] == "CollectiveTimeout"
    for rank in (0, 2, 3):
        ranks[rank].say()
    for rank in ranks:
        assert rank.expect("sum")["right"]
        assert rank.ended() == 0


@pytest.mark.parametrize("length", [8_000, 1 << 20, 4 << 20])
def test_who_comes_when_its_neighbour_has_given_the_call_up_is_told(
    span: Span, length: int
) -> None:
    ranks = span("aabb", programs.come_late, length, 0.5, 40)
    for rank in (0, 2, 3):
        assert ranks[rank].expect("late")["error"] == "CollectiveTimeout"
    ranks[1].say()
    told = ranks[1].expect("late")
    assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [0]), told
    assert told["seconds"] < 20  # of 40
    assert "rank 0 (host allhands-a" in told["text"]
    assert "gave it up" in told["text"]
    for rank in (0, 2, 3):
        ranks[rank].say()
    for rank in ranks:
        assert rank.expect("sum")["right"]
        assert rank.ended() == 0


@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize("what", programs.DIFFERENT)
def test_different_calls_are_told_apart_on_both_hosts(span: Span, what: str, odd: int) -> None:
    ranks = span("aabb", programs.call_different, what, odd)
    texts = []
    for rank in ranks:
        told = rank.expect("different")
        assert told["error"] == "CollectiveMismatch", told
        texts.append(told["text"].replace(" (this one)", "").split(": ", 1)[1])
        assert "#1 of group 'world'" in told["text"]
    assert len(set(texts)) == 1, texts
    for rank in ranks:
        rank.expect("sum")
        assert rank.ended() == 0


def test_ranks_on_different_hosts_measure_their_links_and_agree(span: Span) -> None:
    ranks = span("aab", programs.measure_links)
    texts = {text for rank in ranks for text in rank.expect("said")["texts"]}
    costs = {text.partition("between them ")[2] or text for text in texts}
    assert len(costs) == 1, texts
    assert re.fullmatch(
        r"doubling over links, where a message takes \d+ us and streams run at \d+ MB/s",
        costs.pop(),
    )
    for rank in ranks:
        assert rank.ended() == 0


# ---------------------------------------------------------------- how a world over hosts begins

MASTER = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": PORT}
BY_TORCH = [{**MASTER, "RANK": str(rank)} for rank in range(2)]
BY_SLURM = [
    {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "10.77.0.[1-2]",
        "SLURM_JOB_ID": PORT,
        "SLURM_STEP_ID": "0",
    }
    for rank in range(2)
]


@pytest.mark.parametrize("launched", [BY_TORCH, BY_SLURM])
@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ({}, "no token (ALLHANDS_TOKEN) and no TLS (ALLHANDS_TLS_CA)"),
        ({"ALLHANDS_INSECURE": "1"}, "there is no token (ALLHANDS_TOKEN)"),
        ({"ALLHANDS_TOKEN": "sesame"}, "there is no TLS (ALLHANDS_TLS_CA)"),
    ],
)
def test_every_rank_is_told_at_once_what_a_world_over_hosts_needs(
    spread: Spread, launched: list[dict[str, str]], given: dict[str, str], absent: str
) -> None:
    ranks = spread("ab", ({**one, **given} for one in launched), programs.begin)
    told = [rank.expect("begun") for rank in ranks]
    assert [one["error"] for one in told] == ["ValueError", "ValueError"], told
    texts = {one["text"] for one in told}
    assert len(texts) == 1, texts
    [text] = texts
    assert absent in text
    for name in ("TOKEN", "INSECURE=1", "TLS_DIR", "TLS_CA", "TLS_CERT", "TLS_KEY", "URL"):
        assert f"ALLHANDS_{name}" in text, text
    assert "`allhands token init tls --host 10.77.0.1`" in text


@pytest.mark.parametrize("launched", [BY_TORCH, BY_SLURM])
def test_a_world_over_hosts_begins_where_every_rank_has_the_token(
    spread: Spread, launched: list[dict[str, str]]
) -> None:
    ranks = spread("ab", ({**one, **CREDENTIALS} for one in launched), programs.begin)
    assert [rank.expect("begun").get("sum") for rank in ranks] == [[2.0] * 3] * 2


@pytest.mark.parametrize("token", ["other", ""])
def test_who_waits_is_told_where_a_token_was_refused(
    spread: Spread, serve: Callable[[str], Process], token: str
) -> None:
    serve("10.77.0.1")
    url = {**CREDENTIALS, "ALLHANDS_URL": f"ah://10.77.0.1:{PORT}/j"}
    waiting, wrong = spread(
        "ab",
        [
            {**url, "RANK": "0", "WORLD_SIZE": "2"},
            {**url, "RANK": "1", "WORLD_SIZE": "2", "ALLHANDS_TOKEN": token},
        ],
        programs.begin,
        5,
    )
    assert wrong.expect("begun")["error"] == "Unauthenticated"
    told = waiting.expect("begun")
    assert told["error"] == "CollectiveTimeout", told
    why = "wrong token" if token else "no token"
    assert "never joined: rank 1 (of 2 ranks)" in told["text"]
    assert f"refused by the coordinator: a process at 10.77.0.2 ({why})" in told["text"], told
    assert waiting.ended() == 0
    assert any(f"refused a process at 10.77.0.2: {why}" in line for line in waiting.errors)


def test_rank_zero_hosts_a_coordinator_with_a_certificate(spread: Spread, tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("10.77.0.1")
    bundle, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(str(bundle))
    made.cert_chain_pems[0].write_to_path(str(cert))
    made.private_key_pem.write_to_path(str(key))
    every = {"ALLHANDS_TOKEN": "sesame", "ALLHANDS_TLS_CA": str(bundle)}
    hosting = {"ALLHANDS_TLS_CERT": str(cert), "ALLHANDS_TLS_KEY": str(key)}
    environments = [{**BY_TORCH[0], **every, **hosting}, {**BY_TORCH[1], **every}]
    ranks = spread("ab", environments, programs.begin)
    told = [rank.expect("begun") for rank in ranks]
    assert [one.get("sum") for one in told] == [[2.0] * 3] * 2, told


def test_a_world_of_one_needs_no_credentials_at_its_masters_address(spread: Spread) -> None:
    [alone] = spread("a", [{**BY_TORCH[0], "WORLD_SIZE": "1"}], programs.begin)
    assert alone.expect("begun").get("sum") == [1.0] * 3


# ---------------------------------------------------------------- which addresses ranks are told


def _at(coordinator: str, rank: int, size: int = 2, **more: str) -> dict[str, str]:
    url = f"ah://{coordinator}:{PORT}/j"
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "ALLHANDS_URL": url}
    return {**CREDENTIALS, **place, **more}


def _met(ranks: list[Process]) -> list[str]:
    """Return the addresses of a complete world, without ports."""
    told = [rank.expect("met") for rank in ranks]
    size = len(ranks)
    assert [one["sum"] for one in told] == [[float(size)] * 3] * size, told
    assert len({tuple(one["addresses"]) for one in told}) == 1
    return list(told[0]["addresses"])


def test_a_rank_beside_the_daemon_is_reached_from_other_hosts(
    spread: Spread, serve: Callable[[str], Process]
) -> None:
    serve("0.0.0.0")
    addresses = _met(spread("ab", [_at("127.0.0.1", 0), _at("10.77.0.1", 1)], programs.meet))
    assert [one.rpartition(":")[0] for one in addresses] == ["10.77.0.1", "10.77.0.2"]


def test_the_address_is_that_of_the_interface_or_as_it_is_given(
    spread: Spread, serve: Callable[[str], Process]
) -> None:
    serve("0.0.0.0")
    environments = [
        _at("127.0.0.1", 0, ALLHANDS_INTERFACE="veth0", ALLHANDS_PORT_RANGE="31000-31001"),
        _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="10.77.0.2", ALLHANDS_PORT_RANGE="31000-31009"),
    ]
    ranks = spread("ab", environments, programs.meet)
    assert _met(ranks) == ["10.77.0.1:31000", "10.77.0.2:31000"]


def test_an_address_that_is_translated_on_the_way_is_advertised_all_the_same(
    spread: Spread, serve: Callable[[str], Process], hosts: tuple[BenchHost, BenchHost]
) -> None:
    """Host b is reached at 192.0.2.7, an address unknown to the host."""
    enter_a = hosts[0].command_prefix
    subprocess.run([*enter_a, "ip", "route", "add", "192.0.2.7", "via", "10.77.0.2"], check=True)
    nat = ["iptables", "-t", "nat", "-A", "PREROUTING", "-d", "192.0.2.7", "-j", "DNAT"]
    done = subprocess.run(
        [*hosts[1].command_prefix, *nat, "--to-destination", "10.77.0.2"],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("this kernel translates no addresses")
    serve("0.0.0.0")
    environments = [_at("127.0.0.1", 0), _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="192.0.2.7")]
    ranks = spread("ab", environments, programs.meet)
    assert [one.rpartition(":")[0] for one in _met(ranks)] == ["10.77.0.1", "192.0.2.7"]


def test_an_address_that_nobody_reaches_is_named_with_what_was_tried(
    spread: Spread, serve: Callable[[str], Process]
) -> None:
    serve("0.0.0.0")
    environments = [
        _at("127.0.0.1", 0),
        _at("10.77.0.1", 1, ALLHANDS_ADVERTISE="10.77.0.1", ALLHANDS_PORT_RANGE="31100-31101"),
    ]
    ranks = spread("ab", environments, programs.fail_to_meet)
    told = [rank.expect("begun") for rank in ranks]
    assert any("cannot connect to 10.77.0.1:3110" in one["text"] for one in told), told
    assert any("over gRPC" in one["text"] for one in told), told


def test_ranks_take_the_address_of_the_daemon_that_their_host_reaches(
    spread: Spread, serve: Callable[[str], Process]
) -> None:
    """One address is a name without an address, one is of a host that is not there."""
    serve("0.0.0.0")
    others = f"no-such-host.invalid:{PORT},10.77.0.9:{PORT}"
    environments = [_at(f"{others},127.0.0.1", 0), _at(f"{others},10.77.0.1", 1)]
    addresses = _met(spread("ab", environments, programs.meet))
    assert [one.rpartition(":")[0] for one in addresses] == ["10.77.0.1", "10.77.0.2"]


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_ranks_of_two_hosts_meet_over_ipv6(
    cluster: Cluster, spread: Spread, hosts: tuple[BenchHost, BenchHost], backend: str
) -> None:
    for number, host in enumerate(hosts, 1):
        add = ["ip", "-6", "addr", "replace", f"fd77::{number}/64", "dev", "veth0", "nodad"]
        done = subprocess.run([*host.command_prefix, *add], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip("this kernel has no IPv6")
    options = ("--listen", f"[fd77::1]:{PORT}", "--insecure")
    cluster.serve(*options, holder=pid_of(hosts[0]), ALLHANDS_TOKEN="sesame")
    environments = [_at("[fd77::1]", rank, ALLHANDS_BACKEND=backend) for rank in range(2)]
    addresses = _met(spread("ab", environments, programs.meet))
    assert [one.rpartition(":")[0] for one in addresses] == ["[fd77::1]", "[fd77::2]"]
