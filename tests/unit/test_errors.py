"""Pickled errors keep their attributes in a second process."""

import pickle

import pytest

import allhands as ah

ERRORS = [
    ah.CollectiveTimeout("late", op="barrier", seq=3, missing_ranks=(1,), label="step"),
    ah.CollectiveMismatch("unlike", {0: "barrier()", 1: "send()"}),
    ah.DataCorrupted("spoilt", op="all_reduce", seq=2, link=(0, 1), ranks=(1,)),
    ah.PeerFailed("lost", (2, 3), ah.Verdict("world", 1, "barrier", (), "nobody")),
    ah.GroupAborted("over", by="rank 1", reason="enough"),
    ah.ForkedProcess(),
    ah.MembershipChanged("another", old_epoch=1, new_epoch=2),
    ah.StoreTimeout("timeout: no key"),
    ah.NotFound("no such job"),
    ah.LeaseNotFound("no such lease"),
    ah.Compacted("forgotten", oldest=7),
    ah.LockTimeout("held", (ah.LockHolder("h", 1, None, "k", 2),), 3),
    ah.BarrierCancelled("over", by="me", reason="enough"),
    ah.LockHeld("held here"),
    ah.LockLost("over"),
    ah.LimitExceeded("too many keys", retry_after=0.5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_pickled_error_is_put_together_with_all_it_says(error: ah.AllhandsError) -> None:
    error.add_intact(True, say=True)
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - just made
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    assert found.__dict__ == error.__dict__
    assert found.outputs_intact is True


def _time_out(text: str) -> ah.CollectiveTimeout:
    return ah.CollectiveTimeout(text, op="barrier", seq=3)


def test_state_of_outputs_ends_a_text_of_one_line() -> None:
    error = _time_out("barrier #3 timed out")
    error.add_intact(False, say=True)
    assert str(error) == "barrier #3 timed out; the call's outputs are undefined"
    error.restored()
    assert str(error) == "barrier #3 timed out; the call's outputs are untouched"


def test_state_of_outputs_does_not_run_into_a_line_of_somebodys_source() -> None:
    error = _time_out("barrier #3 timed out\nrank 1 is at\n    time.sleep(4)")
    error.add_intact(False, say=True)
    assert str(error).splitlines()[2:] == ["    time.sleep(4)", "the call's outputs are undefined"]
    error.restored()
    assert str(error).splitlines()[2:] == ["    time.sleep(4)", "the call's outputs are untouched"]
