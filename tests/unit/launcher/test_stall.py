"""Stalls found in a diagnosis."""

import pytest

from allhands.coordinator.diagnosis import Diagnosis, PendingOperation, RankDiagnosis
from allhands.launcher.stall import Stall, find_stall


def _wait(
    *waits_for: int, sequence: int = 3, group: str = "world", seconds: float = 10.0
) -> PendingOperation:
    return PendingOperation(
        group, sequence, "all_reduce", "", seconds, waits_for, "", "train.py:31 in step", seconds
    )


def _find(*waits: tuple[PendingOperation, ...], seconds: float = 5.0, **gone: str) -> Stall | None:
    ranks = tuple(
        RankDiagnosis(
            rank, "host", 100 + rank, "", pending, 0.0, "barrier #2 of group world",
            'File "load.py", line 7, in load\n    read()\n', gone.get(f"rank{rank}", ""),
        )
        for rank, pending in enumerate(waits)
    )  # fmt: skip
    return find_stall(Diagnosis("job", "running", ranks, (), ()), seconds)


def test_the_rank_that_stays_away_is_named_with_its_line() -> None:
    found = _find((_wait(2),), (_wait(2, seconds=8),), ())
    assert found is not None
    assert found.key == ("world", 3, (2,))
    assert "all_reduce #3 of group world (train.py:31 in step) has waited" in found.verdict
    assert "rank 2 (host host, pid 102) is outside any operation" in found.verdict
    assert 'at File "load.py", line 7, in load' in found.verdict


def test_a_call_that_has_not_waited_so_long_is_no_stall() -> None:
    assert _find((_wait(1, seconds=4),), ()) is None


def test_a_call_that_all_ranks_are_in_is_slow_and_no_stall() -> None:
    assert _find((_wait(1),), (_wait(0),)) is None


def test_waits_are_followed_to_the_rank_that_waits_for_none() -> None:
    found = _find((_wait(1),), (_wait(2, group="pair", sequence=1, seconds=9),), ())
    assert found is not None
    assert found.culprits == (2,)


def test_ranks_that_wait_for_each_other_in_two_calls_are_both_named() -> None:
    found = _find((_wait(1),), (_wait(0, group="other"),))
    assert found is not None
    assert found.culprits == (0, 1)


@pytest.mark.parametrize(("state", "said"), [("lost", "is lost"), ("left", "has left")])
def test_a_rank_that_is_gone_is_named_and_its_own_calls_do_not_count(state: str, said: str) -> None:
    found = _find((_wait(1),), (_wait(0, seconds=99, group="old"),), rank1=state)
    assert found is not None
    assert found.group == "world"
    assert said in found.verdict


def test_a_message_waits_for_its_sender() -> None:
    found = _find((_wait(1, sequence=0),), ())
    assert found is not None
    assert "all_reduce of group world" in found.verdict
    assert found.culprits == (1,)
