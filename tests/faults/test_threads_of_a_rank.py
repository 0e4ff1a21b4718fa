"""Threads of one rank that call on one group: told apart by labels, else refused on overlap."""

import textwrap
from typing import Any

import pytest

from support.ranks.processes import Job, Process

BACKENDS = pytest.mark.parametrize("backend", ["auto", "socket"])


START = """
ah.init_process_group(timeout=30)
me, n = ah.get_rank(), ah.get_world_size()
"""

RACE = """
right, wrong, refused = [], [], []

def use(at):
    for step in range(1000):
        x = np.full(3, (me + 1.0) * 1000**at)
        try:
            ah.all_reduce(x, label=label(at))
        except (ah.CollectiveMismatch, ah.GroupAborted) as error:
            refused.append(str(error))
        else:
            (right if (x == n * (n + 1) / 2 * 1000**at).all() else wrong).append(x[0])

ah.barrier()
tell("ready")
hear()  # an overlap here ends the barrier of a rank that has not heard of its end yet
threads = [threading.Thread(target=use, args=[at], name=f"user {at}") for at in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
tell("raced", right=len(right), wrong=wrong, refused=len(refused), said=refused[:1])
ah.destroy_process_group()
"""


def told(ranks: list[Process], what: str) -> list[dict[str, Any]]:
    found = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return found


def raced(ranks: list[Process]) -> list[dict[str, Any]]:
    for rank in ranks:
        rank.expect("ready")
    for rank in ranks:
        rank.say()
    return told(ranks, "raced")


@BACKENDS
@pytest.mark.parametrize("size", [2, 4])
def test_threads_with_labels_get_their_own_numbers_or_a_table(job: Job, size: int) -> None:
    text = START + "label = lambda at: f'thread {at}'" + RACE
    for one in raced(job(size, text)):
        assert one["wrong"] == []
        assert one["right"] + one["refused"] == 2000
        for error in one["said"]:
            assert "labelled 'thread 0'" in error
            assert "labelled 'thread 1'" in error


@BACKENDS
@pytest.mark.parametrize("size", [2, 4])
def test_threads_without_labels_end_the_group_with_both_named(job: Job, size: int) -> None:
    text = START + "label = lambda at: None" + RACE
    for one in raced(job(size, text)):
        # Calls of two threads that do not overlap on any rank are like one thread's: before the
        # first overlap a pair of them may meet another's. Without the rule most of them did.
        assert len(one["wrong"]) <= 2
        assert one["right"] + one["refused"] + len(one["wrong"]) == 2000
        (error,) = one["said"]
        assert "two threads called at the same time: thread 'user " in error
        assert "new_group" in error


@BACKENDS
@pytest.mark.parametrize(
    "other",
    [
        "ah.all_reduce(y)",
        "ah.all_reduce(y, async_op=True)",
        "ah.all_gather([y, y.copy()], y.copy(), async_op=True)",
        "ah.all_reduce_coalesced([y])",
        "ah.all_gather_object([None] * n, 1)",
        "ah.barrier()",
        "ah.all_reduce_init(y).start()",
        "ah.monitored_barrier(timeout=5)",
    ],
)
def test_a_call_beside_one_that_another_thread_is_in_is_refused(job: Job, other: str) -> None:
    text = f"""
    ah.barrier()
    x, y = np.ones(3), np.ones(3)
    second = ah.new_group()

    def other():
        until(lambda: ah.default_group().sequence == 2)
        tell("other", **failure(lambda: {other}))

    if me == 0:
        thread = threading.Thread(target=other, name="other")
        thread.start()
        said = failure(lambda: ah.all_reduce(x))
        thread.join()
    else:
        hear()
        said = failure(lambda: ah.all_reduce(x))
    tell("said", x=x.tolist(), **said)
    tell("next", **failure(ah.barrier))
    ah.all_reduce(y, group=second)
    tell("after", y=y.tolist())
    ah.destroy_process_group()
    """
    ranks = job(2, START + textwrap.dedent(text))
    refused = ranks[0].expect("other")
    assert refused["error"] == "GroupAborted", refused
    assert "thread 'MainThread' was in all_reduce #2" in refused["text"]
    assert "when thread 'other' called" in refused["text"]
    ranks[1].say()
    for rank in ranks:
        one = rank.expect("said")
        # All that it needs of the other rank may have come before the end of the group did.
        assert (one["error"], one["x"]) in (("GroupAborted", [1.0] * 3), (None, [2.0] * 3)), one
    for rank in ranks:
        one = rank.expect("next")
        assert one["error"] == "GroupAborted", one
        assert "two threads called at the same time" in one["text"]
    assert [one["y"] for one in told(ranks, "after")] == [[2.0, 2.0, 2.0]] * 2


@BACKENDS
def test_threads_may_call_in_turn_and_while_others_wait_for_works(job: Job) -> None:
    text = """
    import queue
    right, turns = [], queue.Queue()

    def fine(x, wanted):
        right.append(bool((x == wanted).all()))

    def one_call(at):
        x = np.full(3, at + 0.0)
        ah.all_reduce(x)
        fine(x, n * at)

    for at in range(10):  # one thread after the other
        thread = threading.Thread(target=one_call, args=[at])
        thread.start()
        thread.join()
        one_call(at)

    def follower():  # a thread that stays, and the main thread, as they tell each other
        while (at := turns.get()) is not None:
            one_call(at)
            turns.task_done()

    thread = threading.Thread(target=follower)
    thread.start()
    for at in range(200):
        if at % 2:
            turns.put(at)
            turns.join()
        else:
            one_call(at)
    turns.put(None)
    thread.join()

    x, y = np.full(3, 1.0), np.full(3, 2.0)  # of each rank another thread waits meanwhile
    work = ah.all_reduce(x, async_op=True)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    ah.all_reduce(y)
    waiting.join()
    fine(x, n), fine(y, 2 * n)
    tell("done", right=right)
    ah.destroy_process_group()
    """
    for one in told(job(3, START + textwrap.dedent(text)), "done"):
        assert one["right"] == [True] * 222


@BACKENDS
def test_tasks_call_in_the_order_in_which_they_begin(job: Job) -> None:
    text = """
    import asyncio

    async def main():
        async with ah.aio.connect(timeout=30) as world:
            async def use(at):
                x = np.full(3, at + 0.0)
                await world.all_reduce(x)
                return bool((x == at * world.size).all())

            return await asyncio.gather(*(use(at) for at in range(100)))

    tell("done", right=asyncio.run(main()))
    """
    for one in told(job(2, textwrap.dedent(text)), "done"):
        assert one["right"] == [True] * 100
