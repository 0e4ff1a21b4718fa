"""The tests in the seeds' listings end over allhands as the record says, and none is left out."""

from collections.abc import Iterator

import pytest
import torch

from support.pytorch_suite.failure_causes import cause
from support.pytorch_suite.suite_process import SuiteProcess
from support.seeds import listing, record

RECORD = record.read()

pytestmark = pytest.mark.skipif(not listing.is_there(), reason=listing.ABSENT)


@pytest.fixture(scope="module")
def process() -> Iterator[SuiteProcess]:
    """Give the process of the tests."""
    made = SuiteProcess(listing.program("allhands"))
    yield made
    made.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ended", RECORD.values(), ids=RECORD)
def test_a_body_ends_as_the_record_says(ended: record.Ended, process: SuiteProcess) -> None:
    has_devices = torch.cuda.is_available()
    if ended.allhands == "skip" and not has_devices:
        pytest.skip(ended.note)
    found = process.run_test(ended.test)
    if ended.allhands == "fail" and found.outcome == "fail":
        assert cause(found.why) == ended.note
    else:
        assert found.outcome == "pass" or found.outcome == ended.allhands, found.why


def test_the_record_has_every_test_of_the_listings() -> None:
    told = {one.test: one.rests_on_ours for one in RECORD.values()}
    assert listing.all_tests() == told, "write the record anew: make table-seeds"


@pytest.mark.parametrize("letter", listing.LISTINGS)
def test_mending_a_listing_loses_no_test(letter: str) -> None:
    assert len(listing.tests(letter)) == listing.count(letter)
