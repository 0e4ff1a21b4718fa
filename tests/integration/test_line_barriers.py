"""Named barriers on key-value connections."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from allhands import errors
from allhands.coordinator.client import Control
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until

_LONG = 100.0
"""Seconds that no test takes: a call that lasts so long was not woken."""
_NAMES = ["a", "b"]


def test_a_barrier_is_met_on_key_value_connections(control: Control, daemon: DaemonProcess) -> None:
    with Control(daemon.endpoint, job=control.job_name) as other, ThreadPoolExecutor(1) as pool:
        for one in (control, other):
            one.count()  # opens a connection
            one._stub = None  # which leaves it for calls
        going = pool.submit(other.barrier, "gate", "b", _NAMES, timeout=_LONG)
        assert control.barrier("gate", "a", _NAMES, timeout=_LONG) == 1
        assert going.result(_LONG) == 1


def test_a_participant_whose_connection_ended_does_not_count(
    control: Control, daemon: DaemonProcess
) -> None:
    other = Control(daemon.endpoint, job=control.job_name)
    other.count()

    def is_there() -> bool:
        """Arrive as the other, which is refused while that waits."""
        with pytest.raises(errors.AllhandsError) as told:
            control.barrier("gate", "b", _NAMES, timeout=0.1)
        return not isinstance(told.value, errors.StoreTimeout)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(other.barrier, "gate", "b", _NAMES, timeout=_LONG)
        poll_until(is_there)
        other.close()
        with pytest.raises(errors.CoordinatorUnavailable):
            going.result(_LONG)
    poll_until(lambda: not is_there())
    with pytest.raises(errors.StoreTimeout, match="1 of 2 did not arrive at barrier 'gate'"):
        control.barrier("gate", "a", _NAMES, timeout=1.0)
