"""Messages from point to point of ranks that share memory: in order, whole, whatever way."""

import textwrap

import pytest

from support.ranks.processes import Job, Process

USE = """
import asyncio, random
import numpy as np
ah.init_process_group(timeout=30)
n, me = ah.get_world_size(), ah.get_rank()
faults = []

def shared(length, dtype=np.uint8):
    return ah.empty(length, dtype)

def content(sender, tag, number, length):
    '''What a message is made of; no two are alike.'''
    seed = ((sender * 64 + tag) * 100_003 + number) % (1 << 31)
    words = np.arange(-(-length // 4), dtype=np.uint32) * 2654435761 + seed * 40503 % (1 << 32)
    return words.view(np.uint8)[:length]

def length_of(sender, tag, number):
    marks = (0, 1, 23, 24, 25, 64, 3000, 16383, 16384, 65536, 65537, 100_000, 300_000)
    return marks[(sender * 31 + tag * 17 + number * 7) % len(marks)]

def fine(got, wanted, *where):
    if not np.array_equal(got, wanted):
        faults.append([str(one) for one in where])
"""
END = """
tell("done", faults=faults)
ah.destroy_process_group()
"""


def script(text: str) -> str:
    return USE + textwrap.dedent(text) + END


def finished(ranks: list[Process]) -> None:
    said = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    assert [one["faults"] for one in said] == [[]] * len(said)


@pytest.mark.parametrize("size", [2, 3])
def test_messages_arrive_whole_around_every_limit(job: Job, size: int) -> None:
    limits = [24, 64, 16 << 10, 64 << 10, 256 << 10, 5 << 20, 9_000_000]
    text = f"""
    right, left = (me + 1) % n, (me - 1) % n
    for make in (np.empty, shared):
        for limit in {limits}:
            for length in (limit - 1, limit, limit + 1):
                x, y = make(length, np.uint8), make(length, np.uint8)
                x[:] = content(me, 0, length, length)
                y[:] = 0
                work = ah.isend(x, right, tag=limit)
                got = ah.recv(y, left, tag=limit)
                fine(y, content(left, 0, length, length), make.__name__, length, got)
                fine(got, left)
                work.wait()
                # Both at once, the large ones too, and the other way round.
                into = ah.irecv(y, right)
                ah.send(x, left)
                into.wait()
                fine(y, content(right, 0, length, length), "back", length)
                fine(into.source_rank(), right)
    """
    finished(job(size, script(text)))


@pytest.mark.parametrize(
    ("attach_min", "large"), [(None, "attach"), ("1048576", "attach"), ("-1", "pieces")]
)
def test_a_message_says_how_it_went(job: Job, attach_min: str | None, large: str) -> None:
    length, middle = (1 << 18, "pieces") if attach_min is None else (2 << 20, large)
    text = f"""
    ah.barrier()
    ah.send(np.zeros(1), 1) if me == 0 else ah.recv(np.zeros(1), 0)
    said = []
    ways = [(np.empty, 8), (np.empty, {length}), (np.empty, 6 << 20), (shared, 1 << 18)]
    for make, length in ways:
        x = make(length, np.uint8)
        work = ah.irecv(x, 0) if me else ah.isend(x, 1)
        work.wait()
        said.append(work.explain().partition("over shared memory, ")[2].partition(":")[0])
    fine(said, ["eager", "{middle}", "{large}", "direct"], said)
    """
    chosen = {} if attach_min is None else {"ALLHANDS_ARENA_ATTACH_MIN": attach_min}
    finished(job(2, script(text), **chosen))


def test_tags_are_received_in_any_order(job: Job) -> None:
    text = """
    order = random.Random(me)
    for make in (np.empty, shared):
        works, tags = [], list(range(40))
        for tag in tags:
            for peer in range(n):
                if peer != me:
                    x = make(length_of(me, tag, 0), np.uint8)
                    x[:] = content(me, tag, 0, len(x))
                    works.append(ah.isend(x, peer, tag=tag))
        order.shuffle(tags)
        for tag in tags:
            for peer in range(n):
                if peer != me:
                    y = np.zeros(length_of(peer, tag, 0), np.uint8)
                    ah.recv(y, peer, tag=tag)
                    fine(y, content(peer, tag, 0, len(y)), peer, tag)
        [work.wait() for work in works]
    """
    finished(job(3, script(text)))


def test_thousands_of_messages_of_several_threads_arrive_in_order(job: Job) -> None:
    text = """
    COUNT = 800

    def sending(tag):
        order, works = random.Random(tag), []
        for number in range(COUNT):
            length = length_of(me, tag, number)
            x = shared(length) if number % 5 == 0 else np.empty(length, np.uint8)
            x[:] = content(me, tag, number, length)
            if order.random() < 0.5:
                ah.send(x, 1 - me, tag=tag)
            else:
                works.append(ah.isend(x, 1 - me, tag=tag))
        for work in works:
            work.wait()

    def receiving(tag):
        order, begun = random.Random(-tag), []
        for number in range(COUNT):
            y = np.zeros(length_of(1 - me, tag, number), np.uint8)
            source = None if order.random() < 0.3 else 1 - me
            if order.random() < 0.5:
                ah.recv(y, source, tag=tag)
                fine(y, content(1 - me, tag, number, len(y)), tag, number)
            else:
                begun.append((number, y, ah.irecv(y, source, tag=tag)))
            if len(begun) > 20 or number == COUNT - 1:
                for at, one, work in begun:
                    work.wait()
                    fine(one, content(1 - me, tag, at, len(one)), tag, at)
                begun.clear()

    threads = [threading.Thread(target=act, args=[tag]) for tag in (1, 2, 3)
               for act in (sending, receiving)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """
    finished(job(2, script(text)))


def test_whoever_sends_is_received_in_the_order_it_sent(job: Job) -> None:
    text = """
    COUNT = 300
    if me == 0:
        seen = dict.fromkeys(range(1, n), 0)
        for _ in range(COUNT * (n - 1)):
            y = np.zeros(30_000, np.int64)
            sender = ah.recv(y)
            fine(y, np.arange(30_000) + sender * 1000 + seen[sender], sender, seen[sender])
            seen[sender] += 1
        fine(list(seen.values()), [COUNT] * (n - 1))
    else:
        for number in range(COUNT):
            x = np.arange(30_000) + me * 1000 + number
            ah.send(x, 0)
    """
    finished(job(4, script(text)))


def test_more_may_be_sent_than_is_received_for_a_while(job: Job) -> None:
    text = """
    ah.barrier()
    if me == 0:
        works = [ah.isend(content(0, 1, number, 5000), 1, tag=1) for number in range(3000)]
        ah.send(np.ones(3), 1, tag=2)
        [work.wait() for work in works]
    else:
        x = np.zeros(3)
        ah.recv(x, 0, tag=2)  # behind three times what may be kept here
        fine(x, np.ones(3), x)
        for number in range(3000):
            y = np.zeros(5000, np.uint8)
            ah.recv(y, 0, tag=1)
            fine(y, content(0, 1, number, 5000), number)
    """
    finished(job(2, script(text)))


def test_a_rank_that_computes_takes_in_more_than_fits_on_the_way(job: Job) -> None:
    text = """
    ah.barrier()
    if me == 0:
        for number in range(2000):
            ah.send(content(0, 0, number, 1000), 1)
        ah.store().set("sent", "all")
    else:
        until(lambda: ah.store().check(["sent"]))
        for number in range(2000):
            y = np.zeros(1000, np.uint8)
            ah.recv(y, 0)
            fine(y, content(0, 0, number, 1000), number)
    """
    # The first message makes both ranks' ShmP2P; after it rank 1 makes no call of its own.
    text = text.replace(
        "ah.barrier()", "ah.send(np.ones(1), 1) if me == 0 else ah.recv(np.zeros(1), 0)"
    )
    finished(job(2, script(text)))


def test_any_array_and_any_type_travels(job: Job) -> None:
    text = """
    record = np.dtype([("key", "<i2"), ("value", ">f8"), ("name", "S3")])
    for dtype in (record, ">i4", "U3", "M8[s]", np.complex128, np.float16, np.bool_):
        for length in (1, 5, 30_000):
            x = (np.arange(17 * length) % 251).astype(np.uint8).repeat(3)
            x = np.resize(x.view(np.uint8), length * np.dtype(dtype).itemsize).view(dtype)
            if me == 0:
                wide = np.zeros((length, 2), dtype)
                wide[:, 1] = x
                ah.send(wide[:, 1], 1)
                ah.send(x[::-1], 1)
            else:
                y = np.zeros((length, 1), dtype)
                ah.recv(y, 0)
                fine(y[:, 0].tobytes(), x.tobytes(), dtype, length)
                ah.recv(y, 0)
                fine(y[::-1, 0].tobytes(), x.tobytes(), dtype, length, "backwards")
    scalar = np.array(7.0 if me == 0 else 0.0)
    ah.send(scalar, 1) if me == 0 else ah.recv(scalar, 0)
    fine(scalar[()], 7.0)
    """
    finished(job(2, script(text)))


def test_groups_of_other_ranks_and_orders_have_messages_of_their_own(job: Job) -> None:
    text = """
    pair = ah.new_group([2, 0])
    x = np.full(5, float(me))
    for group in (None, pair):
        if me == 2:
            ah.send(x + (10 if group else 0), 0, group=group)
        if me == 0:
            got = [np.zeros(5), np.zeros(5)]
            if group:
                fine(ah.recv(got[0], None, group=pair), 2)
                fine(ah.recv(got[1], 2), 2)
                fine(got[0], np.full(5, 12.0), "pair")
                fine(got[1], np.full(5, 2.0), "world")
    """
    finished(job(3, script(text)))


@pytest.mark.parametrize("first", ["message", "collective"])
def test_messages_and_collectives_find_their_way_at_once(job: Job, first: str) -> None:
    text = f"""
    group = ah.new_group()
    x, y = np.full(4, float(me)), np.zeros(4)
    works = [ah.isend(x + number, 1 - me, group) for number in range(50)]
    if {first == "collective"}:
        ah.all_reduce(y, group=group)
    into = [np.zeros(4) for _ in range(50)]
    works += [ah.irecv(one, 1 - me, group) for one in into[:25]]
    for one in into[25:]:
        ah.recv(one, 1 - me, group)
    [work.wait() for work in works]
    ah.all_reduce(y, group=group)
    for number, one in enumerate(into):
        fine(one, np.full(4, 1.0 - me + number), number, one)
    """
    finished(job(2, script(text)))


def test_asyncio_and_callbacks_hear_of_messages_that_nobody_waits_for(job: Job) -> None:
    text = """
    faults = []

    async def main():
        async with ah.aio.connect(timeout=20) as world:
            me = world.rank
            for length in (3, 30_000, 3_000_000):
                x, y = np.arange(length) + me, np.zeros(length, np.int64)
                heard = asyncio.Event()
                work = world.group.recv(y, 1 - me)
                loop = asyncio.get_running_loop()
                work.get_future().add_done_callback(
                    lambda _: loop.call_soon_threadsafe(heard.set)
                )
                await world.send(x, 1 - me)
                await heard.wait()
                if not (y == np.arange(length) + 1 - me).all() or not work.is_success():
                    faults.append(length)
                rooms = [np.zeros(5) for _ in range(20)]
                works = [world.recv(one, None, 3) for one in rooms]
                works += [world.send(np.full(5, 1.0 * number), 1 - me, 3) for number in range(20)]
                await asyncio.gather(*works)
                if [one[0] for one in rooms] != list(range(20)):
                    faults.append([one[0] for one in rooms])

    asyncio.run(main())
    tell("done", faults=faults)
    """
    head = "import asyncio\nimport numpy as np\n"
    finished(job(2, head + textwrap.dedent(text)))


def test_what_was_sent_before_its_sender_left_is_received(job: Job) -> None:
    text = """
    ah.barrier()
    if me == 0:
        for number in range(20):
            ah.isend(content(0, 0, number, 2000), 1)
    else:
        until(lambda: failure(lambda: ah.send(np.ones(1), 0, tag=9))["error"] == "PeerFailed")
        for number in range(20):
            y = np.zeros(2000, np.uint8)
            ah.recv(y, 0 if number % 2 else None)
            fine(y, content(0, 0, number, 2000), number)
        fine(failure(lambda: ah.recv(y, 0))["error"], "PeerFailed")
    """
    finished(job(2, script(text)))


def test_a_forked_child_sends_and_receives_nothing(job: Job) -> None:
    text = """
    x = np.full(3, float(me))
    work = ah.irecv(np.zeros(3), 1 - me, tag=5)
    ah.send(x, 1 - me)
    pid = os.fork()
    if pid == 0:
        said = [failure(lambda: act(x, 1 - me, timeout=1)) for act in (ah.send, ah.recv, ah.isend)]
        os._exit(sum(one["error"] != "ForkedProcess" for one in said))
    fine(os.waitpid(pid, 0)[1], 0, "child")
    ah.recv(x, 1 - me)
    fine(x, np.full(3, 1.0 - me), x)
    ah.send(x, 1 - me, tag=5)
    work.wait()
    """
    finished(job(2, script(text)))
