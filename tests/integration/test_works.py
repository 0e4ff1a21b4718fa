"""Works, futures and timeouts of ranks that are processes, whatever carries their calls."""

import textwrap

import pytest

from support.ranks.processes import BACKENDS, Job

# What carries links makes no difference above them.
pytestmark = pytest.mark.parametrize("backend", BACKENDS[:2])

IMPORTS = """
import asyncio, contextlib
from concurrent.futures import ThreadPoolExecutor
"""
BEGIN = """
ah.init_process_group(timeout=30)
n, me = ah.get_world_size(), ah.get_rank()
"""


def run(job: Job, text: str, size: int = 2) -> list[dict[str, object]]:
    """Run a script on every rank of a world; return what each tells when it is done."""
    return run_apart(job, BEGIN + textwrap.dedent(text), size)


def run_apart(job: Job, text: str, size: int = 2) -> list[dict[str, object]]:
    """The same where the script itself joins."""
    ranks = job(size, IMPORTS + textwrap.dedent(text))
    told = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return told


def test_a_thousand_calls_of_eight_threads_and_a_loop_are_exact(job: Job) -> None:
    told = run(
        job,
        """
        groups = [ah.new_group(range(n)) for _ in range(8)]
        wrong = []

        def own(number):
            arrays = [np.full(50, 1000 * number + at + me) for at in range(60)]
            works = [ah.all_reduce(x, group=groups[number], async_op=True) for x in arrays]
            for at, (x, work) in enumerate(zip(arrays, works)):
                work.wait()
                if not (x == n * (1000 * number + at) + n * (n - 1) // 2).all():
                    wrong.append((number, at))

        def shared(number):
            # On one group of all, where threads begin like calls: which is paired with which says
            # the order of each rank, and that does not matter. None is in a call of its own.
            for at in range(30):
                works = []
                for _ in range(2):
                    x = np.full(5, me + 1)
                    works.append((x, ah.all_reduce(x, async_op=True)))
                y = np.full(5, me + 1)
                ah.all_reduce(y, async_op=True).wait()
                for x, work in works:
                    work.wait()
                    if not (x == n * (n + 1) // 2).all() or not (y == n * (n + 1) // 2).all():
                        wrong.append((number, at, "shared"))

        async def loop():
            arrays = [np.full(5, me + 1) for _ in range(60)]
            works = [ah.all_reduce(x, async_op=True) for x in arrays]
            await asyncio.gather(*(asyncio.wrap_future(work.get_future()) for work in works))
            wrong.extend("loop" for x in arrays if not (x == n * (n + 1) // 2).all())

        with ThreadPoolExecutor(17) as pool:
            running = [pool.submit(own, number) for number in range(8)]
            running += [pool.submit(shared, number) for number in range(8)]
            running.append(pool.submit(lambda: asyncio.run(loop())))
            for one in running:
                one.result()
        tell("done", wrong=wrong, calls=ah.default_group().sequence)
        ah.destroy_process_group()
        """,
    )
    for one in told:
        assert one["wrong"] == []
        assert one["calls"] == 8 * 90 + 60


def test_functions_called_then_may_make_calls_and_wait_for_them(job: Job) -> None:
    told = run(
        job,
        """
        def go_on(done):
            x = done.value()
            ah.all_reduce(x)
            return x

        x = np.ones(3)
        last = ah.all_reduce(x, async_op=True).get_future()
        for _ in range(4):
            last = last.then(go_on)
        got = last.wait(20).tolist()

        # Also of messages, which other threads carry on.
        y = np.zeros(3)
        ah.isend(x, (me + 1) % n)
        work = ah.irecv(y, (me - 1) % n)
        after = work.get_future().then(lambda done: (ah.barrier(), done.value().sum())[1])
        tell("done", got=got, after=float(after.wait(20)))
        ah.destroy_process_group()
        """,
    )
    for one in told:
        assert one["got"] == [2.0**5] * 3
        assert one["after"] == 3 * 2.0**5


def test_p004_a_timeout_that_was_set_counts_whatever_way_a_call_goes(job: Job) -> None:
    """The plain calls, the persistent one and messages have it from the native core."""
    told = run(
        job,
        """
        x = np.ones(3)
        again = ah.all_reduce_init(x)
        again.start(); again.wait()
        ah.all_reduce(x)
        ah.send(x, 1) if me == 0 else ah.recv(x, 0)
        ah.barrier()
        late = []
        if me == 0:
            ah.default_group().timeout = 0.2
            calls = {
                "all_reduce": lambda: ah.all_reduce(x),
                "async": lambda: ah.all_reduce(x, async_op=True).wait(),
                "persistent": lambda: (again.start(), again.wait()),
                "recv": lambda: ah.recv(x, 1, tag=3),
                "irecv": lambda: ah.irecv(x, 1, tag=3).wait(),
            }
            for name, call in calls.items():
                told = failure(call)
                late.append([name, told["error"], told["seconds"]])
            ah.set_timeout(30)
            ah.send(x, 1)
        else:
            ah.recv(x, 0)
            for _ in range(3):
                with contextlib.suppress(ah.CollectiveTimeout):
                    ah.all_reduce(x)
        y = np.ones(2)
        ah.all_reduce(y)
        tell("done", late=late, sum=y.tolist())
        ah.destroy_process_group()
        """,
    )
    assert [one[:2] for one in told[0]["late"]] == [  # type: ignore[index]
        [name, "CollectiveTimeout"]
        for name in ("all_reduce", "async", "persistent", "recv", "irecv")
    ]
    assert all(0.15 < one[2] < 15 for one in told[0]["late"])  # type: ignore[index]
    assert [one["sum"] for one in told] == [[2.0, 2.0]] * 2


def test_p103_messages_sent_before_leaving_are_received(job: Job) -> None:
    told = run(
        job,
        """
        if me == 0:
            for number in range(30):
                ah.isend(np.full(number * 5_000, number), 1)
            ah.destroy_process_group()
            tell("done", wrong=[])
        else:
            wrong = []
            for number in range(30):
                y = np.zeros(number * 5_000, np.int64)
                ah.recv(y, 0)
                wrong += [number] * int((y != number).any())
            tell("done", wrong=wrong)
            ah.destroy_process_group()
        """,
    )
    assert [one["wrong"] for one in told] == [[], []]


def test_p107_labels_are_recorded_whatever_way_a_call_goes(job: Job) -> None:
    told = run(
        job,
        """
        x = np.ones(4)
        for label in ("first", "second"):
            ah.all_reduce(x, label=f"{label} sum")
            ah.all_reduce(x, async_op=True, label=f"{label} async").wait()
            ah.broadcast(x, 0, label=f"{label} broadcast")
            ah.barrier(label=f"{label} barrier")
            (ah.send if me == 0 else ah.recv)(x, 1 - me, label=f"{label} message")
            work = (ah.isend if me == 0 else ah.irecv)(x, 1 - me, label=f"{label} imessage")
            work.wait()
        labels = sorted(one.label for one in ah.flight_recorder() if one.label)
        tell("done", labels=labels)
        ah.destroy_process_group()
        """,
    )
    kinds = ("sum", "async", "broadcast", "barrier", "message", "imessage")
    for one in told:
        assert one["labels"] == sorted(
            f"{label} {kind}" for label in ("first", "second") for kind in kinds
        )


def test_p102_peers_are_named_by_one_number_whatever_way_a_message_goes(job: Job) -> None:
    told = run(
        job,
        """
        x, pair = np.full(3, me), ah.new_group([1, 0])
        texts = []
        for group in (None, pair):
            for _ in range(2):  # first through the loop, then past it
                if me == 0:
                    ah.send(x, 1, group)
                    ah.recv(x, 1, group)
                else:
                    ah.recv(np.zeros(3, x.dtype), 0, group)
                    ah.send(x, 0, group)
            other = 1 - me
            for call in (lambda: ah.send(x, other, group, 0, other),
                         lambda: ah.recv(x, other, group, 0, other),
                         lambda: ah.send(x, me, group)):
                texts.append(failure(call)["error"])
        # Rank 1 is the group's first.
        y = np.zeros(3, x.dtype)
        if me == 0:
            ah.send(np.full(3, 7), group=pair, group_dst=0)
        else:
            assert ah.recv(y, group=pair, group_src=1) == 0
        tell("done", texts=texts, got=y.tolist())
        ah.destroy_process_group()
        """,
    )
    assert [one["texts"] for one in told] == [["ValueError"] * 6] * 2
    assert told[1]["got"] == [7, 7, 7]


def test_p103_leaving_waits_for_functions_that_are_called_then(job: Job) -> None:
    told = run(
        job,
        """
        ended = []

        def slow(done):
            time.sleep(0.2)
            ended.append(done.value().sum())

        ah.all_reduce(np.ones(3), async_op=True).get_future().then(slow)
        ah.destroy_process_group()
        tell("done", ended=[float(one) for one in ended],
             left=[one.name for one in threading.enumerate() if "callbacks" in one.name])
        """,
    )
    for one in told:
        assert one["ended"] == [6.0]
        assert one["left"] == []


def test_tasks_and_threads_call_on_one_group_of_the_asyncio_face(job: Job) -> None:
    told = run_apart(
        job,
        """
        async def main():
            async with ah.aio.connect(timeout=30) as world:
                n, me = world.size, world.rank
                arrays = [np.full(20, me + 1) for _ in range(200)]
                def by_thread(mine):
                    for x in mine:
                        world.group.all_reduce(x).wait()
                await asyncio.gather(
                    *(world.all_reduce(x) for x in arrays[:100]),
                    *(asyncio.to_thread(by_thread, arrays[100 + at::4]) for at in range(4)),
                )
                return sum(int((x != n * (n + 1) // 2).any()) for x in arrays)
        tell("done", wrong=asyncio.run(main()))
        """,
    )
    assert [one["wrong"] for one in told] == [0, 0]


def test_p046_a_barrier_implies_that_earlier_calls_have_ended(job: Job) -> None:
    told = run(
        job,
        """
        arrays = [np.full(length, me + 1.0) for length in (1, 100, 20_000, 300_000) * 5]
        works = [ah.all_reduce(x, async_op=True) for x in arrays]
        ah.barrier()
        ended = [work.is_completed() for work in works]
        right = [bool((x == 3).all()) for x in arrays]
        tell("done", ended=ended, right=right)
        ah.destroy_process_group()
        """,
    )
    for one in told:
        assert one["ended"] == [True] * 20
        assert one["right"] == [True] * 20
