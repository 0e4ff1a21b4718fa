"""Ranks in shared memory with a dying, stopped, lagging, leaving or mismatching rank."""

import os
import signal

import pytest

from programs import broken_memory
from support.ranks.processes import Job, Process

LARGE = 16 << 20
"""Elements of float32 that are 64 MiB."""


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


# ---------------------------------------------------------------- death


@pytest.mark.parametrize(
    ("size", "name", "length", "make", "variant", "victim"),
    [
        (3, "all_reduce", 2, "np.empty", "slots", 1),
        (3, "barrier", 0, "np.empty", "slots", 0),
        (2, "all_reduce", LARGE, "np.empty", "swap", 1),
        (3, "all_reduce", LARGE, "np.empty", "mailboxes", 1),
        (3, "all_reduce", LARGE, "shared", "direct", 2),
        (3, "broadcast", LARGE, "np.empty", "attach", 0),
        (3, "all_to_all_single", LARGE // 2, "np.empty", "attach", 1),
        (3, "gather", LARGE // 2, "shared", "direct", 0),
        (3, "gather", 2, "np.empty", "slots", 1),
        (3, "scatter", 2, "np.empty", "slots", 0),
        (3, "all_gather", 2, "np.empty", "slots", 2),
        (3, "reduce_scatter", 2, "np.empty", "slots", 1),
        (3, "all_to_all", 2, "np.empty", "slots", 0),
    ],
)
def test_a_rank_killed_within_a_call_is_named_by_all_and_nothing_is_left(
    job: Job, size: int, name: str, length: int, make: str, variant: str, victim: int
) -> None:
    ranks = job(size, broken_memory.repeat_until_killed, name, length, make)
    running = [rank.expect("running") for rank in ranks]
    assert [one["variant"] for one in running] == [variant] * size
    # Memory without a name is gone with the last process that has it, whatever ends them.
    assert [one["files"] for one in running] == [["/memfd:allhands (deleted)"]] * size
    os.kill(running[victim]["pid"], signal.SIGKILL)
    survivors = [rank for at, rank in enumerate(ranks) if at != victim]
    for rank in survivors:
        for what in ("failed", "next"):
            told = rank.expect(what)
            assert told["error"] == "PeerFailed", told
            assert told["ranks"] == [victim]
            assert f"pid {running[victim]['pid']}" in told["text"]
    finished(survivors)


# ---------------------------------------------------------------- lateness


@pytest.mark.parametrize(
    ("size", "name", "length", "make"),
    [
        (3, "all_reduce", 2, "np.empty"),
        (2, "all_reduce", 1 << 20, "np.empty"),
        (3, "all_reduce", 1 << 20, "np.empty"),
        (3, "all_reduce", 1 << 20, "shared"),
        (3, "all_to_all_single", 1 << 18, "np.empty"),
    ],
)
def test_a_stopped_rank_times_others_out_and_later_calls_are_right(
    job: Job, size: int, name: str, length: int, make: str
) -> None:
    ranks = job(size, broken_memory.recover_from_a_stop, name, length, make)
    ranks[0].expect("busy")
    os.kill(ranks[1].child.pid, signal.SIGSTOP)
    said = [rank.expect("timeout") for at, rank in enumerate(ranks) if at != 1]
    for one in said:
        assert one["error"] == "CollectiveTimeout", one
        assert one["ranks"] == [1]
    os.kill(ranks[1].child.pid, signal.SIGCONT)
    ranks[0].say("over")
    for rank in ranks:
        told = rank.expect("recovered")
        assert told["latest"] is None, told
    finished(ranks)


@pytest.mark.parametrize(
    ("size", "length", "make"), [(3, 2, "np.empty"), (2, 30_000, "np.empty"), (3, 30_000, "shared")]
)
def test_who_comes_late_is_told_at_once_again_and_again(
    job: Job, size: int, length: int, make: str
) -> None:
    # Rank 0 comes before, at, or after the moment when the others have had enough.
    ranks = job(size, broken_memory.call_late, length, make)
    told = [rank.expect("done")["errors"] for rank in ranks]
    for errors in told:
        assert {error for error, _ in errors} <= {None, "CollectiveTimeout"}, errors
    assert any(error is not None for error, _ in told[1])
    assert all(gave_up for error, gave_up in told[0] if error)
    finished(ranks)


def test_a_deadline_of_milliseconds_is_kept(job: Job) -> None:
    ranks = job(2, broken_memory.keep_a_short_deadline)
    for what in ("early", "later"):
        told = ranks[0].expect(what)
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1]
        assert "timed out after 0.01 s" in told["text"]
    ranks[0].expect("waiting")
    for rank in ranks:
        rank.say()
    for what in ("late", "later"):
        assert ranks[1].expect(what)["error"] is None  # what rank 0 gave is there
    for rank in ranks:
        assert rank.expect("done")["x"] == [2.0] * 3
    finished(ranks)


# ---------------------------------------------------------------- different calls


DIFFERENT = [
    ("ah.all_reduce(x, ah.ReduceOp.MAX)", "ah.all_reduce(x)"),
    ("ah.all_reduce(x[:3])", "ah.all_reduce(x)"),
    ("ah.all_reduce(x.view(np.int64))", "ah.all_reduce(x)"),
    ("ah.barrier()", "ah.all_reduce(x)"),
    ("ah.all_gather(list(x.reshape(3, 2)), y[:2])", "ah.all_gather_into_tensor(x, y[:2])"),
    ("ah.all_to_all_single(x, y, [3, 0, 3], [3, 0, 3])", "ah.all_to_all_single(x, y)"),
    ("ah.reduce_scatter_tensor(x[:1], y[:3])", "ah.reduce_scatter_tensor(x[:2], y)"),
    ("ah.all_reduce(big[1:])", "ah.all_reduce(big)"),
    ("ah.all_reduce(big)", "ah.all_reduce(x)"),
    ("ah.broadcast(big, 1)", "ah.broadcast(big, 2)"),
    ("ah.reduce(big, 2)", "ah.reduce(big, 0)"),
    ("ah.broadcast(x, 0)", "ah.reduce(x, 0)"),
    ("ah.scan(x)", "ah.exscan(x)"),
    ("ah.broadcast(big.view('>i8'), 0)", "ah.broadcast(big.view('V8'), 0)"),
    ("ah.broadcast(big.view('f4,f4'), 0)", "ah.broadcast(big.view('f4,i4'), 0)"),
    ("ah.all_gather_into_tensor(big, big[:40_000])", "ah.reduce_scatter_tensor(big[:40_000], big)"),
    (
        "ah.scatter(x, None, 0)",
        "ah.gather(x, [x * 2, x * 2, x * 2] if me == 0 else None, 0)",
    ),
    (
        "ah.gather(x, [x * 2, x * 2, x * 2], 1)",
        "ah.gather(x, [x * 2, x * 2, x * 2] if me == 2 else None, 2)",
    ),
    (
        "ah.all_gather(list(x.reshape(3, 2)), y[:2])",
        "ah.all_gather(list(x[:3].reshape(3, 1)), y[:1])",
    ),
    (
        "ah.all_gather(list(x.view('i8').reshape(3, 2)), y[:2].view('i8'))",
        "ah.all_gather(list(x.reshape(3, 2)), y[:2])",
    ),
    (
        "ah.reduce_scatter(x[:2], list(y.reshape(3, 2)), ah.ReduceOp.MAX)",
        "ah.reduce_scatter(x[:2], list(y.reshape(3, 2)))",
    ),
    (
        "ah.all_to_all([x[:3], x[3:5], x[5:]], [y[:3], y[3:5], y[5:]])",
        "ah.all_to_all(list(x.reshape(3, 2)), list(y.reshape(3, 2)))",
    ),
]
"""What rank 1 calls, and what the others call at the same time."""


@pytest.mark.parametrize("async_op", [False, True])
def test_different_calls_are_refused_with_one_table_and_nothing_is_written(
    job: Job, async_op: bool
) -> None:
    ranks = job(3, broken_memory.call_differently, [pair[::-1] for pair in DIFFERENT], async_op)
    for pair in DIFFERENT:
        told = [rank.expect("refused") for rank in ranks]
        assert [one["call"] for one in told] == [pair[1], pair[0], pair[1]]
        assert [one["kept"] for one in told] == [True] * 3
        table = told[0]["table"]
        assert [one["table"] for one in told] == [table] * 3
        assert sorted(table) == ["0", "1", "2"]
        assert len(set(table.values())) == 2
        for rank in ranks:
            assert rank.expect("next")["z"] == [3.0] * 3
    finished(ranks)


PAIRS = "[np.zeros(4, 'f4,f4') for _ in range(3)]"


@pytest.mark.parametrize(
    ("before", "first", "then"),
    [
        ("ah.broadcast(x, 1)", "ah.broadcast(x, 1)", "ah.broadcast(x, 0)"),
        (
            "ah.scatter(x, [x] * 3 if me == 1 else None, 1)",
            "ah.scatter(x, [x] * 3, 1)",
            "ah.broadcast(x, 0)",
        ),
        (
            f"ah.gather(x.view('f4,f4'), {PAIRS} if me == 2 else None, 2)",
            "ah.gather(x.view('f4,f4'), None, 2)",
            "ah.gather(x, outs, 0)",
        ),
        (
            "ah.reduce(x, 2, ah.ReduceOp.MAX)",
            "ah.reduce(x, 2, ah.ReduceOp.MAX)",
            "ah.reduce(x, 0)",
        ),
    ],
)
def test_who_went_on_from_another_call_is_in_the_table_of_those_who_come_later(
    job: Job, before: str, first: str, then: str
) -> None:
    ranks = job(3, broken_memory.go_on_from_another_call, before, first, then)
    ranks[1].expect("ended")
    ranks[0].say()
    ranks[2].say()
    told = [ranks[at].expect("refused") for at in (0, 2)]
    assert [one["kept"] for one in told] == [True, True]
    assert told[0]["table"] == told[1]["table"]
    assert sorted(told[0]["table"]) == ["0", "1", "2"]
    assert told[0]["table"]["1"].startswith(first[3:].partition("(")[0])
    ranks[1].say()
    for rank in ranks:
        assert rank.expect("next")["z"] == [3.0] * 3
    finished(ranks)


# ---------------------------------------------------------------- interrupts and cancellation


@pytest.mark.parametrize("length", [3, 1_000_000])
def test_others_learn_that_a_call_was_interrupted(job: Job, length: int) -> None:
    ranks = job(2, broken_memory.interrupt_a_call, length)
    ranks[0].expect("called")
    os.kill(ranks[0].child.pid, signal.SIGINT)
    ranks[0].expect("interrupted")
    for rank in ranks:
        rank.say()
    told = ranks[1].expect("told")
    if length > 3 or told["error"] is not None:  # else all of it was there before the news
        assert told["error"] == "GroupAborted", told
        assert told["reason"] == "Ctrl-C"
        assert "Ctrl-C on rank 0 (host " in told["text"]
    for rank in ranks:
        told = rank.expect("next")
        assert (told["error"], told["wrong"]) == (None, "")
    finished(ranks)


def test_an_interrupt_reaches_a_call_that_waits_for_one_started_before(job: Job) -> None:
    ranks = job(2, broken_memory.interrupt_a_queued_call)
    ranks[0].expect("interrupted")
    assert ranks[0].expect("waited")["error"] == "AllhandsError"
    for rank in ranks:
        rank.say()
    finished(ranks)


def test_cancelled_works_end_and_others_are_told_in_order(job: Job) -> None:
    # More of them than calls that a rank may be ahead of another.
    ranks = job(2, broken_memory.cancel_calls)
    for _ in range(23):
        told = ranks[0].expect("ended")
        assert told["error"] == "AllhandsError", told
        assert "cancelled" in told["text"]
    for rank in ranks:
        rank.say()
    for _ in range(23):
        told = ranks[1].expect("ended")
        assert told["error"] == "GroupAborted", told
        assert told["by"].startswith("rank 0 (host ")
        assert told["reason"] == "cancelled"
    for rank in ranks:
        told = rank.expect("last")
        assert (told["error"], told["sum"]) == (None, [2.0] * 3)
        assert rank.expect("next")["sum"] == [2.0] * 3
    finished(ranks)


def test_a_cancelled_await_ends_the_call_before_it_returns(job: Job) -> None:
    ranks = job(2, broken_memory.cancel_an_await)
    assert ranks[0].expect("cancelled")["still"]
    for rank in ranks:
        rank.say()
    assert "cancelled on rank 0 (host " in ranks[1].expect("told")["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
    finished(ranks)


# ---------------------------------------------------------------- leaving


@pytest.mark.parametrize("how", ["destroys its group", "raises"])
def test_what_a_rank_completed_before_it_left_ends_well_on_slower_ranks(job: Job, how: str) -> None:
    ranks = job(3, broken_memory.leave_after_calls, how == "raises")
    ranks[1].expect("gone first")
    ranks[0].expect("leaving")
    assert ranks[0].ended() == (1 if how == "raises" else 0)
    ranks[2].say()
    for rank in ranks[1:]:
        said = rank.expect("steps")
        assert set(said["errors"]) <= {None}, said
        assert set(said["wrong"]) <= {""}, said
        told = rank.expect("gone")
        assert told["error"] == ("GroupAborted" if how == "raises" else "PeerFailed"), told
        assert ("LookupError: enough" in told["text"]) == (how == "raises")
    for rank in ranks[1:]:  # not before: who ends like this is missed at once
        rank.say()
    finished(ranks[1:])


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_what_a_rank_completed_in_a_group_that_it_closed_ends_well_on_slower_ranks(
    job: Job,
) -> None:
    ranks = job(2, broken_memory.close_a_group_after_calls)
    assert ranks[0].expect("ended")["error"] is None
    assert ranks[0].ended() == 0
    ranks[1].say()
    assert ranks[1].expect("gone")["error"] == "PeerFailed"
    assert ranks[1].expect("ended")["error"] is None
    assert ranks[1].expect("got")["right"]
    assert ranks[1].expect("next")["error"] == "PeerFailed"
    finished(ranks[1:])


@pytest.mark.parametrize("length", [3, 100_000])
def test_who_is_blocked_in_a_call_learns_that_another_leaves(job: Job, length: int) -> None:
    ranks = job(3, broken_memory.leave_others_in_a_call, length)
    for rank in (ranks[0], ranks[2]):
        rank.expect("called")
    ranks[1].say()
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("told")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
    finished(ranks)
