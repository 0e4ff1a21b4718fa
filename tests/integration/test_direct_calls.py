"""Plain collectives over links in the native core, between real processes."""

import pytest

from allhands.runtime import native_core
from programs import direct_calls
from support.ranks.processes import Job, finish

pytestmark = [
    pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core"),
    pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"]),
]


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_calls_of_all_kinds_and_lengths_give_the_right_values(
    job: Job, size: int, seed: int
) -> None:
    for said in finish(job(size, direct_calls.call_all_kinds, seed, 60)):
        assert said["wrong"] == []
        assert said["direct"] > 100


@pytest.mark.parametrize("size", [2, 5])
def test_lists_of_plain_arrays_go_by_the_core_and_others_are_checked(job: Job, size: int) -> None:
    for said in finish(job(size, direct_calls.gather_into_lists)):
        assert said["wrong"] == []
        assert said["errors"] == ["ValueError", "InvalidArgument", "InvalidArgument"]


@pytest.mark.parametrize("size", [2, 3])
def test_calls_under_labels_go_by_the_core_and_are_told_apart(job: Job, size: int) -> None:
    for said in finish(job(size, direct_calls.label_calls)):
        direct_calls.check_labels(said)


@pytest.mark.parametrize(("size", "calls", "count"), [(2, 4000, 1), (3, 1000, 3000)])
def test_ranks_that_are_thousands_of_calls_ahead_are_not_mixed_up(
    job: Job, size: int, calls: int, count: int
) -> None:
    """The longer ones use the credit up: they wait for room, and are announced."""
    ranks = job(size, direct_calls.run_far_ahead, calls, count)
    for _ in range(2):
        ranks[0].say()
    assert [said["wrong"] for said in finish(ranks)] == [[]] * size


def test_calls_by_turns_are_compiled_once_whatever_their_shapes(job: Job) -> None:
    """As those of a retryable group and their barriers, two of which had one place for plans."""
    for said in finish(job(2, direct_calls.alternate_calls, 400, 8)):
        assert 400 <= said["apart"] <= 402, said
        # All of them again where the cost of links is measured meanwhile.
        assert said["compiled"] < said["apart"] + 4, said


def test_calls_that_are_waited_for_go_on_in_the_queue(job: Job) -> None:
    said = finish(job(3, direct_calls.hand_every_call_over))
    assert [one["wrong"] for one in said] == [[]] * 3
    assert all(one["handed"] > 5 for one in said)


def test_who_misses_a_call_is_named_and_the_array_is_kept(job: Job) -> None:
    ranks = job(3, direct_calls.miss_a_call)
    missed = [rank.expect("missed") for rank in ranks]
    assert missed[0]["error"] == "CollectiveTimeout"
    assert missed[0]["ranks"] == [1, 2]
    assert (missed[0]["intact"], missed[0]["kept"]) == (True, True)
    for rank in ranks:
        rank.say()
    said = finish(ranks)
    assert [one["right"] for one in said] == [True] * 3
    assert [one["error"] for one in said] == ["CollectiveTimeout"] * 3


def test_calls_that_differ_are_told_apart_on_every_rank(job: Job) -> None:
    for said in [rank.expect("done") for rank in job(2, direct_calls.call_differently)]:
        assert said["error"] == "CollectiveMismatch"
        assert "float64[10]" in said["text"]
        assert "float64[11]" in said["text"]
        assert "at direct_calls.py" in said["text"]


def test_a_rank_that_is_killed_is_named(job: Job) -> None:
    ranks = job(3, direct_calls.lose_a_rank)
    for rank in ranks[:2]:
        said = rank.expect("done")
        assert said["error"] == "PeerFailed"
        assert said["ranks"] == [2]


def test_ctrl_c_ends_a_call_and_the_others_hear_of_it(job: Job) -> None:
    ranks = job(2, direct_calls.interrupt_a_call)
    assert ranks[0].expect("interrupted")["error"] == "KeyboardInterrupt"
    ranks[1].say()
    said = ranks[1].expect("interrupted")
    assert "Ctrl-C" in said["text"]
    for rank in ranks:
        rank.say()


@pytest.mark.parametrize("moment", ["_create_operation", "_post_to_loop"])
def test_ctrl_c_between_the_start_of_a_call_and_its_wait_ends_it(job: Job, moment: str) -> None:
    ranks = job(2, direct_calls.interrupt_a_call_once_begun, moment)
    assert ranks[0].expect("interrupted")["error"] == "KeyboardInterrupt"
    ranks[1].say()
    other = ranks[1].expect("interrupted")
    assert (other["error"], other["reason"]) == ("GroupAborted", "Ctrl-C"), other
    assert [(one["kept"], one["right"]) for one in finish(ranks)] == [(True, True)] * 2


def test_two_threads_in_calls_at_once_are_refused_by_name(job: Job) -> None:
    for said in [rank.expect("done") for rank in job(2, direct_calls.call_from_two_threads)]:
        assert said["errors"]
        assert any("two threads called at the same time" in text for text in said["errors"]), said


def test_calls_are_recorded_once_wherever_they_end(job: Job) -> None:
    for said in finish(job(2, direct_calls.record_calls)):
        assert said["numbers"] == [1, 2, 3, 4, 5, 6, 7]
        assert said["operations"] == ["barrier"] + ["broadcast"] * 6
        assert said["outcomes"] == ["ok"] * 7
        assert all("over links" in how for how in said["how"])
        assert said["places"] == ["direct_calls.py record_calls"] * 7
        assert said["signatures"] == ["barrier()", "broadcast(float64[7], root 0)"]
        assert said["direct"] > 3


@pytest.mark.parametrize(("way", "size"), [("socket", 3), ("hosts aabb", 4)])
def test_ranks_that_hear_of_unlike_sizes_of_others_write_nothing(
    job: Job, way: str, size: int
) -> None:
    """Also those whose own blocks come as they want them, in the core."""
    for said in finish(job(size, direct_calls.disagree_on_sizes, way)):
        assert said["error"] == "CollectiveMismatch"
        assert said["kept"]
        assert said["is_right"]
        assert "all_to_all" in said["made_there"]
