"""Verifying groups on real ranks, over shared memory and over links."""

import ctypes

import pytest

from allhands.runtime import native_core
from programs import verified
from support.ranks.processes import Job, finish


@pytest.mark.parametrize("backend", ["auto", "socket", "grpc"])
def test_every_collective_passes_on_a_group_that_verifies(job: Job, backend: str) -> None:
    ranks = job(3, verified.every_collective)
    for rank in ranks:
        done = rank.expect("done")
        assert done["wrong"] == []
        assert done["verify"] == [True, False, True]
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize("hosts", ["aabb", "abbba"])
def test_every_collective_passes_between_hosts_of_several_ranks(job: Job, hosts: str) -> None:
    for said in finish(job(len(hosts), verified.every_collective, hosts)):
        assert said["wrong"] == []


@pytest.mark.parametrize(
    ("backend", "size", "hosts"), [("socket", 2, ""), ("socket", 3, ""), ("auto", 4, "aabb")]
)
def test_short_calls_end_on_their_callers_threads_or_go_on_from_where_they_are(
    job: Job, size: int, hosts: str
) -> None:
    for rank in job(size, verified.come_late, 150, hosts):
        done = rank.expect("done")
        assert done["wrong"] == []
        seen = done["seen"]
        assert seen["on the loop"] < done["calls"] - 20, seen
        assert seen["gone on with"] > 5, seen
        assert seen["compared there"] > 5, seen
        assert min(seen["called"], seen["comparing"]) > 3, seen
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")
@pytest.mark.parametrize("backend", ["socket"])
def test_the_core_makes_the_digests_of_a_group_by_the_keys_of_its_links(job: Job) -> None:
    try:
        ctypes.CDLL("libcrypto.so.3")
    except OSError:
        pytest.skip("there is no OpenSSL 3")
    for said in finish(job(3, verified.compare_digests)):
        assert said["alike"] == [True] * 4


def test_memory_that_changes_during_a_call_is_named_on_every_rank(job: Job) -> None:
    ranks = job(3, verified.change_memory_of_a_call)
    ranks[1].expect("flipped")
    for rank in (ranks[0], ranks[2]):
        rank.say("go on")
    for rank in ranks:
        error = rank.expect("error")
        assert (error["ranks"], error["link"], error["seq"]) == ([1], None, 2)
        assert "different results: rank 1, unlike the others" in error["text"]
        assert rank.expect("sum")["sum"] == 3.0
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize(
    ("backend", "size", "hosts"), [("socket", 3, ""), ("grpc", 3, ""), ("auto", 4, "aabb")]
)
@pytest.mark.parametrize("calls_before", [0, 20], ids=["first", "later"])
def test_a_result_unlike_the_others_is_named_on_every_rank(
    job: Job, backend: str, size: int, hosts: str, calls_before: int
) -> None:
    ranks = job(size, verified.differ_in_a_result, calls_before, hosts)
    found_in_the_core = 0
    for rank in ranks:
        for number in range(verified.DIFFERING_CALLS):
            error = rank.expect("error")
            assert error["ranks"] == [1]
            assert (error["link"], error["seq"]) == (None, calls_before + 1 + number)
            assert "different results: rank 1, unlike the others" in error["text"]
        found_in_the_core += rank.expect("progress")["compared"]
    if calls_before and backend != "grpc":
        assert found_in_the_core > 0
    for rank in ranks:
        assert rank.expect("sum")["sum"] == size
        assert rank.ended() == 0, "".join(rank.errors)


@pytest.mark.parametrize(
    ("backend", "size", "hosts"), [("socket", 3, ""), ("grpc", 3, ""), ("auto", 4, "aabb")]
)
@pytest.mark.parametrize("retryable", [False, True], ids=["once", "retryable"])
@pytest.mark.parametrize(("length", "calls_before"), [(400_000, 0), (50, 20)])
def test_a_bit_that_flips_on_a_link_names_it_on_every_rank(
    job: Job, size: int, hosts: str, length: int, calls_before: int, retryable: bool
) -> None:
    ranks = job(size, verified.flip_a_bit, length, calls_before, retryable, hosts)
    links = set()
    for rank in ranks:
        error = rank.expect("error")
        links.add(tuple(error["link"]))
        number = calls_before + 1
        assert (error["op"], error["seq"]) == (
            "all_reduce",
            2 * number - 1 if retryable else number,
        )
        assert error["kept"] or not retryable
        assert rank.expect("sum")["sum"] == size * length
        assert rank.ended() == 0, "".join(rank.errors)
    [(start, _)] = links
    assert start == 2


@pytest.mark.parametrize("backend", ["socket", "grpc"])
def test_a_relay_on_the_path_cannot_change_data_without_being_found_out(job: Job) -> None:
    for rank in job(2, verified.relay_changed_frames):
        told = rank.expect("relayed")
        assert told["error"] == "DataCorrupted", told
        assert "(digest)" in told["text"]
        assert rank.ended() == 0, "".join(rank.errors)
