"""The record of PyTorch's own tests, the reference of `make test-torch`."""

from support.pytorch_suite import record
from support.pytorch_suite.suite_process import RUNS


def test_the_record_has_every_test_of_the_release() -> None:
    assert len(record.read()) == 285


def test_every_test_that_passes_over_gloo_passes_over_allhands() -> None:
    behind = [
        (name, str(run))
        for name, ended in record.read().items()
        for at, run in enumerate(RUNS)
        if ended["gloo"][at] == "pass" != ended["allhands"][at]
    ]
    assert not behind


def test_every_failure_has_a_cause() -> None:
    assert not record.unexplained()
