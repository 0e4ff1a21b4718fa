"""Collectives on lists of arrays over shared memory that fail."""

from programs import list_calls as program
from support.ranks.processes import Job


def test_a_retryable_group_keeps_its_outputs_and_goes_on(job: Job) -> None:
    ranks = job(2, program.differ_in_a_retryable_group)
    for name in program.LISTS:
        for _ in range(2):
            for rank in ranks:
                told = rank.expect("refused")
                assert (told["name"], told["error"]) == (name, "CollectiveMismatch"), told
                assert told["kept"], told
                assert told["wrong"] == "", told
    for rank in ranks:
        assert rank.ended() == 0, "".join(rank.errors)
