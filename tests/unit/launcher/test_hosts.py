"""Lists of hosts and host files."""

import pytest

from allhands.launcher.environment import Placement
from allhands.launcher.hosts import HostRanks, parse_hostfile, parse_hosts


def test_hosts_have_their_number_or_the_usual_one() -> None:
    assert parse_hosts("a,b:4, me@c:2", 3) == (
        HostRanks("a", 3),
        HostRanks("b", 4),
        HostRanks("me@c", 2),
    )


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    found = parse_hosts("[fd00::1]:2,me@[fd00::2]", 1)
    assert found == (HostRanks("fd00::1", 2), HostRanks("me@fd00::2", 1))


def test_ranks_of_a_host_that_comes_again_add_up() -> None:
    assert parse_hosts("a:1,b:1,a:2", None) == (HostRanks("a", 3), HostRanks("b", 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no host"),
        ("a:1,,b:1", "is no host"),
        ("a:0", "no number of ranks"),
        ("a:x", "no number of ranks"),
        ("fd00::1", "no number of ranks"),
        ("-oProxyCommand=x:1", "is no host"),
        ("a b:1", "is no host"),
        ("a", "say how many ranks a gets"),
    ],
)
def test_malformed_hosts_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_hosts(text, None)


def test_host_files_are_plain_lists_or_those_of_open_mpi() -> None:
    text = """
    # two racks
    a
    b:4
    c slots=2 max_slots=8   # the new one
    d slots = 3
    """
    assert parse_hostfile(text, 1) == (
        HostRanks("a", 1),
        HostRanks("b", 4),
        HostRanks("c", 2),
        HostRanks("d", 3),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# nothing\n", "names no host"),
        ("a\nb slots=many\n", "line 2: 'many' is no number of ranks"),
        ("a cpus=3\n", "line 1: 'cpus=3' is not known"),
        ("a slots\n", "line 1: 'slots' is not known"),
    ],
)
def test_malformed_host_files_are_refused_with_the_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_hostfile(text, 1)


def test_each_host_has_its_own_number_of_ranks() -> None:
    nodes = [Placement.of_counts((1, 4, 2), node) for node in range(3)]
    assert [list(one.ranks) for one in nodes] == [[0], [1, 2, 3, 4], [5, 6]]
    assert {one.world_size for one in nodes} == {7}
    assert [one.local_size for one in nodes] == [1, 4, 2]
