"""How a world goes on in process when ranks are killed, stopped, replaced and added."""

import os
import signal
from typing import Any

import pytest

from programs import recovery
from support.ranks.processes import BACKENDS, Cluster, Job, Process

LINKED = [one for one in BACKENDS if one != "grpc"]


def kill(rank: Process) -> None:
    os.kill(rank.child.pid, signal.SIGKILL)


def each(ranks: list[Process], *what: str) -> list[dict[str, Any]]:
    return [rank.expect(*what) for rank in ranks]


@pytest.mark.parametrize("backend", LINKED)
def test_the_survivors_of_a_kill_in_the_middle_of_a_call_have_its_exact_result(job: Job) -> None:
    ranks = job(
        6,
        recovery.sum_until_shrunk,
    )
    each(ranks, "running")
    for doomed in (1, 4):
        kill(ranks[doomed])
    told = each([ranks[0], ranks[2], ranks[3], ranks[5]], "shrunk")
    assert [(one["rank"], one["size"]) for one in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert {one["sum"] for one in told} == {101101.0}
    # Whatever the last call on the way was made by, it was the same for all.
    assert len({one["last"] for one in told}) == 1
    assert told[0]["last"] in (111111.0, 101111.0, 111101.0, 101101.0)


@pytest.mark.parametrize("backend", LINKED)
def test_messages_go_straight_before_and_after_a_loss(job: Job) -> None:
    ranks = job(4, recovery.send_before_and_after_a_loss)
    assert all(one["is_direct"] for one in each(ranks, "running"))
    kill(ranks[1])
    for told in each([ranks[0], ranks[2], ranks[3]], "shrunk"):
        assert told["before"] == [100 * ((told["rank_before"] - 1) % 4)] * 20
        assert (told["size"], told["after"]) == (3, [100 * ((told["rank"] - 1) % 3)] * 20)
        assert told["is_direct"]
        assert told["error"] == "CollectiveTimeout"
        assert "0.3 s" in told["text"]


@pytest.mark.parametrize("backend", LINKED)
def test_a_retryable_call_that_lost_a_rank_has_touched_nothing_and_can_be_retried(
    job: Job,
) -> None:
    ranks = job(
        3,
        recovery.retry_a_sum,
    )
    each(ranks, "running")
    kill(ranks[1])
    survivors = [ranks[0], ranks[2]]
    for told in each(survivors, "failed"):
        assert told == {"what": "failed", "intact": True, "ranks": [1]}
    told = each(survivors, "retried")
    assert [(one["right"], one["rank"], one["size"]) for one in told] == [
        (True, 0, 2),
        (True, 1, 2),
    ]


@pytest.mark.parametrize("backend", LINKED)
def test_a_rooted_call_is_retried_with_the_root_that_it_had(job: Job) -> None:
    ranks = job(
        4,
        recovery.retry_a_broadcast,
    )
    each(ranks, "running")
    kill(ranks[1])
    for told in each([ranks[0], ranks[2], ranks[3]], "retried"):
        assert told == {"what": "retried", "root": 20.0, "size": 3}


@pytest.mark.parametrize("backend", ["auto"])
def test_a_failed_call_may_be_taken_over_before_its_thread_goes_on(job: Job) -> None:
    ranks = job(4, recovery.retry_a_broadcast_taken_over_at_once)
    each(ranks, "running")
    kill(ranks[1])
    survivors = [ranks[0], ranks[2], ranks[3]]
    each(survivors, "taken over")
    for told in each(survivors, "retried"):
        assert told == {"what": "retried", "root": 20.0, "size": 3}


@pytest.mark.parametrize("backend", LINKED)
def test_a_plain_group_is_shrunk_by_hand_and_agreed_upon(job: Job) -> None:
    ranks = job(
        4,
        recovery.shrink_by_hand,
    )
    for told in each(ranks, "agreed"):
        assert (told["all"], told["one_not"]) == (True, False)
    kill(ranks[2])
    told = each([ranks[0], ranks[1], ranks[3]], "shrunk")
    for rank, one in enumerate(told):
        assert one == {
            "what": "shrunk",
            "error": "PeerFailed",
            "flag": True,
            "sum": 4.0,
            "root": 2.0,
            "rank": rank,
        }


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("retryable", [False, True])
def test_who_revokes_a_group_frees_the_others_to_shrink_it(job: Job, retryable: bool) -> None:
    ranks = job(
        3,
        recovery.revoke_and_shrink,
        retryable,
    )
    for told in each(ranks, "shrunk"):
        assert told["told"] == ["rank 1", "the loss is no number", 2.0]
        assert (told["size"], told["sum"]) == (3, 3.0)


def newcomer(cluster: Cluster, url: str, backend: str, mode: str = "shrink") -> Process:
    return cluster.start(
        recovery.join_late, mode, ALLHANDS_URL=url + "/job", ALLHANDS_BACKEND=backend
    )


@pytest.mark.parametrize("backend", LINKED)
def test_a_world_takes_in_new_processes(cluster: Cluster, backend: str) -> None:
    url = cluster.daemon()
    ranks = cluster.world(2, recovery.grow, ALLHANDS_URL=url + "/job", ALLHANDS_BACKEND=backend)
    each(ranks, "running")
    newcomers = [newcomer(cluster, url, backend) for _ in range(2)]
    told = each(ranks, "grown")
    assert [(one["rank"], one["size"], one["sum"]) for one in told] == [
        (0, 4, 202.0),
        (1, 4, 202.0),
    ]
    told = each(newcomers, "joined")
    assert sorted(one["rank"] for one in told) == [2, 3]
    assert {(one["size"], one["sum"]) for one in told} == {(4, 202.0)}


def test_a_world_that_waits_goes_on_with_a_replacement_and_says_so_once(cluster: Cluster) -> None:
    url = cluster.daemon()
    ranks = cluster.world(3, recovery.go_on_with_a_replacement, ALLHANDS_URL=url + "/job")
    each(ranks, "running")
    kill(ranks[1])
    new = newcomer(cluster, url, "auto", "wait")
    for place, told in zip((0, 2), each([ranks[0], ranks[2]], "replaced"), strict=True):
        assert told == {
            "what": "replaced",
            "error": "MembershipChanged",
            "sum": 102.0,
            "rank": place,
            "size": 3,
        }
    assert new.expect("joined")["rank"] == 1


def test_no_call_made_before_the_program_knows_of_a_replacement_meets_its_calls(
    cluster: Cluster,
) -> None:
    url = cluster.daemon()
    program = recovery.queue_calls_before_a_replacement
    ranks = cluster.world(3, program, ALLHANDS_URL=url + "/job")
    each(ranks, "running")
    kill(ranks[1])
    new = newcomer(cluster, url, "auto", "wait")
    for told in each([ranks[0], ranks[2]], "replaced"):
        assert told == {
            "what": "replaced",
            "errors": ["MembershipChanged"] * 2,
            "intact": True,
            "sum": 102.0,
        }
    assert new.expect("joined")["sum"] == 102.0


@pytest.mark.parametrize("backend", LINKED)
def test_a_retryable_group_names_lines_and_tells_mismatches_and_late_ranks(job: Job) -> None:
    ranks = job(
        2,
        recovery.mismatch_and_meet,
    )
    for told in each(ranks, "late"):
        assert told["error"] is None
    for told in each(ranks, "told"):
        assert [row.split(" at ")[0] for row in told["table"]] == [
            f"all_reduce(float64[{length}], SUM)" for length in (4, 5)
        ]
        assert all("recovery.py:" in row for row in told["table"])
        assert (told["sum"], told["kept"]) == (4.0, True)


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("which", [0, 1])
def test_a_call_of_a_retryable_group_that_is_cancelled_leaves_the_next_one_right(
    job: Job, which: int
) -> None:
    ranks = job(
        2,
        recovery.cancel_a_retryable_call,
        which,
    )
    ranks[0].expect("cancelled")
    ranks[1].say("go on")
    for told in each(ranks, "ended"):
        assert [error is None for error in told["errors"]] == [at != which for at in range(3)]
        assert told["sums"] == [at + 1.0 if at == which else 2.0 * (at + 1) for at in range(3)]
        assert told["next"] == 10.0


def test_with_fewer_ranks_than_the_least_size_calls_fail_for_good(job: Job) -> None:
    ranks = job(
        3,
        recovery.fall_below_the_least_size,
    )
    each(ranks, "running")
    kill(ranks[1])
    for _ in range(2):
        for told in each([ranks[0], ranks[2]], "failed"):
            assert told["error"] == "PeerFailed"
            assert "min_size is 3" in told["text"]


def test_calls_that_depend_on_the_number_of_ranks_say_that_it_has_changed(job: Job) -> None:
    ranks = job(
        3,
        recovery.gather_after_a_loss,
    )
    each(ranks, "running")
    kill(ranks[0])
    for told in each(ranks[1:], "changed"):
        assert told == {
            "what": "changed",
            "error": "MembershipChanged",
            "intact": True,
            "gone": None,
            "sum": 2.0,
        }


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize(
    ("fresh_rank", "errors"),
    [
        (-1, ["MembershipChanged", "MembershipChanged"]),
        (2, ["MembershipChanged", "GroupAborted"]),
    ],
)
def test_calls_queued_for_ranks_that_are_gone_are_not_made_with_the_others(
    job: Job, fresh_rank: int, errors: list[str]
) -> None:
    ranks = job(3, recovery.gather_in_a_queue_before_a_loss, fresh_rank)
    each(ranks, "running")
    kill(ranks[0])
    for told, error in zip(each(ranks[1:], "ended"), errors, strict=True):
        assert told == {
            "what": "ended",
            "errors": [None, error, None],
            "intact": True,
            "sums": [2.0, 4.0],
            "again": [1.0, 2.0],
        }


@pytest.mark.parametrize("backend", LINKED)
@pytest.mark.parametrize("operation", recovery.CALLS_WITH_BLOCKS)
def test_a_call_with_an_item_for_each_rank_is_not_retried_with_fewer(
    job: Job, operation: str
) -> None:
    ranks = job(3, recovery.retry_with_blocks, operation)
    each(ranks, "running")
    kill(ranks[1])
    for told in each([ranks[0], ranks[2]], "retried"):
        assert told == {
            "what": "retried",
            "error": "MembershipChanged",
            "intact": True,
            "size": 2,
            "sum": 2.0,
        }


@pytest.mark.parametrize("backend", LINKED)
def test_a_rank_that_was_expelled_while_it_was_stopped_harms_nothing(job: Job) -> None:
    ranks = job(
        3,
        recovery.be_expelled_while_stopped,
    )
    each(ranks, "running")
    os.kill(ranks[2].child.pid, signal.SIGSTOP)
    each(ranks[:2], "shrunk")
    os.kill(ranks[2].child.pid, signal.SIGCONT)
    told = ranks[2].expect("awake")
    assert told["error"] == "MembershipChanged", told
    for told in each(ranks[:2], "right"):
        assert told["wrong"] == 0


def test_a_state_is_carried_through_a_kill_and_given_to_a_newcomer(cluster: Cluster) -> None:
    url = cluster.daemon()
    ranks = cluster.world(3, recovery.train_a_state, ALLHANDS_URL=url + "/job")
    each(ranks, "there")
    kill(ranks[1])
    for rank in (ranks[0], ranks[2]):
        rank.say("go on")
    new = cluster.start(recovery.train_a_state, ALLHANDS_URL=url + "/job")
    told = each([ranks[0], ranks[2], new], "done")
    assert {(one["exact"], one["note"], one["size"]) for one in told} == {
        (True, f"step {told[0]['step']}", 3)
    }
