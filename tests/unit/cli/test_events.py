"""Lines of `allhands events`."""

import pytest

from allhands.cli.events import _print_event
from allhands.cli.render import Output
from allhands.coordinator.event_calls import JobEvent


def test_texts_stand_in_one_column_whatever_the_kind(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [("joined", ""), ("left", "error"), ("lost", "unreachable"), ("silent", "unreachable")]
    for kind, state in kinds:
        _print_event(JobEvent(1, 0.0, kind, "rank 0", 0, state, 1, ""), Output.TABLE)
    lines = capsys.readouterr().out.splitlines()
    assert {line.index("rank 0") for line in lines} == {44}
