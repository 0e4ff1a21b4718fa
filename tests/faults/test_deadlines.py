"""Deadlines of blocks in whole jobs, on every way that a call may go."""

import textwrap

import pytest

from support.ranks.processes import BACKENDS, Job


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_ends_every_kind_of_call_in_time_and_the_group_goes_on(job: Job) -> None:
    text = """
    ah.init_process_group(timeout=30)
    me = ah.get_rank()
    ah.barrier()
    x, big = np.ones(3), np.ones(100_000)
    prepared = ah.all_reduce_init(x)
    pair = ah.new_group([0, 1])
    store = ah.store()

    def persist():
        prepared.start()
        prepared.wait()

    collectives = [
        lambda: ah.all_reduce(x),
        lambda: ah.all_reduce(big, timeout=20),
        lambda: ah.barrier(pair),
        lambda: ah.all_reduce(x, async_op=True).wait(),
        persist,
    ]
    others = [lambda: ah.recv(x, 1), lambda: ah.recv(x, 1, pair, 5), lambda: store.get("nothing")]
    for seconds in (0.05, 0):
        for call in [*collectives, *(others if me == 0 else [])]:
            if me == 1:
                hear()
            with ah.deadline(10), ah.deadline(0.2 if me else seconds), ah.deadline(20):
                said = failure(call)
            if me == 0:
                tell("ended", **said)
    y = np.ones(3)
    ah.all_reduce(y)
    ah.send(y, 1) if me == 0 else ah.recv(y, 0)
    tell("next", y=y.tolist())
    ah.destroy_process_group()
    """
    ranks = job(2, textwrap.dedent(text))
    for seconds in (0.05, 0):
        for number in range(8):
            told = ranks[0].expect("ended")
            wanted = "CollectiveTimeout" if number < 7 else "StoreTimeout"
            assert told["error"] == wanted, (seconds, number, told)
            if number < 7:
                assert ("timed out after 0.0" if seconds else "before it began") in told["text"]
            if number < 5:
                ranks[1].say()
    for rank in ranks:
        assert rank.expect("next")["y"] == [2.0] * 3
        assert rank.ended() == 0, "".join(rank.errors)


def test_a_call_over_shared_memory_is_told_of_when_it_stalls_and_when_it_goes_on(job: Job) -> None:
    text = """
    import logging
    from allhands.engine.failures import slow_calls
    slow_calls.MAX_PATIENCE = 0.1

    class Teller(logging.Handler):
        def emit(self, record):
            tell("log", text=record.getMessage(), **getattr(record, "allhands", {}))

    logging.getLogger("allhands").addHandler(Teller())
    ah.init_process_group(timeout=30)
    ah.barrier()
    if ah.get_rank() == 1:
        hear()
    ah.all_reduce(np.ones(3), timeout=1 if ah.get_rank() == 0 else 30)
    ah.barrier()
    ah.destroy_process_group()
    """
    ranks = job(2, textwrap.dedent(text))
    told = ranks[0].expect("log")
    assert told["event"] == "stall", told
    assert (told["operation"], told["sequence"], told["waiting_for"]) == ("all_reduce", 2, [1])
    assert "waiting for rank 1 (host" in told["text"]
    ranks[1].say()
    told = ranks[0].expect("log")
    assert told["event"] == "stall over", told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
