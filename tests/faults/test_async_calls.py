"""Calls that are not waited for at once, over shared memory, when something goes wrong."""

import os
import signal
import textwrap

import pytest

from support.ranks.processes import Job, Process

USE = """
ah.init_process_group(timeout=40)
n, me = ah.get_world_size(), ah.get_rank()
ah.barrier()  # from here on there is a communicator
SMALL, LARGE = 3, 100_000

def begun(length, **more):
    return ah.all_reduce(np.full(length, me + 1.0), async_op=True, **more)

def next_is_fine():
    x = np.full(SMALL, me + 1.0)
    ah.all_reduce(x)
    return bool((x == n * (n + 1) / 2).all())
"""

LENGTHS = pytest.mark.parametrize("length", ["SMALL", "LARGE"])


def script(text: str) -> str:
    return USE + textwrap.dedent(text)


def finished(ranks: list[Process]) -> None:
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


@LENGTHS
def test_the_error_of_a_call_whose_time_is_over_names_who_is_missing(job: Job, length: str) -> None:
    text = f"""
    if me == 0:
        work = begun({length}, timeout=0.3)
        tell("failed", **failure(work.wait), again=failure(work.wait)["error"])
        hear()
    else:
        hear()
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    told = ranks[0].expect("failed")
    assert (told["error"], told["again"]) == ("CollectiveTimeout", "CollectiveTimeout")
    assert told["ranks"] == [1]
    assert told["seq"] == 2
    for rank in ranks:
        rank.say()
    finished(ranks)


@LENGTHS
def test_who_waits_hears_of_the_death_of_a_rank_and_so_do_those_behind(
    job: Job, length: str
) -> None:
    text = f"""
    if me == 1:
        tell("here")
        hear()
    works = [begun({length}) for _ in range(3)]
    tell("begun")
    tell("failed", all=[failure(work.wait) for work in works])
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
    ranks[1].expect("here")
    for rank in (ranks[0], ranks[2]):
        rank.expect("begun")
    os.kill(ranks[1].child.pid, signal.SIGKILL)
    for rank in (ranks[0], ranks[2]):
        for told in rank.expect("failed")["all"]:
            assert (told["error"], told["ranks"]) == ("PeerFailed", [1]), told
    finished([ranks[0], ranks[2]])


@LENGTHS
def test_calls_that_need_a_rank_that_has_left_fail_at_once(job: Job, length: str) -> None:
    """Also those whose turn comes only after that was known."""
    text = f"""
    works = [begun({length}) for _ in range(1 if me else 4)]
    works[0].wait()
    tell("failed", all=[failure(work.wait) for work in works[1:]])
    hear()
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    ranks[1].expect("failed")
    ranks[1].say()
    for told in ranks[0].expect("failed")["all"]:
        assert told["error"] == "PeerFailed", told
        assert told["seconds"] < 20
    ranks[0].say()
    finished(ranks)


@LENGTHS
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_call_can_be_cancelled(job: Job, length: str, is_waited_for: bool) -> None:
    text = f"""
    if me == 0:
        works = [begun({length}) for _ in range(3)]
        said = []
        if {is_waited_for}:
            waiting = [
                threading.Thread(target=lambda one=one: said.append(failure(one.wait)))
                for one in works[:2]
            ]
            for one in waiting:
                one.start()
        for work in works[1::-1]:
            work.cancel()
        if {is_waited_for}:
            for one in waiting:
                one.join()
        tell("cancelled", all=[failure(one.wait) for one in works[:2]] + said)
        hear()
        works[2].wait()
        tell("last", sum=works[2].result()[-2:].tolist())
    else:
        hear()
        for _ in range(2):
            tell("told", **failure(begun({length}).wait))
        tell("last", sum=begun({length}).result()[-2:].tolist())
    tell("next", fine=next_is_fine())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    told = ranks[0].expect("cancelled")["all"]
    assert len(told) == (4 if is_waited_for else 2)
    for one in told:
        assert one["error"] == "AllhandsError", one
        assert "cancelled by this rank" in one["text"]
    for rank in ranks:
        rank.say()
    # Of the first of the small ones this rank had given its part before.
    for at in range(2):
        told = ranks[1].expect("told")
        assert told["error"] == "GroupAborted" or (at == 0 and length == "SMALL"), told
    for rank in ranks:
        assert rank.expect("last")["sum"] == [3.0, 3.0]
        assert rank.expect("next")["fine"]
    finished(ranks)


@LENGTHS
def test_who_cancels_a_call_that_has_ended_keeps_nobody_from_it(job: Job, length: str) -> None:
    text = f"""
    work = begun({length})
    if me == 2:
        hear()  # it has given its part, and not seen the end
    until(work.is_completed)
    work.cancel()
    tell("cancelled")
    if me != 2:
        hear()
    tell("next", fine=next_is_fine(), error=str(work.exception()))
    ah.destroy_process_group()
    """
    ranks = job(3, script(text))
    for rank in ranks[:2]:
        rank.expect("cancelled")
    for rank in ranks:
        rank.say()
    ranks[2].expect("cancelled")
    for rank in ranks:
        told = rank.expect("next")
        assert (told["fine"], told["error"]) == (True, "None")
    finished(ranks)


@LENGTHS
def test_ctrl_c_ends_a_wait_and_the_others_are_told(job: Job, length: str) -> None:
    text = f"""
    if me == 0:
        work = begun({length})
        main = threading.main_thread().ident

        def watch():
            until(lambda: sys._current_frames()[main].f_code.co_name in ("_end", "_run", "wait"))
            tell("waits")

        try:
            threading.Thread(target=watch, daemon=True).start()
            work.wait()
        except KeyboardInterrupt:
            tell("interrupted")
        tell("ended", **failure(work.wait))
    else:
        hear()
        tell("ended", **failure(begun({length}).wait))
    tell("next", fine=next_is_fine())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    ranks[0].expect("waits")
    os.kill(ranks[0].child.pid, signal.SIGINT)
    ranks[0].expect("interrupted")
    ranks[1].say()
    mine, other = (rank.expect("ended") for rank in ranks)
    if mine["error"]:  # else another thread carries it out, or it came before this one did
        assert mine["error"] == "AllhandsError", mine
    if length == "LARGE" and mine["error"]:  # of a small one it had given its part
        assert (other["error"], other["reason"]) == ("GroupAborted", "Ctrl-C"), other
    for rank in ranks:
        assert rank.expect("next")["fine"]
    finished(ranks)


def test_signals_at_any_moment_leave_no_call_that_does_not_end(job: Job) -> None:
    text = """
    class Rang(BaseException):
        pass

    armed = []

    def ring(*_):
        if armed:  # else it was late
            raise Rang

    signal.signal(signal.SIGALRM, ring)
    random = np.random.default_rng(me)
    rang, failed, wrong = 0, 0, 0
    for at in range(400):
        x = np.full((SMALL, LARGE)[at % 4 == 3], me + 1.0)
        works = [ah.all_reduce(x, async_op=True)]
        if at % 3 == 0:
            works.append(ah.broadcast(np.zeros(SMALL), 0, async_op=True))
        try:
            try:
                armed.append(at)
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
                works[-1].wait()
            finally:
                armed.clear()
        except Rang:
            rang += 1
        except ah.AllhandsError:
            pass
        armed.clear()
        told = [failure(work.wait)["error"] for work in works]
        failed += told[0] is not None
        wrong += told[0] is None and not (x == 3).all()
        assert {*told} <= {None, "AllhandsError", "GroupAborted"}, told
    tell("done", rang=rang, failed=failed, wrong=wrong, fine=next_is_fine())
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    told = [rank.expect("done") for rank in ranks]
    assert sum(one["rang"] for one in told) > 0
    assert [(one["wrong"], one["fine"]) for one in told] == [(0, True)] * 2
    finished(ranks)


@LENGTHS
def test_another_call_under_the_same_number_is_told_with_a_table(job: Job, length: str) -> None:
    text = f"""
    x = np.full({length}, 1.0)
    work = begun({length}) if me == 0 else ah.all_reduce(x, op=ah.ReduceOp.MAX, async_op=True)
    tell("failed", **failure(work.wait))
    hear()
    ah.destroy_process_group()
    """
    ranks = job(2, script(text))
    for rank in ranks:
        told = rank.expect("failed")
        assert told["error"] == "CollectiveMismatch", told
        assert "MAX" in told["text"]
        assert "SUM" in told["text"]
    for rank in ranks:
        rank.say()
    finished(ranks)
