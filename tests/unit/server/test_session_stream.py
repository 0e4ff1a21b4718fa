"""The stream of a session whose member takes nothing in."""

import pytest

from allhands_server import session_stream
from allhands_server.machine.effects import Draining
from allhands_server.session_stream import SessionStream


async def test_a_member_that_reads_nothing_is_dropped_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_stream, "MOST_UNREAD", 10)
    stream, overruns = SessionStream(1), []
    stream.on_overrun = lambda: overruns.append(len(stream._unread))
    for number in range(10):
        stream.put(Draining(str(number)))
    assert not overruns
    for number in range(100):
        stream.put(Draining(str(number)))
    assert overruns == [0]
    assert not stream._unread


async def test_a_member_that_reads_may_get_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_stream, "MOST_UNREAD", 10)
    stream, overruns = SessionStream(1), []
    stream.on_overrun = lambda: overruns.append(True)
    batches = stream.iterate_batches()
    for _ in range(5):
        for number in range(10):
            stream.put(Draining(str(number)))
        assert len(await anext(batches)) == 10
    assert not overruns
