"""Receiver of messages, for tests of the inbox."""

import pytest

from support.inbox_receiver import Receiver


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()
