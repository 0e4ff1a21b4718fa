"""Plain calls of groups that span hosts, with several ranks each, in the native core."""

import pytest

from allhands.runtime import native_core
from programs import direct_calls
from support.ranks.processes import Process
from support.ranks.two_hosts import Span

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

LAYOUTS = pytest.mark.parametrize("places", ["aabb", "aaab", "abab"])


def finish(ranks: list[Process]) -> list[dict[str, object]]:
    said = [rank.expect("done") for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    return said


@LAYOUTS
def test_calls_of_all_kinds_and_lengths_give_the_right_values(span: Span, places: str) -> None:
    for said in finish(span(places, direct_calls.call_all_kinds, len(places), 60, "auto")):
        assert said["wrong"] == []
        assert said["direct"] > 100


@LAYOUTS
def test_calls_that_are_waited_for_go_on_in_the_queue(span: Span, places: str) -> None:
    said = finish(span(places, direct_calls.hand_every_call_over, "auto"))
    assert [one["wrong"] for one in said] == [[]] * len(places)
    assert all(one["handed"] > 5 for one in said), said


@LAYOUTS
def test_who_misses_a_call_is_named_and_the_array_is_kept(span: Span, places: str) -> None:
    ranks = span(places, direct_calls.miss_a_call, "auto")
    missed = [rank.expect("missed") for rank in ranks]
    assert missed[0]["error"] == "CollectiveTimeout"
    assert missed[0]["ranks"] == [1, 2, 3]
    assert (missed[0]["intact"], missed[0]["kept"]) == (True, True)
    for rank in ranks:
        rank.say()
    said = finish(ranks)
    assert [one["right"] for one in said] == [True] * len(places)
    for one in said[1:]:  # what rank 0 sent before it gave up may be all that they need
        assert one["error"] == "CollectiveTimeout" or one["sum"], one


@LAYOUTS
def test_calls_that_differ_are_told_apart_on_every_rank(span: Span, places: str) -> None:
    ranks = span(places, direct_calls.call_differently, "auto")
    for said in [rank.expect("done") for rank in ranks]:
        assert said["error"] == "CollectiveMismatch"
        assert "float64[10]" in said["text"]
        assert "float64[11]" in said["text"]
        assert "at direct_calls.py" in said["text"]


@LAYOUTS
def test_a_rank_that_is_killed_is_named(span: Span, places: str) -> None:
    ranks = span(places, direct_calls.lose_a_rank, "auto")
    for rank in ranks[:3]:
        said = rank.expect("done")
        assert said["error"] == "PeerFailed"
        assert said["ranks"] == [3]
