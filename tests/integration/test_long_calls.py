"""Calls of tens of MiB between two hosts of one rank each, in pieces in the native core."""

import pytest

from allhands.runtime import native_core
from programs import long_calls
from support.ranks.processes import Job, finish

pytestmark = pytest.mark.skipif(native_core.find()[0] is None, reason="there is no native core")


@pytest.mark.parametrize("begins", [False, True])
def test_calls_of_all_kinds_give_the_right_values(job: Job, begins: bool) -> None:
    for said in finish(job(2, long_calls.make_calls_of_all_kinds, 3, 30, begins)):
        assert said["wrong"] == []
        assert said["by_core"] > 0, said


def test_a_call_keeps_the_loop_while_it_moves_on(job: Job) -> None:
    for said in finish(job(2, long_calls.call_alone, 60, long_calls.LONG, False)):
        assert said["by_core"] > 0


def test_a_call_leaves_the_loop_to_its_thread_and_goes_on_there(job: Job) -> None:
    for said in finish(job(2, long_calls.call_alone, 3, long_calls.LONGEST, True)):
        assert said["by_core"] == 0


def test_other_calls_go_on_beside_long_ones(job: Job) -> None:
    for said in finish(job(2, long_calls.call_beside_others, 8, 2000)):
        assert said["wrong"] == []
        assert said["most"] > 0
