"""Calls that are not waited for at once, of ranks that share memory: who carries them out."""

import textwrap

import pytest

from support.ranks.processes import Job, Process

USE = """
import gc
ah.init_process_group(timeout=30)
n, me = ah.get_world_size(), ah.get_rank()
ah.barrier()  # from here on there is a communicator
SMALL, LARGE = 3, 100_000

def begun(kind, length=SMALL):
    '''Begin a call that gives 3.0 to each of two ranks; return its work and its array.'''
    if kind == "all_reduce":
        x = np.full(length, me + 1.0)
        return ah.all_reduce(x, async_op=True), x
    x = np.full(length, 3.0 if me == 0 else 0.0)
    return ah.broadcast(x, 0, async_op=True), x
"""
END = """
ah.destroy_process_group()
"""

KINDS = pytest.mark.parametrize(
    ("kind", "length"), [("all_reduce", "SMALL"), ("all_reduce", "LARGE"), ("broadcast", "SMALL")]
)


def script(text: str) -> str:
    return USE + textwrap.dedent(text) + END


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@KINDS
def test_a_call_that_nobody_waits_for_keeps_no_other_rank_waiting(
    job: Job, kind: str, length: str
) -> None:
    text = f"""
    work, x = begun({kind!r}, {length})
    if me == 0:
        tell("does something else")
        hear()
    work.wait()
    tell("ended", right=bool((x == 3).all()))
    """
    ranks = job(2, script(text))
    ranks[0].expect("does something else")
    assert ranks[1].expect("ended")["right"]
    ranks[0].say()
    assert ranks[0].expect("ended")["right"]
    finished(ranks)


@KINDS
@pytest.mark.parametrize(
    "ask",
    [
        "work.get_future().then(lambda _: told.set()); told.wait(20)",
        "until(work.is_completed)",
        "until(work.is_success)",
        "work.wait(20)",
        "work.get_future().result(20)",
    ],
)
def test_however_its_end_is_asked_for_it_comes(job: Job, kind: str, length: str, ask: str) -> None:
    text = f"""
    told = threading.Event()
    for _ in range(3):
        work, x = begun({kind!r}, {length})
        {ask}
        assert (x == 3).all() and work.is_success() and work.exception() is None
        told.clear()
    tell("done", how=work.explain())
    """
    ranks = job(2, script(text))
    for rank in ranks:
        how = rank.expect("done")["how"]
        assert how.startswith(f"{kind} #")
        assert ", over shared memory, " in how
    finished(ranks)


def test_nobody_is_woken_for_a_small_call_that_is_waited_for(job: Job) -> None:
    text = """
    for _ in range(100):
        work, x = begun("all_reduce")
        work.wait()
    tell("done", threads=[one.name for one in threading.enumerate() if "callbacks" in one.name])
    """
    ranks = job(2, script(text))
    for rank in ranks:
        assert rank.expect("done")["threads"] == []
    finished(ranks)


@KINDS
def test_calls_can_be_begun_that_others_are_far_from(job: Job, kind: str, length: str) -> None:
    text = f"""
    if me:
        hear()
    both = [begun({kind!r}, {length}) for _ in range(40)]
    if not me:
        tell("begun")
        hear()
    for work, _ in both[::-1]:
        work.wait()
    tell("done", right=all((x == 3).all() for _, x in both))
    """
    ranks = job(2, script(text))
    ranks[0].expect("begun")
    for rank in ranks[::-1]:
        rank.say()
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


def test_a_call_can_be_begun_that_has_no_room_yet(job: Job) -> None:
    """The others are as many calls behind as they may be."""
    text = """
    if me:
        hear()
    for _ in range(20):
        work, _ = begun("all_reduce")
        if not me:
            work.cancel()
        until(work.is_completed)
    work, x = begun("all_reduce")
    if not me:
        tell("begun")
    work.wait()
    assert (x == 3).all()
    """
    ranks = job(2, script(text))
    ranks[0].expect("begun")
    ranks[1].say()
    finished(ranks)


def test_a_call_ends_for_who_waits_though_the_next_one_is_under_way(job: Job) -> None:
    text = """
    if me == 0:
        works = [begun("all_reduce", length)[0] for length in (SMALL, LARGE)]
        tell("begun")
        works[0].wait()
        tell("first")
        works[1].wait()
    else:
        for length in (SMALL, LARGE):
            hear()
            begun("all_reduce", length)[0].wait()
    """
    ranks = job(2, script(text))
    ranks[0].expect("begun")
    ranks[1].say()
    ranks[0].expect("first")
    ranks[1].say()
    finished(ranks)


def test_calls_of_all_ways_keep_one_order(job: Job) -> None:
    """Posted, in the backlog, on the loop, on the caller's thread; results tell the order."""
    text = """
    def number(at):  # of the call, once for each rank
        return np.full(LARGE if at % 5 == 0 else SMALL, at + 1.0)

    random = np.random.default_rng(7)
    for _ in range(30):
        kept = []
        for at in range(12):
            x = number(at)
            match random.integers(6):
                case 0:
                    ah.all_reduce(x)
                    kept.append((None, x, n * (at + 1)))
                case 1 | 2:
                    kept.append((ah.all_reduce(x, async_op=True), x, n * (at + 1)))
                case 3:
                    kept.append((ah.broadcast(x, 1, async_op=True), x, at + 1))
                case 4:  # several steps, so it goes by the loop
                    kept.append((ah.scan(x, async_op=True), None, (me + 1) * (at + 1)))
                case 5:
                    kept.append((ah.monitored_barrier() and None, x, at + 1))
        for work, x, wanted in kept[:: 1 - 2 * int(random.integers(2))]:
            if work is not None:
                work.wait()
            found = work.result() if x is None else x
            assert (found == wanted).all(), (found, wanted)
    tell("done", calls=ah.default_group().sequence)
    """
    ranks = job(3, script(text))
    told = [rank.expect("done")["calls"] for rank in ranks]
    assert told == [361] * 3
    finished(ranks)


def test_a_call_ends_well_though_its_time_was_over_when_somebody_waited(job: Job) -> None:
    text = """
    x = np.full(SMALL, me + 1.0)
    work = ah.all_reduce(x, timeout=0.2, async_op=True)
    over = time.monotonic() + 0.2
    tell("begun")
    hear()
    until(lambda: time.monotonic() > over)
    work.wait()
    assert (x == 3).all()
    """
    ranks = job(2, script(text))
    for rank in ranks:
        rank.expect("begun")
    for rank in ranks:
        rank.say()
    finished(ranks)


def test_a_work_that_outlives_its_group_leaves_the_memory_alone(job: Job) -> None:
    text = """
    for _ in range(20):
        group = ah.new_group([0, 1])
        x, y = np.full(SMALL, me + 1.0), np.full(SMALL, me + 1.0)
        works = [ah.all_reduce(x, group=group, async_op=True), ah.all_reduce(y, group=group)]
        works[0].wait()
        works.append(ah.all_reduce(x, group=group, async_op=True))
        ah.destroy_process_group(group)
        later = ah.new_group([0, 1])
        ah.barrier(group=later)
        works[2].wait()
        assert (x == 6).all()
        del works
        gc.collect()
        z = np.full(LARGE, me + 1.0)
        ah.all_reduce(z, group=later)
        assert (z == 3).all()
        ah.destroy_process_group(later)
    """
    finished(job(2, script(text)))
