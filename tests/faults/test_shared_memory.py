"""Ranks that share memory when one of them dies, stops, lags, leaves or calls something else."""

import os
import signal
import textwrap

import pytest

from harness import Job, Process

LARGE = 16 << 20
"""Elements of float32 that are 64 MiB."""

USE = """
import asyncio
from collectives import *
ah.init_process_group(timeout=40)
n, me = ah.get_world_size(), ah.get_rank()

def shared(length, dtype):
    return ah.empty(length, dtype)

def variant():
    said = ah.default_group().explain()
    return said.partition("over shared memory, ")[2].partition(":")[0]

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
    before = set(os.listdir("/dev/shm"))
    text = f"""
    ah.all_reduce(np.ones(1))
    one = case("{name}", me, n, {length}, make={make})
    one.run(ah)
    tell("running", pid=os.getpid(), variant=variant())

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
    os.kill(running[victim]["pid"], signal.SIGKILL)
    survivors = [rank for at, rank in enumerate(ranks) if at != victim]
    for rank in survivors:
        for what in ("failed", "next"):
            told = rank.expect(what)
            assert told["error"] == "PeerFailed", told
            assert told["ranks"] == [victim]
            assert f"pid {running[victim]['pid']}" in told["text"]
    finished(survivors)
    assert set(os.listdir("/dev/shm")) <= before


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
    store, over, step, last, errors = ah.store(), threading.Event(), 0, None, set()
    threading.Thread(target=lambda: (hear(), over.set()), daemon=True).start()
    while last is None or step < last:
        one = case("{name}", me, n, {length}, seed=step, make={make})
        said = outcome(one, timeout=0.5)
        assert not said["wrong"], (step, said)
        if said["error"] and not errors:
            tell("timeout", **said)
        errors |= {{said["error"]}} - {{None}}
        step += 1
        if me == 0 and step == 3:
            tell("busy")
        if me == 0 and last is None and over.is_set():
            last = step + 50  # further than any rank is ahead of another
            store.set("last", str(last))
        elif last is None and store.check(["last"]):
            last = int(store.get("last"))
    tell("recovered", errors=list(errors), latest=said["error"])
    ah.destroy_process_group()
    """
    ranks = job(size, script(text))
    ranks[0].expect("busy")
    os.kill(ranks[1].child.pid, signal.SIGSTOP)
    said = [rank.expect("timeout") for at, rank in enumerate(ranks) if at != 1]
    for one in said:
        assert one["error"] == "CollectiveTimeout", one
    assert any(one["ranks"] == [1] for one in said), [(one["ranks"], one["text"]) for one in said]
    os.kill(ranks[1].child.pid, signal.SIGCONT)
    ranks[0].say("over")
    for at, rank in enumerate(ranks):
        told = rank.expect("recovered", *(["timeout"] if at == 1 else []))
        if told["what"] == "timeout":
            told = rank.expect("recovered")
        assert told["latest"] is None, told
        assert set(told["errors"]) <= {"CollectiveTimeout"}, told
    finished(ranks)
