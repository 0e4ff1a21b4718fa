"""`allhands doctor --network` as the program of ranks on hosts that are network namespaces."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allhands.bench import netns
from programs import network_tests
from support.documents.output_fields import check_fields
from support.ranks.addresses import free_port
from support.ranks.launchers import Start, environment
from support.ranks.processes import Cluster
from support.ranks.routed_hosts import Routed, routed_hosts

COMMAND = (sys.executable, "-m", "allhands.cli.main", "doctor", "--network")
_SECONDS = 100.0


def measure(routed: Routed, tmp_path: Path, letters: str, *options: str) -> tuple[int, str]:
    """Run a rank on each host of the letters; return status and output of rank 0."""
    shared = {
        **environment(tmp_path),
        "WORLD_SIZE": str(len(letters)),
        "MASTER_ADDR": routed.hosts[letters[0]].address,
        "MASTER_PORT": str(free_port()),
        "ALLHANDS_TOKEN": "sesame",
        "ALLHANDS_INSECURE": "1",
    }
    ranks = [
        subprocess.Popen(
            [*netns.make_enter_command(routed.hosts[letter].holder), *COMMAND, *options],
            env={**shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, letter in enumerate(letters)
    ]
    try:
        said = [one.communicate(timeout=_SECONDS)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    assert [one.returncode for one in ranks[1:]] == [0] * (len(letters) - 1)
    assert said[1:] == [""] * (len(letters) - 1)
    return ranks[0].returncode, said[0]


def read(output: str) -> tuple[list[dict[str, Any]], dict[tuple[int, int], dict[str, Any]]]:
    """Return the findings, and the results by the ranks of both ends."""
    told = json.loads(output)
    check_fields(told, is_full=True)
    ends = ("source", "target")
    return told["findings"], {
        (one[ends[0]]["rank"], one[ends[1]]["rank"]): one for one in told["pairs"]
    }


def test_all_pairs_of_three_hosts_are_measured(tmp_path: Path) -> None:
    with routed_hosts("abc") as routed:
        status, output = measure(routed, tmp_path, "abac", "-o", "json")
    [finding], pairs = read(output)
    assert (status, finding["status"]) == (0, "ok")
    assert sorted(pairs) == [(0, 1), (0, 3), (1, 0), (1, 3), (3, 0), (3, 1)]
    for one in pairs.values():
        assert (one["failure"], one["mtu_bytes"]) == (None, 1500)
        assert one["bytes_per_second"] > 0
        assert one["link_problem"] == ""
        assert one["link_bytes_per_second"] > 0


def test_hosts_that_are_cut_off_from_each_other_are_named(tmp_path: Path) -> None:
    with routed_hosts("abc") as routed:
        routed.cut("b", "c")
        status, output = measure(routed, tmp_path, "abc", "-o", "json")
    findings, pairs = read(output)
    assert status == 1
    assert [one["status"] for one in findings] == ["fail", "fail", "ok"]
    assert (
        "allhands-b (10.78.2.2, rank 1) does not reach allhands-c (10.78.3.2"
        in (findings[0]["detail"])
    )
    assert "firewall" in findings[0]["fix"]
    failures = {ends for ends, one in pairs.items() if one["failure"] == "silent"}
    assert failures == {(1, 2), (2, 1)}
    assert {one["link_problem"] for one in pairs.values()} == {None}


def run_in_router(routed: Routed, *command: str) -> None:
    netns.run_command([*netns.make_enter_command(routed.router), *command])


def test_a_path_that_loses_large_packets_is_found_out(tmp_path: Path) -> None:
    """The router has a smaller MTU towards one host, and its word of it is lost."""
    with routed_hosts("ab") as routed:
        run_in_router(routed, "ip", "link", "set", "host2", "mtu", "1300")
        blocked = ("-p", "icmp", "--icmp-type", "fragmentation-needed", "-j", "DROP")
        run_in_router(routed, "iptables", "-A", "OUTPUT", *blocked)
        status, output = measure(routed, tmp_path, "ab", "-o", "json")
    findings, pairs = read(output)
    assert status == 1
    assert pairs[0, 1]["failure"] == "large"
    assert "MTU" in findings[0]["fix"]


def test_a_smaller_path_is_learnt_from_the_router(tmp_path: Path) -> None:
    with routed_hosts("ab") as routed:
        run_in_router(routed, "ip", "link", "set", "host2", "mtu", "1300")
        status, output = measure(routed, tmp_path, "ab", "-o", "json")
    _, pairs = read(output)
    assert (status, pairs[0, 1]["mtu_bytes"]) == (0, 1300)


def test_ranks_of_one_host_have_no_network_to_measure(run: Start) -> None:
    ranks = run("-n", "2", "-m", "allhands.cli.main", "doctor", "--network")
    assert ranks.status() == 0
    assert any("all ranks are on one host" in line for line in ranks.output())


def test_a_rank_that_reads_late_finds_what_the_others_have_told(cluster: Cluster) -> None:
    url = cluster.daemon() + "/measured"
    ranks = cluster.world(2, network_tests.measure_reading_late, ALLHANDS_URL=url)
    assert [one.expect("measured")["pairs"] for one in ranks] == [[], None]
    assert [one.ended() for one in ranks] == [0, 0]


def test_without_a_world_it_is_wrong_usage(tmp_path: Path) -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, "torchrun" in done.stderr) == (2, True)


@pytest.mark.parametrize("more", [("a-job",), ("-n", "2"), ("--coordinator", "ah://h:1")])
def test_what_the_environment_says_is_not_given_again(more: Sequence[str]) -> None:
    done = subprocess.run([*COMMAND, *more], capture_output=True, text=True)
    assert (done.returncode, "--network" in done.stderr) == (2, True)
