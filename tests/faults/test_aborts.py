"""Deliberate ends of calls, groups and worlds: all blocked ranks get the name at once."""

import os
import signal
import subprocess
import sys

import pytest

from programs import aborts
from support.ranks.processes import BACKENDS, Cluster, Job

LINKS_AND_MEMORY = ("auto", "socket")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scope", ["world", "group"])
def test_an_abort_releases_all_ranks_and_holds_for_all_calls_to_come(job: Job, scope: str) -> None:
    ranks = job(3, aborts.abort_on_rank_1, scope)
    pids = [rank.expect("ready")["pid"] for rank in ranks]
    for rank in ranks:
        rank.say()
    ranks[1].say()
    by = f"rank 1 (host {os.uname().nodename}, pid {pids[1]})"
    for rank in ranks:
        for when in ("told", "later"):
            told = rank.expect(when)
            assert (told["error"], told["by"], told["reason"]) == (
                "GroupAborted",
                by,
                "it diverged",
            )
            assert f"{by} aborted it: it diverged" in told["text"]
        error = "GroupAborted" if scope == "world" else None
        assert rank.expect("world")["error"] == error
        assert rank.expect("new")["error"] == error


@pytest.mark.parametrize("backend", LINKS_AND_MEMORY)
def test_an_abort_reaches_the_others_without_a_coordinator(cluster: Cluster, backend: str) -> None:
    url = cluster.daemon()
    daemon = cluster.started[-1]
    ranks = cluster.world(
        3, aborts.abort_on_rank_1, "world", ALLHANDS_URL=f"{url}/j", ALLHANDS_BACKEND=backend
    )
    for rank in ranks:
        rank.expect("ready")
    daemon.child.send_signal(signal.SIGKILL)
    daemon.ended()
    for rank in ranks:
        rank.say()
    ranks[1].say()
    for rank in ranks:
        told = rank.expect("told")
        assert (told["error"], told["reason"]) == ("GroupAborted", "it diverged"), told
        assert told["seconds"] < 20  # far from its deadline


def run_command(cluster: Cluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_that_is_deleted_by_force_releases_its_ranks(cluster: Cluster) -> None:
    ranks = cluster.world(2, aborts.block_rank_0, ALLHANDS_URL=f"{cluster.daemon()}/j")
    for rank in ranks:
        rank.expect("ready")
        rank.say()
    done = run_command(cluster, "delete", "j", "--force")
    assert (done.returncode, done.stdout) == (0, "deleted job j, and expelled 2 ranks\n")
    told = ranks[0].expect("told")
    assert told["error"] == "MembershipChanged", told
    assert "job j was deleted by" in told["text"]


def test_a_command_aborts_a_job(cluster: Cluster) -> None:
    url = cluster.daemon()

    ranks = cluster.world(2, aborts.block_rank_0, ALLHANDS_URL=f"{url}/j")
    for rank in ranks:
        rank.expect("ready")
        rank.say()
    done = run_command(cluster, "abort", "j", "--reason", "tired", "--coordinator", url)
    assert (done.returncode, done.stdout) == (0, "told 2 ranks of job j\n")
    told = ranks[0].expect("told")
    assert (told["error"], told["reason"]) == ("GroupAborted", "tired")
    assert f"(host {os.uname().nodename})" in told["by"]
    missing = run_command(cluster, "abort", "k", "--coordinator", url)
    assert missing.returncode == 1
    assert "no job 'k'" in missing.stderr


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [10, 1 << 18])
@pytest.mark.parametrize("reason", aborts.GIVING_UP)
def test_a_call_that_one_rank_gives_up_ends_for_its_peers_with_who_and_why(
    job: Job, backend: str, reason: str, length: int
) -> None:
    ranks = job(3, aborts.give_up_on_rank_0, reason, length)
    for rank in ranks:
        rank.expect("begun")
    ranks[0].say()
    told = [ranks[1].expect("told")]
    ranks[2].say()
    late = ranks[2].expect("told")
    # In a short call over memory every part was there already, if it comes before the news.
    if late["error"] is not None or (backend, length) != ("auto", 10):
        told.append(late)
    for one in told:
        assert (one["error"], one["reason"]) == ("GroupAborted", reason), one
        assert f"{reason} on rank 0 (host " in one["text"]
    for rank in ranks:
        rank.say()
    for rank in ranks:
        assert rank.expect("next")["values"] == [6.0] * 5
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", LINKS_AND_MEMORY)
def test_without_the_abort_an_exception_is_only_a_rank_that_leaves(job: Job) -> None:
    ranks = job(2, aborts.raise_without_abort)
    told = ranks[0].expect("failed")
    assert (told["error"], told["ranks"]) == ("PeerFailed", [1])
    assert "LookupError: no such file as this" in told["text"]
    assert "Traceback" not in told["text"]


# ---------------------------------------------------------------- monitored barriers


@pytest.mark.parametrize("backend", LINKS_AND_MEMORY)
@pytest.mark.parametrize("late", [[0], [2], [1, 2]])
@pytest.mark.parametrize("names_all", [False, True])
def test_a_monitored_barrier_tells_all_ranks_who_did_not_pass(
    job: Job, late: list[int], names_all: bool
) -> None:
    ranks = job(3, aborts.come_late_to_a_monitored_barrier, late, names_all)
    told = [rank.expect("told") for at, rank in enumerate(ranks) if at not in late]
    for at in late:
        ranks[at].say()
    told += [ranks[at].expect("told") for at in late]
    for one in told:
        assert (one["error"], one["op"], one["label"]) == (
            "CollectiveTimeout",
            "monitored_barrier",
            "step 7",
        )
        assert one["ranks"] == (late if names_all else late[:1])
        assert [absent["rank"] for absent in one["verdict"]["absent"]] == late
        assert {absent["state"] for absent in one["verdict"]["absent"]} == {"busy"}
        assert one["verdict"] == told[0]["verdict"]
    for rank in ranks:
        assert rank.expect("next")["values"] == [6.0] * 3
        assert rank.ended() == 0
