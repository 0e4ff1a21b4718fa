"""Calls over links that are all or nothing: ways mixed, queues, and Ctrl-C at any moment."""

import pytest

from allhands.runtime import native_core
from programs import atomic_over_links
from support.ranks.processes import Job, finish

pytestmark = [
    pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core"),
    pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"]),
]


@pytest.mark.parametrize("verify", [False, True], ids=["unverified", "verified"])
@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2)])
def test_calls_that_ranks_make_in_several_ways_give_the_right_values(
    job: Job, size: int, seed: int, verify: bool
) -> None:
    for said in finish(job(size, atomic_over_links.mix_calls, seed, 300, verify)):
        assert said["wrong"] == []
        assert 20 < said["queued"] < 280, said
        assert said["handed"] > 0, said
        assert said["confirmed"] > said["queued"], said


def test_a_call_that_is_queued_behind_one_under_way_waits_for_its_end(job: Job) -> None:
    ranks = job(2, atomic_over_links.queue_behind_a_call)
    assert ranks[0].expect("queued")["was_open"]
    ranks[1].say()
    for said in finish(ranks):
        assert said["sums"] == [2.0, 20.0, 200.0]


@pytest.mark.parametrize("count", [3, 1 << 21], ids=["by the core", "in the queue"])
def test_ctrl_c_in_a_call_takes_it_back_on_all_ranks(job: Job, count: int) -> None:
    ranks = job(2, atomic_over_links.interrupt_a_call, count)
    told = ranks[0].expect("interrupted")
    assert (told["error"], told["x"]) == ("KeyboardInterrupt", [1.0])
    ranks[1].say()
    other = ranks[1].expect("interrupted")
    assert (other["error"], other["x"]) == ("GroupAborted", [2.0])
    assert "Ctrl-C" in other["text"]
    assert [said["y"] for said in finish(ranks)] == [[4.0] * 3] * 2


def test_signals_are_put_off_only_where_python_runs(job: Job, is_encrypted: bool) -> None:
    """That takes 5 us: as long as all else of a small call, but for its messages."""
    for said in finish(job(2, atomic_over_links.count_delays, 200)):
        assert (said["usual"] == 0) is not is_encrypted, said


def test_ctrl_c_as_a_message_is_passed_on_loses_nothing(job: Job) -> None:
    """It came before what the call waits for, and has left the link by then."""
    said = finish(job(2, atomic_over_links.pass_on_a_message, 30))
    assert said[0]["seen"] > 0, said
    assert said[0]["wrong"] == [], said


def test_a_handler_that_waits_for_the_loop_within_a_call_is_told_so(
    job: Job, is_encrypted: bool
) -> None:
    """It would wait for ever: the loop is borrowed by the call that it broke into.

    With encryption it runs behind the call.
    """
    said = finish(job(2, atomic_over_links.wait_in_a_handler, 60))
    errors = said[0]["errors"]
    assert is_encrypted is not bool(errors), said
    assert all("raise an exception in the handler" in one for one in errors)
    assert [one["wrong"] for one in said] == [0, 0]


_MOMENTS = [
    ("hand_over", "call", 1),
    ("hand_over", "return", 1),
    ("hand_over", "return", 2),
    ("go_on", "return", 1),
    ("wait", "call", 1),
    ("wait", "call", 2),
    ("delay_signals", "return", 1),
    ("delay_signals", "return", 2),
]


@pytest.mark.parametrize(
    ("operation", "moment", "kind", "which"),
    [(operation, *moment) for operation in ("all_reduce", "broadcast") for moment in _MOMENTS],
)
def test_a_call_interrupted_at_any_moment_is_done_on_all_ranks_or_on_none(
    job: Job, operation: str, moment: str, kind: str, which: int
) -> None:
    said = finish(job(2, atomic_over_links.interrupt_at, operation, moment, kind, which))
    assert [one["wrong"] for one in said] == [[], []]
    assert said[0]["seen"] == which, said
    assert sum(text.startswith("interrupted") for text in said[0]["outcomes"]) == 1, said
    for mine, other in zip(*(one["outcomes"] for one in said), strict=True):
        assert other in ("done True", "GroupAborted False"), said
        if operation == "all_reduce":
            assert mine.split()[1] == other.split()[1], said
        if not mine.startswith("interrupted"):
            assert (mine, other) == ("done True", "done True"), said
