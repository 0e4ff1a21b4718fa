"""Messages over shared memory when the other end is late, unlike, killed, or gives up."""

import os
import signal
import textwrap

import pytest

from support.ranks.processes import Job, Process

USE = """
import numpy as np
ah.init_process_group(timeout=40)
n, me = ah.get_world_size(), ah.get_rank()

def array(kind, length, value=0):
    x = ah.empty(length, np.uint8) if kind == "shared" else np.empty(length, np.uint8)
    x[:] = value
    return x

def meet():
    '''Find the way; from here on both ranks' messages go over shared memory.'''
    ah.send(np.ones(1), 1) if me == 0 else ah.recv(np.ones(1), 0) if me == 1 else None
    ah.barrier()
"""
WAYS = [("plain", 8), ("plain", 300_000), ("plain", 6 << 20), ("shared", 300_000)]
"""Of an array, so that its message goes eagerly, in pieces, by attach, and direct."""


def script(text: str) -> str:
    return USE + textwrap.dedent(text)


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_a_message_that_nobody_takes_or_sends_times_out_by_name_and_the_next_is_right(
    job: Job, kind: str, length: int, asynchronous: bool
) -> None:
    text = f"""
    meet()

    def late(sync, started):
        if {asynchronous}:
            return failure(lambda: started(timeout=0.05, label="mine").wait())
        return failure(lambda: sync(timeout=0.05, label="mine"))

    x, y = array("{kind}", {length}, 1 + me), array("{kind}", {length}, 9)
    tell("recv", **late(lambda **m: ah.recv(y, 1 - me, tag=4, **m),
                        lambda **m: ah.irecv(y, 1 - me, tag=4, **m)))
    ah.barrier()
    if {length} > 8 and me == 0:
        tell("send", **late(lambda **m: ah.send(x, 1, **m), lambda **m: ah.isend(x, 1, **m)))
        x[:] = 77  # it is ours again: nobody may ever get that
    ah.barrier()
    if me == 0:
        x[:] = 5
        ah.send(x, 1)
    else:
        ah.recv(y, 0)
    tell("next", right=bool((y == (5 if me else 9)).all()))
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for at, rank in enumerate(ranks):
        told = rank.expect("recv")
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1 - at]
        assert told["label"] == "mine"
        assert f"recv from rank {1 - at} (tag 4) timed out after 0.05 s" in told["text"]
    if length > 8:
        told = ranks[0].expect("send")
        assert told["error"] == "CollectiveTimeout", told
        assert told["ranks"] == [1]
        assert "send to rank 1 (tag 0) timed out after 0.05 s" in told["text"]
    for rank in ranks:
        assert rank.expect("next")["right"]
    finished(ranks)


@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_an_unlike_message_is_refused_on_both_sides_and_touches_nothing(
    job: Job, kind: str, length: int
) -> None:
    text = f"""
    meet()
    for number, (dtype, size) in enumerate([(np.uint8, {length} + 8), (np.int64, {length} // 8)]):
        x = array("{kind}", {length}, 1)
        y = np.full(size, 9, dtype)
        try:
            ah.send(x, 1, tag=number) if me == 0 else ah.recv(y, 0, tag=number)
            tell("ended")
        except ah.CollectiveMismatch as error:
            table = {{str(rank): said for rank, said in error.table.items()}}
            tell("refused", table=table, kept=bool((y == 9).all()))
        y = array("{kind}", {length}, 9)
        ah.send(x, 1, tag=number) if me == 0 else ah.recv(y, 0, tag=number)
        tell("next", right=bool((y == (1 if me else 9)).all()))
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for expected in (f"message(uint8[{length + 8}])", f"message(int64[{length // 8}])"):
        told = ranks[1].expect("refused")
        assert told["kept"]
        assert told["table"] == {"0": f"message(uint8[{length}])", "1": expected}
        if length == 8:
            ranks[0].expect("ended")  # it had gone before anybody looked
        else:
            told = ranks[0].expect("refused")
            assert told["table"] == {"0": f"message(uint8[{length}])", "1": expected}
        for rank in ranks:
            assert rank.expect("next")["right"]
    finished(ranks)


@pytest.mark.parametrize("call", ["send", "recv"])
@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_a_peer_killed_while_messages_are_under_way_is_named(
    job: Job, kind: str, length: int, call: str
) -> None:
    text = f"""
    meet()
    x = array("{kind}", {length}, 1)
    tell("running")

    def forever():
        while True:
            (ah.send if ("{call}" == "send") == (me == 0) else ah.recv)(x, 1 - me)

    if me == 1:
        forever()
    tell("failed", **failure(forever))
    tell("next", **failure(lambda: ah.isend(x, 1).wait()))
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for rank in ranks:
        rank.expect("running")
    os.kill(ranks[1].child.pid, signal.SIGKILL)
    for what in ("failed", "next"):
        told = ranks[0].expect(what)
        assert told["error"] == "PeerFailed", told
        assert told["ranks"] == [1]
        assert f"pid {ranks[1].child.pid}" in told["text"]
    finished(ranks[:1])


@pytest.mark.parametrize(("kind", "length"), WAYS)
def test_a_cancelled_message_is_not_received_and_takes_nothing(
    job: Job, kind: str, length: int
) -> None:
    text = f"""
    meet()
    x, y, z = array("{kind}", {length}, 1), array("{kind}", {length}, 9), array("plain", {length})
    if me == 0:
        work = ah.irecv(y, 1)
        work.cancel()
        tell("cancelled", **failure(work.wait))
        ah.barrier()
        ah.barrier()
        ah.recv(z, 1)
        tell("done", right=bool((z == 1).all() and (y == 9).all()))
    else:
        ah.barrier()  # nothing of ours may be on its way into y before it was given up
        if {length} > 8:
            work = ah.isend(array("{kind}", {length}, 3), 0)
            work.cancel()
            tell("cancelled", **failure(work.wait))
        ah.barrier()
        ah.send(x, 0)
        tell("done", right=True)
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for rank in ranks if length > 8 else ranks[:1]:
        told = rank.expect("cancelled")
        assert told["error"] == "AllhandsError", told
        assert "was cancelled by this rank" in told["text"]
        assert told["intact"] is (True if rank is ranks[0] else None), told
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


@pytest.mark.parametrize(("kind", "length"), [way for way in WAYS if way[1] > 8])
def test_a_message_that_both_give_up_says_whether_some_of_it_has_come(
    job: Job, kind: str, length: int
) -> None:
    text = f"""
    import random, time
    meet()
    gone, kept, got = array("{kind}", {length}), array("{kind}", {length}), array("plain", {length})
    said, draw = [], random.Random(me)
    for turn in range(300):
        gone[:] = 3
        kept[:] = 9
        ah.barrier()
        work = ah.irecv(kept, 1) if me == 0 else ah.isend(gone, 0)
        until = time.perf_counter() + draw.random() * 3e-4
        while time.perf_counter() < until:
            pass
        work.cancel()
        told = failure(work.wait)
        gone[:] = 7  # it is ours again: nobody may ever get that
        if me == 0:
            value = 3 if told["error"] is None else 9
            undefined = told["error"] is not None and told["intact"] is False
            said.append(undefined or bool((kept == value).all()))
        ah.barrier()
        ah.recv(got, 1) if me == 0 else ah.send(array("{kind}", {length}, 1), 0)
        if me == 0:
            said.append(bool((got == 1).all()))
    tell("done", right=all(said))
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for rank in ranks:
        assert rank.expect("done")["right"]
    finished(ranks)


@pytest.mark.parametrize("call", ["send", "recv", "irecv"])
def test_ctrl_c_ends_a_message_at_once_and_the_next_is_right(job: Job, call: str) -> None:
    text = f"""
    meet()
    x = array("plain", 300_000, me)
    if me == 0:
        try:
            tell("waiting")
            ah.irecv(x, 1).wait() if "{call}" == "irecv" else ah.{call}(x, 1)
            tell("ended")
        except KeyboardInterrupt:
            tell("interrupted")
        x[:] = 4
    ah.barrier()
    if me == 0:
        ah.send(x, 1) if "{call}" == "send" else None
    elif "{call}" == "send":
        ah.recv(x, 0)
        assert (x == 4).all()
    tell("done")
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    ranks[0].expect("waiting")
    ranks[0].child.send_signal(signal.SIGINT)
    ranks[0].expect("interrupted")
    for rank in ranks:
        rank.expect("done")
    finished(ranks)


def test_a_group_that_not_all_have_made_is_waited_for_by_name(job: Job) -> None:
    text = """
    if me == 0:
        group = ah.new_group()
        tell("early", **failure(lambda: ah.send(np.ones(3), 1, group, timeout=0.1)))
        work = ah.isend(np.full(3, 5.0), 1, group)
        tell("sent")
        work.wait()
    else:
        hear()
        group = ah.new_group()
        x = np.zeros(3)
        ah.recv(x, 0, group)
        tell("got", x=x.tolist())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    told = ranks[0].expect("early")
    assert told["error"] == "CollectiveTimeout", told
    assert told["ranks"] == [1]
    ranks[0].expect("sent")
    ranks[1].say()
    assert ranks[1].expect("got")["x"] == [5.0] * 3
    finished(ranks)


def test_a_destroyed_group_refuses_messages_and_ends_those_under_way(job: Job) -> None:
    text = """
    meet()
    pair = ah.new_group([0, 1])
    x = np.full(3, float(me))
    ah.send(x, 1, pair) if me == 0 else ah.recv(x, 0, pair)
    ah.barrier(pair)
    ah.destroy_process_group(pair)
    for act in (ah.send, ah.recv, lambda *all: ah.isend(*all).wait()):
        tell("refused", **failure(lambda: act(x, 1 - me, pair)))
    ah.barrier()
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for rank in ranks:
        for _ in range(3):
            told = rank.expect("refused")
            assert told["error"] == "AllhandsError", told
            assert "destroyed" in told["text"]
    finished(ranks)
