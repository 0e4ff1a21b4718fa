"""Calls of several steps, on real ranks: what carries them, and what ends them in the middle."""

import signal

import pytest

from support.ranks.processes import BACKENDS, Job

RIGHT = """
ah.init_process_group(timeout=20, verify=VERIFY, on_failure=ON_FAILURE)
n, me = ah.get_world_size(), ah.get_rank()
wrong = []
for length in (0, 3, 3000, 200_000):
    x = np.arange(length) % 7 + me
    ah.scan(x)
    want = sum(np.arange(length) % 7 + one for one in range(me + 1))
    wrong += [f"scan {length}"] if (x != want).any() else []
    found = ah.all_gather_v(np.full(length + me, me, np.float32))
    fine = [(one == at).all() and len(one) == length + at for at, one in enumerate(found)]
    wrong += [] if all(fine) else [f"all_gather_v {length}"]
    y = np.full(4, float(me))
    ah.all_reduce(y)
    wrong += [f"all_reduce {length}"] if y[0] != n * (n - 1) / 2 else []
works = []
for at in range(50):
    works.append(ah.all_gather_v(np.full(at + me, at), async_op=True))
    x = np.full(3, at)
    works.append(ah.all_reduce(x, async_op=True))
    works.append(ah.scan(np.full(5000, at), async_op=True))
for at in range(50):
    parts, total, prefix = (work.result() for work in works[3 * at:3 * at + 3])
    fine = [(one == at).all() and len(one) == at + rank for rank, one in enumerate(parts)]
    wrong += [] if all(fine) and total[0] == n * at and (prefix == at * (me + 1)).all() else [at]
values = [b"x" * 3_000_000] if me == 1 else [None]
ah.broadcast_object_list(values, 1)
wrong += [] if values == [b"x" * 3_000_000] else ["objects"]
tell("done", wrong=wrong, explained=ah.scan(np.zeros(5000), async_op=True).result() is not None)
ah.destroy_process_group()
"""

ENDED = """
from allhands.collectives import scans
ah.init_process_group(timeout=WITHIN)
n, me = ah.get_world_size(), ah.get_rank()
ah.scan(np.ones(5000))
honest, waited = scans._combine, []
def combine(*arguments):
    if me == 1 and not waited:
        waited.append(True)
        tell("between")
        hear()
    return honest(*arguments)
scans._combine = combine
x = np.full(5000, float(me))
said = failure(lambda: ah.scan(x))
scans._combine = honest
tell("ended", same=bool((x == me).all()), **said)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", [(False, "raise"), (True, "raise"), (False, "shrink")])
def test_steps_go_where_other_calls_go_and_mix_with_them(job: Job, how: tuple[bool, str]):
    verify, on_failure = how
    script = RIGHT.replace("VERIFY", str(verify)).replace("ON_FAILURE", repr(on_failure))
    for rank in job(3, script):
        assert rank.expect("done") == {"what": "done", "wrong": [], "explained": True}
        assert rank.ended() == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_killed_between_two_steps_is_named(job: Job):
    ranks = job(3, ENDED.replace("WITHIN", "20"))
    ranks[1].expect("between")
    ranks[1].child.send_signal(signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("PeerFailed", [1]), told
        assert told["same"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_late_for_a_step_is_named_and_the_next_call_is_right(job: Job):
    more = """
ah.all_reduce(x)
tell("sum", sum=float(x[0]))
ah.destroy_process_group()
"""
    ranks = job(3, ENDED.replace("WITHIN", "1.5") + more)
    ranks[1].expect("between")
    for rank in (ranks[0], ranks[2]):
        told = rank.expect("ended")
        assert (told["error"], told["ranks"]) == ("CollectiveTimeout", [1]), told
        assert told["same"]
        assert told["op"] == "scan"
    ranks[1].say()
    assert ranks[1].expect("ended")["error"] in ("CollectiveTimeout", "GroupAborted")
    for rank in ranks:
        assert rank.expect("sum")["sum"] == 3
        assert rank.ended() == 0


AWAITED = """
import asyncio
async def main():
    async with ah.aio.connect(timeout=20) as world:
        n, me = world.size, world.rank
        found = await world.all_gather_v(np.full(me, me))
        objects = await world.all_gather_object({"rank": me})
        x = await world.scan(np.ones(3))
        one = await world.scatter_object([b"a", b"b", b"c"] if me == 0 else None)
        if me == 0:
            waiting = asyncio.ensure_future(world.scan(np.ones(9000)))
            await asyncio.sleep(0)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                ended = "cancelled"
        else:
            try:
                await world.scan(np.ones(9000))
            except ah.GroupAborted as error:
                ended = error.reason
        total = await world.all_reduce(np.ones(1))
        tell("done", lengths=[len(one) for one in found], objects=objects, x=x[0], one=one.decode(),
             ended=ended, total=total[0])
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_awaited_and_cancelled_in_asyncio(job: Job):
    for at, rank in enumerate(job(3, AWAITED)):
        told = rank.expect("done")
        assert told["lengths"] == [0, 1, 2]
        assert told["objects"] == [{"rank": one} for one in range(3)]
        assert (told["x"], told["one"], told["total"]) == (at + 1, "abc"[at], 3)
        assert "cancelled" in told["ended"]
        assert rank.ended() == 0


MISTAKEN = """
ah.init_process_group(timeout=20)
me = ah.get_rank()
x, out = np.full(4, float(me)), np.zeros((2, 4))
said = failure(lambda: ah.scan(x) if me == 0 else ah.all_gather_into_tensor(out, x))
fine = bool((x == me).all() and not out.any())
ah.scan(x)
tell("done", fine=fine, sum=float(x[0]), **said)
ah.destroy_process_group()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chain_is_not_mistaken_for_the_movement_it_begins_with(job: Job):
    for at, rank in enumerate(job(2, MISTAKEN)):
        told = rank.expect("done")
        assert told["error"] == "CollectiveMismatch", told
        assert "scan(float64[4], SUM)" in told["text"]
        assert "all_gather_into_tensor(float64[4])" in told["text"]
        assert (told["fine"], told["sum"]) == (True, at)
        assert rank.ended() == 0


CANCELLED = """
from allhands.collectives import scans
ah.init_process_group(timeout=20)
me = ah.get_rank()
ah.scan(np.ones(5000))
gate, honest = threading.Event(), scans._combine
def combine(*arguments):
    if me == 1 and not gate.is_set():
        tell("between")
        gate.wait()
    return honest(*arguments)
scans._combine = combine
x = np.full(5000, float(me))
work = ah.scan(x, async_op=True)
if me == 1:
    hear()
    work.cancel()
    hear()
    gate.set()
said = failure(work.wait)
scans._combine = honest
tell("ended", same=bool((x == me).all()), **said)
ah.scan(x)
tell("sum", sum=float(x[0]))
ah.destroy_process_group()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_given_up_between_two_steps_ends_for_all_at_once(job: Job):
    ranks = job(3, CANCELLED)
    ranks[1].expect("between")
    ranks[1].say()
    for rank in (ranks[0], ranks[2], ranks[1]):
        if rank is ranks[1]:
            rank.say()  # the others ended while it was still at its part
        told = rank.expect("ended")
        assert told["same"]
        assert told["error"] == ("AllhandsError" if rank is ranks[1] else "GroupAborted"), told
    for at, rank in enumerate(ranks):
        assert rank.expect("sum")["sum"] == (0, 1, 3)[at]
        assert rank.ended() == 0
