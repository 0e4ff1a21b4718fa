"""The record of the seeds' tests, the reference of `make test-torch`."""

from support.seeds import record
from support.seeds.rows import by_row


def test_the_record_has_every_test_of_the_seeds() -> None:
    assert len(record.read()) == 186


def test_every_test_of_the_seeds_is_about_a_row() -> None:
    rows = by_row(record.read())
    assert {test for tests in rows.values() for test in tests} == set(record.read())


def test_what_passes_over_gloo_passes_over_allhands() -> None:
    behind = [one.test for one in record.read().values() if one.gloo == "pass" != one.allhands]
    assert behind == []


def test_what_does_not_pass_has_a_cause() -> None:
    assert not record.unexplained()
    assert all(one.note for one in record.read().values() if one.allhands != "pass")
