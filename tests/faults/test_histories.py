"""Random calls on real ranks, some late, cancelled or mismatched.

Successful calls are right to the bit, and outputs reported as untouched are untouched.
"""

import pytest

from programs import histories
from support.ranks.processes import Job


@pytest.mark.parametrize(
    ("size", "backend", "limits", "steps"),
    [
        (2, "auto", {}, 400),
        (3, "auto", {}, 400),
        (4, "auto", {"SLOT_MAX": "512", "CHUNK": "4096", "ATTACH_MIN": "2000"}, 300),
        (3, "auto", {"SLOT_MAX": "64", "CHUNK": "65536", "ATTACH_MIN": "-1"}, 300),
        (3, "socket", {}, 200),
    ],
)
@pytest.mark.parametrize("seed", [1])
def test_what_ends_well_in_a_random_history_is_right(
    job: Job, size: int, backend: str, limits: dict[str, str], steps: int, seed: int
) -> None:
    given = {f"ALLHANDS_ARENA_{name}": value for name, value in limits.items()}
    ranks = job(size, histories.play_in_the_world, seed, steps, **given)
    told = [rank.expect("played") for rank in ranks]
    assert [one["wrong"] for one in told] == [[]] * size
    assert all(one["ended"]["well"] > steps // 2 for one in told)
    assert any("timeout" in one["ended"] for one in told)
    assert all("unlike" in one["ended"] for one in told)
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)


def test_histories_of_several_groups_at_once_are_right(job: Job) -> None:
    ranks = job(2, histories.play_in_three_groups)
    for rank in ranks:
        assert rank.expect("played")["wrong"] == [[]] * 3
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
