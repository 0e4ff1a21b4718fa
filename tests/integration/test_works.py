"""Works, futures and timeouts of process ranks, on every route."""

from collections.abc import Callable
from typing import Any

import pytest

from programs import works
from support.ranks.processes import BACKENDS, Job

# What carries links makes no difference above them.
pytestmark = pytest.mark.parametrize("backend", BACKENDS[:2])


def run_pair(job: Job, program: Callable[..., None], *arguments: str) -> list[dict[str, Any]]:
    """Run a program on both ranks of a world; return the reports."""
    ranks = job(2, program, *arguments)
    told = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return told


def test_a_thousand_calls_of_eight_threads_and_a_loop_are_exact(job: Job) -> None:
    told = run_pair(
        job,
        works.call_from_threads_and_a_loop,
    )
    for one in told:
        assert one["wrong"] == []
        assert one["calls"] == 8 * 90 + 60


def test_arrays_are_free_as_soon_as_their_calls_have_ended(job: Job) -> None:
    for one in run_pair(job, works.let_go_of_arrays):
        assert one["kept"] == []


def test_functions_called_then_may_make_calls_and_wait_for_them(job: Job) -> None:
    told = run_pair(
        job,
        works.call_within_then,
    )
    for one in told:
        assert one["got"] == [2.0**5] * 3
        assert one["after"] == 3 * 2.0**5


def test_p004_a_timeout_that_was_set_counts_whatever_way_a_call_goes(job: Job) -> None:
    """Plain calls, persistent calls and messages take the timeout from the native core."""
    told = run_pair(
        job,
        works.time_out_in_every_way,
    )
    assert [one[:2] for one in told[0]["late"]] == [
        [name, "CollectiveTimeout"]
        for name in ("all_reduce", "async", "persistent", "recv", "irecv")
    ]
    assert all(0.15 < one[2] < 15 for one in told[0]["late"])
    assert [one["sum"] for one in told] == [[2.0, 2.0]] * 2


def test_p103_messages_sent_before_leaving_are_received(job: Job) -> None:
    told = run_pair(
        job,
        works.send_and_leave,
    )
    assert [one["wrong"] for one in told] == [[], []]


def test_p107_labels_are_recorded_whatever_way_a_call_goes(job: Job) -> None:
    told = run_pair(
        job,
        works.label_calls,
    )
    kinds = ("sum", "async", "broadcast", "barrier", "message", "imessage")
    for one in told:
        assert one["labels"] == sorted(
            f"{label} {kind}" for label in ("first", "second") for kind in kinds
        )


def test_p107_calls_of_a_block_have_its_label_but_those_with_their_own(job: Job) -> None:
    for rank, one in enumerate(run_pair(job, works.label_calls_of_blocks)):
        assert one["calls"] == [
            ["all_reduce", "outer"],
            ["all_reduce", "outer"],
            ["scan", "inner"],
            ["broadcast", "own"],
            ["recv" if rank else "send", "outer"],
            ["monitored_barrier", "outer"],
            ["barrier", ""],
            ["barrier", "of the group"],
            ["reduce", ""],
            ["all_reduce", ""],
        ]


def test_p102_peers_are_named_by_one_number_whatever_way_a_message_goes(job: Job) -> None:
    told = run_pair(
        job,
        works.name_peers_by_one_number,
    )
    assert [one["texts"] for one in told] == [["ValueError"] * 6] * 2
    assert told[1]["got"] == [7, 7, 7]


def test_p103_leaving_waits_for_functions_that_are_called_then(job: Job) -> None:
    told = run_pair(
        job,
        works.leave_while_functions_run,
    )
    for one in told:
        assert one["ended"] == [6.0]
        assert one["left"] == []


@pytest.mark.parametrize(
    "name", ["allhands group world", "allhands messages world", "due calls of allhands job"]
)
def test_who_leaves_waits_until_its_threads_have_ended(job: Job, backend: str, name: str) -> None:
    for one in run_pair(job, works.leave_while_a_thread_ends, name):
        if backend == "auto":
            assert name in one["started"]
        assert one["left"] == []


def test_tasks_and_threads_call_on_one_group_of_the_asyncio_face(job: Job) -> None:
    told = run_pair(
        job,
        works.call_from_tasks_and_threads,
    )
    assert [one["wrong"] for one in told] == [0, 0]


def test_p046_a_barrier_implies_that_earlier_calls_have_ended(job: Job) -> None:
    told = run_pair(
        job,
        works.pass_a_barrier,
    )
    for one in told:
        assert one["ended"] == [True] * 20
        assert one["right"] == [True] * 20
