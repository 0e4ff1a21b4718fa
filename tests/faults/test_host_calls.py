"""Plain calls of groups that span hosts, with several ranks each, in the native core."""

import pytest

from allhands.runtime import native_core
from programs import direct_calls
from support.ranks.processes import Job, Program, finish
from support.ranks.two_hosts import Span

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")

LAYOUTS = pytest.mark.parametrize(
    ("places", "way"),
    [("aabb", "auto"), ("aaab", "auto"), ("abab", "auto"), ("aabb", "verified auto")],
)


@LAYOUTS
def test_calls_of_all_kinds_and_lengths_give_the_right_values(
    span: Span, places: str, way: str
) -> None:
    for said in finish(span(places, direct_calls.call_all_kinds, len(places), 60, way)):
        assert said["wrong"] == []
        assert said["direct"] > 50


def test_lists_of_plain_arrays_go_by_the_core_and_others_are_checked(span: Span) -> None:
    for said in finish(span("aabb", direct_calls.gather_into_lists, "auto")):
        assert said["wrong"] == []
        assert said["errors"] == ["ValueError", "InvalidArgument", "InvalidArgument"]


def test_calls_under_labels_go_by_the_core_and_are_told_apart(span: Span) -> None:
    for said in finish(span("aabb", direct_calls.label_calls, "auto")):
        direct_calls.check_labels(said)


@LAYOUTS
def test_calls_that_are_waited_for_go_on_in_the_queue(span: Span, places: str, way: str) -> None:
    said = finish(span(places, direct_calls.hand_every_call_over, way))
    assert [one["wrong"] for one in said] == [[]] * len(places)
    assert all(one["handed"] > 5 for one in said), said


@pytest.mark.parametrize("hosts", ["aabbcc", "aabbbc"])
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (direct_calls.call_all_kinds, (7, 25)),
        (direct_calls.hand_every_call_over, ()),
        (direct_calls.mix_ways, (7, 200)),
    ],
)
def test_heads_of_three_hosts_go_through_several_rounds(
    job: Job, hosts: str, program: Program, arguments: tuple[int, ...]
) -> None:
    for said in finish(job(len(hosts), program, *arguments, f"hosts {hosts}")):
        assert said["wrong"] == []
        assert said.get("handed", 10) > 5  # type: ignore[operator]


@pytest.mark.parametrize("hosts", ["aAbb", "aAbbcC"])
def test_neighbours_that_share_no_memory_meet_over_links(job: Job, hosts: str) -> None:
    said = finish(job(len(hosts), direct_calls.call_all_kinds, 3, 25, f"hosts {hosts}"))
    for letter, one in zip(hosts.lower(), said, strict=True):
        assert one["wrong"] == []
        inside = "shared memory" if letter == "b" else "links"
        assert f": {inside} within hosts, between them" in str(one["how"]), said
    said = finish(job(len(hosts), direct_calls.mix_ways, 3, 200, f"hosts {hosts}"))
    assert [one["wrong"] for one in said] == [[]] * len(hosts)


@LAYOUTS
def test_who_misses_a_call_is_named_and_the_array_is_kept(
    span: Span, places: str, way: str
) -> None:
    ranks = span(places, direct_calls.miss_a_call, way)
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
def test_calls_that_differ_are_told_apart_on_every_rank(span: Span, places: str, way: str) -> None:
    ranks = span(places, direct_calls.call_differently, way)
    for said in [rank.expect("done") for rank in ranks]:
        assert said["error"] == "CollectiveMismatch"
        assert "float64[10]" in said["text"]
        assert "float64[11]" in said["text"]
        assert "at direct_calls.py" in said["text"]


@LAYOUTS
def test_a_rank_that_is_killed_is_named(span: Span, places: str, way: str) -> None:
    ranks = span(places, direct_calls.lose_a_rank, way)
    for rank in ranks[:3]:
        said = rank.expect("done")
        assert said["error"] == "PeerFailed"
        assert said["ranks"] == [3]


@pytest.mark.parametrize("victim", [0, 1, 3])
@LAYOUTS
def test_ctrl_c_ends_a_call_and_the_others_hear_of_it(
    span: Span, places: str, way: str, victim: int
) -> None:
    ranks = span(places, direct_calls.interrupt_a_call, way, victim)
    assert ranks[victim].expect("interrupted")["error"] == "KeyboardInterrupt"
    others = [rank for at, rank in enumerate(ranks) if at != victim]
    for rank in others:
        rank.say()
    for said in [rank.expect("interrupted") for rank in others]:
        assert "Ctrl-C" in said["text"], said
        assert said["kept"]
    for rank in ranks:
        rank.say()


@LAYOUTS
def test_ranks_may_take_other_ways_to_the_same_call(span: Span, places: str, way: str) -> None:
    for said in finish(span(places, direct_calls.mix_ways, len(places), 600, way)):
        assert said["wrong"] == []
        assert said["direct"] > 20


@LAYOUTS
def test_ranks_that_are_ahead_as_far_as_they_can_are_not_mixed_up(
    span: Span, places: str, way: str
) -> None:
    ranks = span(places, direct_calls.run_far_ahead, 300, 1000, way)
    for _ in range(2):
        ranks[0].say()
    assert [said["wrong"] for said in finish(ranks)] == [[]] * len(places)


@LAYOUTS
def test_calls_are_recorded_once_wherever_they_end(span: Span, places: str, way: str) -> None:
    for said in finish(span(places, direct_calls.record_calls, way)):
        assert said["numbers"] == [1, 2, 3, 4, 5, 6, 7]
        assert said["outcomes"] == ["ok"] * 7
        assert all("shared memory within hosts" in how for how in said["how"]), said["how"]
        assert said["places"] == ["direct_calls.py record_calls"] * 7
        assert said["direct"] > 3
