"""Limits as users write them."""

import pytest

from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits, read_limits


def test_nothing_given_leaves_the_defaults() -> None:
    assert read_limits([], {}) == DEFAULT_LIMITS


def test_sizes_have_units() -> None:
    found = read_limits(["memory=2GiB", "client-bytes=3MiB", "value-size=64KiB", "job-keys=5"], {})
    assert found == ResourceLimits(
        memory=2 << 30, client_bytes=3 << 20, value_size=64 << 10, job_keys=5
    )


def test_what_is_given_overrides_the_environment() -> None:
    environ = {"ALLHANDS_LIMITS": " job-keys=5, jobs=7,"}
    assert read_limits(["jobs=9"], environ) == ResourceLimits(job_keys=5, jobs=9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys=5", "no limit 'keys'; there are: memory, value-size, jobs"),
        ("job_keys=5", "no limit 'job_keys'"),
        ("job-keys", "whole number"),
        ("job-keys=", "whole number"),
        ("job-keys=-1", "not '-1'"),
        ("job-keys=1.5", "not '1.5'"),
        ("memory=2GB", "not '2GB'"),
        ("memory=9999999999999999TiB", "whole number"),
        ("memory=1KiB", "memory is from 16,777,216 to"),
        ("value-size=5MiB", "value-size is from 1 to 4,194,304 bytes"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="limit") as caught:
        read_limits([text], {})
    assert said in str(caught.value)
