"""A cut link between two ranks in a network namespace; all ranks get the same error."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from allhands.bench import netns
from allhands.bench.launchers import BenchHost
from programs.silent_links import call_once_a_link_is_cut
from support.ranks.addresses import free_port
from support.ranks.processes import Cluster, Process

PORT = str(free_port())
"""Of loopback here; nobody else listens in that namespace."""


@pytest.fixture(scope="module")
def host() -> Iterator[BenchHost]:
    if shutil.which("iptables") is None:
        pytest.skip("cutting a link needs iptables")
    try:
        with netns.open_two_hosts(None) as (one, _):
            yield one
    except netns.NoNamespaces as refusal:
        pytest.skip(str(refusal))


@pytest.fixture
def cut(host: BenchHost) -> Iterator[object]:
    """Return a function to drop the packets of connections."""

    def tables(*arguments: str) -> None:
        subprocess.run(
            [*host.command_prefix, "iptables", *arguments], check=True, capture_output=True
        )

    def act(ends: Sequence[Sequence[int]], how: Sequence[str]) -> None:
        for here, there in ends:
            for source, target in ((here, there), (there, here)):
                ports = ("--sport", str(source), "--dport", str(target))
                # A reset must get through.
                tables("-A", "INPUT", "-p", "tcp", "--tcp-flags", "RST", "NONE", *ports, "-j", *how)

    yield act
    tables("-F", "INPUT")


def start(cluster: Cluster, host: BenchHost, backend: str, timeout: float) -> list[Process]:
    holder = int(host.command_prefix[host.command_prefix.index("--target") + 1])
    return cluster.world(
        3,
        call_once_a_link_is_cut,
        timeout,
        holder=holder,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=PORT,
        ALLHANDS_BACKEND=backend,
    )


def between(ranks: Sequence[Process], one: int, other: int) -> list[tuple[int, int]]:
    """Return the ends of the connections between two of the ranks."""
    ends = [{tuple(both) for both in rank.expect("linked")["ends"]} for rank in ranks]
    return [both for both in ends[one] if both[::-1] in ends[other]]


@pytest.mark.parametrize("backend", ["socket", "grpc"])
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        (["DROP"], "CollectiveTimeout", "pings are unanswered"),
        (["REJECT", "--reject-with", "tcp-reset"], "PeerFailed", "the link broke"),
    ],
    ids=["dropped", "reset"],
)
def test_a_link_that_is_cut_between_two_ranks_is_named_to_all_three(
    cluster: Cluster,
    host: BenchHost,
    cut: object,
    backend: str,
    how: list[str],
    error: str,
    words: str,
) -> None:
    assert callable(cut)
    ranks = start(cluster, host, backend, 2.5 if error == "CollectiveTimeout" else 20)
    links = between(ranks, 1, 2)
    assert links
    cut(links, how)
    for rank in ranks:
        rank.say()
    told = [rank.expect("failed") for rank in ranks]
    for one in told:
        assert one["error"] == error, one
        [absent] = one["verdict"]["absent"]
        assert (absent["rank"], absent["state"]) == (2, "unreachable"), one
        assert "unreachable for rank 1 (host " in absent["text"]
        assert words in one["text"]
    assert told[0]["verdict"] == told[1]["verdict"] == told[2]["verdict"]
    for rank in ranks[:2]:  # which can still reach one another
        assert rank.expect("pair")["error"] is None
