"""Calls of ranks in shared memory: right over every face, for every array, and explained."""

import json
import os
from typing import Any

import pytest

from programs import persistent_calls, shared_memory, shared_memory_lifetimes, shared_memory_routes
from support.ranks.processes import Cluster, Job, Process


def told(ranks: list[Process], what: str = "done") -> list[dict[str, Any]]:
    """Return all ranks' reports; none may have a fault, and all must succeed."""
    said = [rank.expect(what) for rank in ranks]
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
    for one in said:
        assert one.get("faults", []) == []
    return said


# ---------------------------------------------------------------- right numbers


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_collective_is_right_around_every_threshold(job: Job, size: int) -> None:
    # Many ranks with smaller limits: the same cases with less to copy.
    limits = [8 << 10, 64 << 10, 1 << 20] if size < 3 else [4 << 10, 40 << 10, 64 << 10]
    names = ("SLOT_MAX", "ATTACH_MIN", "CHUNK")
    given = {f"ALLHANDS_ARENA_{name}": str(one) for name, one in zip(names, limits, strict=True)}
    told(job(size, shared_memory.every_collective, LIMITS=json.dumps(limits), **given))


@pytest.mark.parametrize("size", [2, 3])
def test_calls_of_all_faces_keep_one_order(job: Job, size: int) -> None:
    told(job(size, shared_memory.call_from_every_face))


def test_threads_that_call_on_groups_of_their_own_do_not_disturb_each_other(job: Job) -> None:
    told(job(2, shared_memory.call_from_threads))


def test_the_asyncio_face_uses_shared_memory(job: Job) -> None:
    for one in told(job(2, shared_memory.call_from_asyncio)):
        assert "slots" in one["said"]


# ---------------------------------------------------------------- arrays of every kind


@pytest.mark.parametrize("size", [2, 3])
def test_every_dtype_is_reduced_by_every_operation_it_allows(job: Job, size: int) -> None:
    told(job(size, shared_memory.reduce_every_dtype))


@pytest.mark.parametrize("size", [2, 3])
def test_averages_of_integers_are_divided_towards_zero_whatever_way_a_call_goes(
    job: Job, size: int
) -> None:
    told(job(size, shared_memory.average_integers))


def test_elements_of_any_kind_are_moved(job: Job) -> None:
    told(job(2, shared_memory.move_every_kind))


def test_inputs_may_have_any_strides_and_overlap_outputs(job: Job) -> None:
    told(job(3, shared_memory.stride_and_overlap))


# ---------------------------------------------------------------- what it says


def test_a_call_says_how_it_was_carried_out(job: Job) -> None:
    everything = {"small": 12, "middle": 11, "large": 11, "shared": 11}
    reduced = {2: ["swap", "mailboxes", "swap", "swap"], 3: ["mailboxes"] * 2 + ["swap"] * 2}
    for size in (2, 3):
        ranks = job(
            size, shared_memory_routes.explain_calls, ALLHANDS_ARENA_ATTACH_MIN=str(1 << 16)
        )
        said = {what: [rank.expect(what)["said"] for rank in ranks] for what in everything}
        for one in said["small"]:
            assert one == ["slots"] * everything["small"]
        for one in said["middle"]:
            moved = ["staged"] * 3 + ["swap"] * 4
            # Middling arrays of three ranks are folded at their root.
            kinds = ["mailboxes", "staged", "swap", "swap"] if size == 3 else reduced[size]
            assert one == [*moved, *kinds]
        for one in said["large"]:
            assert one == [*["attach"] * 7, *reduced[size]]
        for one in said["shared"]:
            assert one == ["direct"] * everything["shared"]
        for rank in ranks:
            assert rank.expect("work")["said"].startswith("all_reduce #")
        told(ranks)


@pytest.mark.parametrize("backend", ["socket"])
def test_calls_over_links_say_nothing_of_shared_memory(job: Job) -> None:
    ranks = job(2, shared_memory_routes.explain_links)
    for rank in ranks:
        assert rank.expect("said")["said"] == ["", "", "doubling over links", [2.0] * 4]
    told(ranks)


# ---------------------------------------------------------------- arrays in shared memory


def test_views_of_shared_arrays_are_used_where_they_are(job: Job) -> None:
    ranks = job(3, shared_memory_lifetimes.use_views)
    for rank in ranks:
        assert rank.expect("view")["said"] == "direct"
        assert rank.expect("rows")["said"] == "direct"
        assert rank.expect("column")["said"] != "direct"
        assert rank.expect("mixed")["said"] == "mailboxes"
    told(ranks)


def test_the_memory_of_a_shared_array_goes_back_when_nobody_holds_it(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.return_memory))


def test_worlds_come_and_go_in_one_process_and_leave_nothing(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.make_worlds_again))


# ---------------------------------------------------------------- prepared calls


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_a_prepared_call_is_made_again_and_again(job: Job) -> None:
    told(job(3, persistent_calls.repeat_persistent_calls))


def test_a_prepared_call_that_is_misused_says_so_and_the_group_goes_on(job: Job) -> None:
    told(job(2, persistent_calls.misuse_persistent_calls))


def test_a_prepared_call_that_fails_can_be_made_again(job: Job) -> None:
    ranks = job(2, persistent_calls.fail_a_prepared_call)
    ranks[0].expect("late")
    for rank in ranks:
        rank.say()
    told(ranks)


# ---------------------------------------------------------------- limits and who can share


def test_limits_choose_how_a_call_is_carried_out(job: Job) -> None:
    slots = {"ALLHANDS_ARENA_SLOT_MAX": "600"}
    attach = {"ALLHANDS_ARENA_ATTACH_MIN": "65536"}
    never = {"ALLHANDS_ARENA_ATTACH_MIN": "-1"}
    chunk = {"ALLHANDS_ARENA_CHUNK": "4096"}
    for given, want in (
        ({}, ["slots", "slots", "staged"]),
        ({**slots, **attach}, ["slots", "swap", "attach"]),
        ({**slots, **never, **chunk}, ["slots", "swap", "staged"]),
    ):
        ranks = job(2, shared_memory_routes.obey_limits, **given)
        for rank in ranks:
            assert rank.expect("said")["said"] == want
        told(ranks)


def test_ranks_with_other_limits_talk_over_links_and_say_so(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    ranks = [
        cluster.start(
            shared_memory_routes.differ_in_limits,
            RANK=str(rank),
            WORLD_SIZE="3",
            ALLHANDS_URL=url,
            ALLHANDS_ARENA_CHUNK="65536" if rank else "4096",
        )
        for rank in range(3)
    ]
    assert [rank.expect("said")["said"] for rank in ranks] == ["", "", ""]
    for rank in ranks[1:]:
        assert "slots" in rank.expect("pair")["said"]
    told(ranks)
    for rank in ranks:
        assert "group 'world' talks over links" in "".join(rank.errors)
        assert "ALLHANDS_ARENA_" in "".join(rank.errors)


def test_who_insists_on_shared_memory_that_cannot_be_is_told_why(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    ranks = [
        cluster.start(
            shared_memory_routes.insist_on_a_backend,
            backend,
            RANK=str(rank),
            WORLD_SIZE="2",
            ALLHANDS_URL=url,
        )
        for rank, backend in enumerate(("shm", "socket"))
    ]
    said = ranks[0].expect("told")
    assert said["error"] == "AllhandsError", said
    assert "cannot share memory" in said["text"]
    assert "backend='auto'" in said["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
def test_ranks_in_two_network_namespaces_do_without_shared_memory(cluster: Cluster) -> None:
    url = cluster.daemon() + "/job"
    for wanted in ("auto", "shm"):
        ranks = cluster.world(
            2,
            shared_memory_routes.share_across_namespaces,
            ALLHANDS_URL=url + wanted,
            WANTED=wanted,
        )
        for rank in ranks:
            said = rank.expect("done" if wanted == "auto" else "refused")
            if wanted == "auto":
                assert said["x"] == [2.0] * 3
                assert said["said"] == ""
            else:
                assert "cannot share memory" in said["text"]


# ---------------------------------------------------------------- groups


def test_groups_in_any_order_of_ranks_are_right(job: Job) -> None:
    told(job(3, shared_memory.order_ranks_otherwise))


def test_the_memory_of_first_calls_is_there_before_them(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.touch_memory_ahead))


def test_first_messages_and_calls_need_no_event_loop(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.open_ways_ahead))


def test_groups_made_and_forgotten_do_not_pile_up_memory(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.make_groups_again))


# ---------------------------------------------------------------- forks


def test_a_forked_child_is_told_that_it_is_no_rank_and_its_parent_goes_on(job: Job) -> None:
    told(job(2, shared_memory_lifetimes.fork_a_child))


def test_a_call_behind_a_prepared_one_does_not_overtake_what_was_queued(job: Job) -> None:
    ranks = job(2, persistent_calls.queue_behind_a_prepared_call)
    ranks[0].expect("queued")
    ranks[1].say()
    told(ranks)
