"""Planned faults on real processes: links and sessions through a proxy."""

import json
from pathlib import Path

from allhands.testing import COORDINATOR, faults
from allhands.testing.proxy import session_through
from programs import proxied
from support.ranks.processes import Cluster, Job


def test_a_flip_on_a_real_link_names_it_on_every_rank(job: Job) -> None:
    ranks = job(3, proxied.flip_a_bit)
    told = [rank.expect("told") for rank in ranks]
    assert told[1]["flips"] == [[0, 1]]
    assert [one["link"] for one in told] == [[0, 1]] * 3
    for rank in ranks:
        assert rank.expect("sum")["sum"] == 3.0 * 400_000
        assert rank.ended() == 0, "".join(rank.errors)


def test_a_link_that_nothing_passes_on_ends_calls_at_their_deadline(job: Job) -> None:
    ranks = job(2, proxied.part_two_ranks)
    told = [rank.expect("failed") for rank in ranks]
    assert [one["error"] for one in told] == ["CollectiveTimeout"] * 2, told
    for rank in ranks:
        rank.say()


def test_a_link_that_breaks_as_planned_is_named_at_both_its_ends(job: Job) -> None:
    ranks = job(2, proxied.cut_a_link)
    for rank in ranks:
        told = rank.expect("failed")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]


def test_a_slow_link_takes_its_time_and_changes_nothing(job: Job) -> None:
    ranks = job(2, proxied.slow_a_link_down)
    took = []
    for rank in ranks:
        told = rank.expect("sum")
        assert told["right"]
        took.append(told["took"])
    assert took[1] > 0.3  # at least half of 1.6 MB, which cannot come sooner
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def test_who_is_parted_from_the_coordinator_is_lost_for_the_others(cluster: Cluster) -> None:
    url = cluster.daemon()
    port = int(url.rpartition(":")[2])
    [notice] = Path(cluster.runtime, "allhands").glob("coordinator-*.json")
    token = json.loads(notice.read_text())["token"]
    plan = faults(seed=7)
    with session_through(plan, 1, ("127.0.0.1", port)) as proxy:
        urls = [url, f"ah://127.0.0.1:{proxy.port}"]
        ranks = [
            cluster.start(
                proxied.be_parted_from_the_coordinator,
                RANK=str(rank),
                WORLD_SIZE="2",
                ALLHANDS_URL=f"{one}/job",
                ALLHANDS_TOKEN=token,
                ALLHANDS_BACKEND="socket",
            )
            for rank, one in enumerate(urls)
        ]
        for rank in ranks:
            rank.expect("here")
        plan.partition({1}, {COORDINATOR})
        told = ranks[0].expect("failed")
        assert told["error"] == "PeerFailed"
        assert told["ranks"] == [1]
        plan.is_over = True
        ranks[1].say()
        assert ranks[1].expect("failed")["error"] == "MembershipChanged"
