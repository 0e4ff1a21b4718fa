"""Announcements of shared memory among ranks of one host."""

import pytest

from allhands.shm.arena import SegmentAddress

_ADDRESS = SegmentAddress("host", 7, 4096, b"nonce")


def test_an_announcement_is_read_back() -> None:
    assert SegmentAddress.parse(str(_ADDRESS)) == _ADDRESS


@pytest.mark.parametrize("version", ["", "/1", "/2", "/x", "/3/3"])
def test_memory_of_another_version_is_not_mapped(version: str) -> None:
    named, _, _ = str(_ADDRESS).rpartition("/")
    assert SegmentAddress.parse(named + version) is None
