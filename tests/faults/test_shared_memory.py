"""Ranks that share memory when one of them dies, stops, lags, leaves or calls something else."""

import os
import signal
import textwrap

import pytest

from support.ranks.processes import Job, Process

LARGE = 16 << 20
"""Elements of float32 that are 64 MiB."""

USE = """
import asyncio
from support.arrays.collective_cases import *
ah.init_process_group(timeout=40)
n, me = ah.get_world_size(), ah.get_rank()

def shared(length, dtype):
    return ah.empty(length, dtype)

def variant():
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]

def tell_when_called():
    '''Tell "called" when the next call of this rank is under way.'''
    group = ah.default_group()
    before = group.sequence

    def watch():
        until(lambda: group.sequence > before)
        tell("called")

    threading.Thread(target=watch, daemon=True).start()

def outcome(one, **more):
    '''Make a call; return its error, or what is wrong with its result.'''
    told = failure(lambda: one.run(ah, **more))
    return {**told, "wrong": "" if told["error"] else one.wrong()}
"""


def script(text: str) -> str:
    return USE + textwrap.dedent(text)


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
    ],
)
def test_a_rank_killed_within_a_call_is_named_by_all_and_nothing_is_left(
    job: Job, size: int, name: str, length: int, make: str, variant: str, victim: int
) -> None:
    text = f"""
    ah.all_reduce(np.ones(1))
    one = case("{name}", me, n, {length}, make={make})
    one.run(ah)
    maps = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
    files = {{one[5].strip() for one in maps if "/dev/shm" in one[-1] or "memfd" in one[-1]}}
    tell("running", pid=os.getpid(), variant=variant(), files=list(files))

    def forever():
        while True:
            one.run(ah)

    tell("failed", **failure(forever))
    tell("next", **failure(ah.barrier))
    ah.destroy_process_group()
    """
    ranks = job(size, script(text))
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
    text = f"""
    ah.all_reduce(np.ones(1))
    store, over, step, last, errors = ah.store(), threading.Event(), 0, None, []
    threading.Thread(target=lambda: (hear(), over.set()), daemon=True).start()
    while last is None or step < last:
        one = case("{name}", me, n, {length}, seed=step, make={make})
        said = outcome(one, timeout=30 if step < 3 else 0.5)
        assert not said["wrong"], (step, said)
        if 1 in said["ranks"] and not errors:
            tell("timeout", **said)
            errors.append(said["error"])
        step += 1
        if me == 0 and step == 3:
            tell("busy")
        if me == 0 and last is None and over.is_set():
            last = step + 50  # further than any rank is ahead of another
            store.set("last", str(last))
        elif last is None and store.check(["last"]):
            last = int(store.get("last"))
    tell("recovered", latest=said["error"], text=said["text"])
    ah.destroy_process_group()
    """
    ranks = job(size, script(text))
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
    text = f"""
    import random
    delays = random.Random(1)
    errors = []
    for step in range(20):
        delay = delays.choice([0, 0.02, 0.03, 0.04, 0.05, 0.08]) * 2 * delays.random()
        one = case("all_reduce", me, n, {length}, seed=step, make={make})
        if me == 0:
            time.sleep(delay)
        # Late ranks have time: that they are told so at once is why this test does not hang.
        said = outcome(one, timeout=30 if me == 0 else 0.05)
        assert not said["wrong"], said
        errors.append((said["error"], "gave it up" in said["text"]))
        one = case("all_reduce", me, n, {length}, seed=step + 1, make={make})
        said = outcome(one)
        assert not said["error"] and not said["wrong"], said
    tell("done", errors=errors)
    ah.destroy_process_group()
    """
    ranks = job(size, script(text))
    told = [rank.expect("done")["errors"] for rank in ranks]
    for errors in told:
        assert {error for error, _ in errors} <= {None, "CollectiveTimeout"}, errors
    assert any(error is not None for error, _ in told[1])
    assert all(gave_up for error, gave_up in told[0] if error)
    finished(ranks)


def test_a_deadline_of_milliseconds_is_kept(job: Job) -> None:
    text = """
    x = np.ones(3)
    if me == 0:
        tell("early", **failure(lambda: ah.all_reduce(x, timeout=0.01)))
        work = ah.all_reduce(x, async_op=True, timeout=0.01)
        tell("later", **failure(work.wait))
        tell("waiting")
    hear()
    if me == 1:
        tell("late", **failure(lambda: ah.all_reduce(x)))
        tell("later", **failure(lambda: ah.all_reduce(x)))
    x = np.ones(3)
    ah.all_reduce(x)
    tell("done", x=x.tolist())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
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
    ("ah.broadcast(big.view('>i8'), 0)", "ah.broadcast(big.view('V8'), 0)"),
    ("ah.broadcast(big.view('f4,f4'), 0)", "ah.broadcast(big.view('f4,i4'), 0)"),
    ("ah.all_gather_into_tensor(big, big[:40_000])", "ah.reduce_scatter_tensor(big[:40_000], big)"),
]
"""What rank 1 calls, and what the others call at the same time."""


@pytest.mark.parametrize("async_op", [False, True])
def test_different_calls_are_refused_with_one_table_and_nothing_is_written(
    job: Job, async_op: bool
) -> None:
    text = f"""
    x, y, big = np.full(6, 7.0), np.full(6, 7.0), np.full(120_000, 7.0)
    for others, mine in {[pair[::-1] for pair in DIFFERENT]!r}:
        call = mine if me == 1 else others
        try:
            if {async_op}:
                eval(call[:-1] + (", " if call[-2] != "(" else "") + "async_op=True)").wait()
            else:
                eval(call)
            tell("ended", call=call)
        except ah.CollectiveMismatch as error:
            table = {{str(rank): said for rank, said in error.table.items()}}
            kept = all((one == 7.0).all() for one in (x, y, big))
            tell("refused", call=call, table=table, kept=kept)
        z = np.ones(3)
        ah.all_reduce(z)
        tell("next", z=z.tolist())
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
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
    text = f"""
    x = np.zeros(4)
    {before}  # from now on it waits for nobody
    ah.barrier()
    x = np.full(4, float(me))
    outs = [np.zeros(4) for _ in range(3)] if me == 0 else None
    if me == 1:
        {first}
        tell("ended")
        hear()
    else:
        hear()
        try:
            {then}
        except ah.CollectiveMismatch as error:
            kept = bool((x == me).all() and not (outs and any(map(np.any, outs))))
            table = {{str(rank): said for rank, said in error.table.items()}}
            tell("refused", table=table, kept=kept)
    z = np.ones(3)
    ah.all_reduce(z)
    tell("next", z=z.tolist())
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
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
    text = f"""
    ah.barrier()
    one = case("all_reduce", me, n, {length})
    if me == 0:
        try:
            tell_when_called()
            one.run(ah)
        except KeyboardInterrupt:
            tell("interrupted")
    hear()
    if me:
        tell("told", **failure(lambda: one.run(ah)))
    one = case("all_reduce", me, n, {length})
    tell("next", **outcome(one))
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
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
    text = """
    ah.barrier()
    x, y = np.ones(3), np.ones(3)
    call = ah.all_reduce_init(x)
    main = threading.main_thread().ident

    def interrupt():
        # Its own number it takes only when the one that was started has ended.
        until(lambda: sys._current_frames()[main].f_code is ah.all_reduce.__code__)
        os.kill(os.getpid(), signal.SIGINT)

    if me == 0:
        call.start()
        threading.Thread(target=interrupt).start()
        try:
            ah.all_reduce(y)
        except KeyboardInterrupt:
            tell("interrupted")
        said = failure(call.wait)
        tell("waited", **said)
    hear()
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    ranks[0].expect("interrupted")
    assert ranks[0].expect("waited")["error"] == "AllhandsError"
    for rank in ranks:
        rank.say()
    finished(ranks)


def test_cancelled_works_end_and_others_are_told_in_order(job: Job) -> None:
    # More of them than calls that a rank may be ahead of another.
    text = """
    ah.barrier()
    if me == 0:
        works = [ah.all_reduce(np.ones(100_000), async_op=True) for _ in range(24)]
        for work in works[22::-1]:
            work.cancel()
            tell("ended", **failure(work.wait))
        hear()
        tell("last", **failure(works[23].wait), sum=works[23].result()[-3:].tolist())
    else:
        hear()
        for _ in range(23):
            tell("ended", **failure(lambda: ah.all_reduce(np.ones(100_000))))
        x = np.ones(100_000)
        tell("last", **failure(lambda: ah.all_reduce(x)), sum=x[-3:].tolist())
    x = np.ones(3)
    ah.all_reduce(x)
    tell("next", sum=x.tolist())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
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
    text = """
    import asyncio
    import allhands as ah

    async def main():
        async with ah.aio.connect(timeout=40) as world:
            x = np.ones(1_000_000)
            if world.rank == 0:
                waiting = asyncio.create_task(world.all_reduce(x))
                await asyncio.sleep(0)
                waiting.cancel()
                try:
                    await waiting
                except asyncio.CancelledError:
                    x[:] = 5  # it is the caller's again
                tell("cancelled", still=bool((x == 5).all()))
            await asyncio.to_thread(hear)
            if world.rank == 1:
                try:
                    await world.all_reduce(x)
                except ah.GroupAborted as error:
                    tell("told", text=str(error))
            x = np.ones(100_000)
            await world.all_reduce(x)
            tell("next", right=bool((x == 2).all()))

    asyncio.run(main())
    """
    ranks = job(2, textwrap.dedent(text))
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
    text = f"""
    def calls():
        yield case("broadcast", me, n, 3, root=0)
        yield case("gather", me, n, 2_000, root=2)
        yield case("scatter", me, n, 300, root=0)

    for one in calls():  # all know that all make such calls: from now on roots run ahead
        one.run(ah)
    if me == 2:
        hear()
    if me == 1:
        tell("gone first")
    steps = [outcome(one) for one in calls()] if me != 1 else []
    if me == 1:
        for one in calls():
            one.run(ah)
    if me != 0:
        tell("steps", errors=[one["error"] for one in steps], wrong=[one["wrong"] for one in steps])
        told = failure(lambda: ah.all_reduce(np.ones(3)))
        tell("gone", **told)
        hear()
        os._exit(0)
    tell("leaving")
    if {how == "raises"}:
        raise LookupError("enough")
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
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
    text = """
    part = ah.new_group([0, 1])
    for _ in range(2):  # all know that all make such calls: from now on the root runs ahead
        ah.broadcast(np.ones(8), src=0, group=part)
    if me == 1:
        hear()
        tell("gone", **failure(lambda: ah.all_reduce(np.ones(3))))
    x = np.full(8, 7.0 + me)
    tell("ended", **failure(lambda: ah.broadcast(x, src=0, group=part)))
    if me == 1:
        tell("got", right=bool((x == 7).all()))
        tell("next", **failure(lambda: ah.broadcast(x, src=0, group=part)))
    ah.destroy_process_group(part)
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
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
    text = f"""
    x = np.ones({length})
    ah.all_reduce(x)
    if me == 1:
        hear()
        ah.destroy_process_group()
        sys.exit()
    tell_when_called()
    tell("told", **failure(lambda: ah.all_reduce(x)))
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
    for rank in (ranks[0], ranks[2]):
        rank.expect("called")
    ranks[1].say()
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("told")
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
    finished(ranks)
