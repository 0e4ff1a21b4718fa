"""Order, results and findings of pairs of hosts."""

import itertools

import pytest

from allhands.coordinator.sections import Table
from allhands.doctor.finding import Level
from allhands.doctor.network_test import find_ends
from allhands.doctor.pairs import (
    Failure,
    HostEnd,
    LinkResult,
    PairResult,
    TcpResult,
    check_pairs,
    describe_pairs,
    list_rounds,
)

A, B = HostEnd(0, "a", "10.0.0.1"), HostEnd(4, "b", "10.0.0.2")
WORKING = PairResult(
    A, B, TcpResult(30001, None, "", 0.0001, 1e9, 1500), LinkResult("", 0.0002, 9e8)
)


def failed(failure: Failure, problem: str = "no answer within 3 s") -> PairResult:
    return PairResult(A, B, TcpResult(30001, failure, problem, mtu=1500))


@pytest.mark.parametrize("count", range(2, 18))
def test_each_pair_comes_once_and_no_host_twice_in_a_round(count: int) -> None:
    rounds = list(list_rounds(count))
    for pairs in rounds:
        places = [place for pair in pairs for place in pair]
        assert len(set(places)) == len(places)
    every = [pair for pairs in rounds for pair in pairs]
    assert sorted(every) == list(itertools.combinations(range(count), 2))


def test_pairs_that_work_are_counted() -> None:
    [found] = check_pairs([WORKING, WORKING])
    assert (found.status, found.detail) == (Level.OK, "2 of 2 directions between hosts work")


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        ("silent", "a firewall drops it"),
        ("refused", "a firewall rejects it"),
        ("unreachable", "ip route get 10.0.0.2"),
        ("large", "takes less than 1500 bytes"),
        ("other", "look at what 10.0.0.2 is"),
    ],
)
def test_a_direction_that_fails_is_named_with_both_ends_and_the_fix(
    failure: Failure, fix: str
) -> None:
    broken, working = check_pairs([failed(failure), WORKING])
    assert broken.status is Level.FAIL
    assert broken.detail == (
        "a (10.0.0.1, rank 0) does not reach b (10.0.0.2, rank 4) at port 30001: "
        "no answer within 3 s"
    )
    assert fix in broken.fix
    assert working.detail == "1 of 2 directions between hosts work"


def test_a_link_that_fails_is_named() -> None:
    [found] = check_pairs([PairResult(A, B, WORKING.tcp, LinkResult("timeout: rank 4"))])
    assert (found.status, "their link fails: timeout: rank 4" in found.detail) == (Level.FAIL, True)


def test_one_host_has_no_pairs() -> None:
    [found] = check_pairs([])
    assert found.status is Level.SKIP
    assert describe_pairs([]) == []


def test_the_table_has_a_row_a_direction() -> None:
    [table] = describe_pairs([WORKING, failed("silent")])
    assert isinstance(table, Table)
    assert table.rows == [
        ("a 10.0.0.1", "b 10.0.0.2", "100 us", "1,000", "1500", "200 us", "900"),
        ("a 10.0.0.1", "b 10.0.0.2", "silent", "-", "1500", "-", "-"),
    ]


def test_hosts_are_told_apart_by_name_and_address() -> None:
    everyone = [
        HostEnd(3, "vm", "fd00::2"),
        HostEnd(2, "vm", "10.0.0.1"),
        HostEnd(1, "vm", "10.0.0.1"),
    ]
    assert find_ends(everyone) == [everyone[2], everyone[0]]
