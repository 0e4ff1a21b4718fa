"""Counts of what a connection has under way."""

import pytest

from allhands_server.kv.client_load import ClientLoad, LogLoad
from allhands_server.machine.refusals import Status
from allhands_server.resource_limits import ResourceLimits

_MIB = 1 << 20


def test_a_connection_has_so_many_bytes_waiting_for_the_log() -> None:
    limits = ResourceLimits(client_bytes=2 * _MIB)
    load = ClientLoad(limits, LogLoad(limits))
    load.hold(1, 2 * _MIB)
    assert not load.is_log_full
    load.hold(2, 1)
    assert load.is_log_full
    load.release(1)
    load.release(1)
    assert not load.is_log_full


def test_all_connections_have_an_eighth_of_the_memory_waiting_for_the_log() -> None:
    limits = ResourceLimits(memory=16 * _MIB)
    all_ = LogLoad(limits)
    first, second, idle = (ClientLoad(limits, all_) for _ in range(3))
    first.hold(1, _MIB)
    second.hold(1, _MIB)
    assert not first.is_log_full
    second.hold(2, 1)
    assert first.is_log_full
    assert second.is_log_full
    assert not idle.is_log_full  # nothing of its own would let it go on
    second.close()
    assert not first.is_log_full
    assert all_.nbytes == _MIB


def test_so_many_calls_of_a_connection_wait_beside_those_for_the_log() -> None:
    limits = ResourceLimits(client_waiters=2)
    load = ClientLoad(limits, LogLoad(limits))
    load.hold(1, 10)
    assert load.check_waiters(3) is None
    refusal = load.check_waiters(4)
    assert refusal is not None
    assert refusal.status is Status.RESOURCE_EXHAUSTED
    assert "2 waiting calls" in refusal.text
    assert "--limit client-waiters=" in refusal.text


@pytest.mark.parametrize("nbytes", [_MIB, _MIB + 1])
def test_replies_are_too_many_above_the_limit(nbytes: int) -> None:
    limits = ResourceLimits(client_bytes=_MIB)
    assert ClientLoad(limits, LogLoad(limits)).add_reply(nbytes) is (nbytes > _MIB)
