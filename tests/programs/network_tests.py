"""Ranks of a world that measure the network, as `allhands doctor --network` does."""

import os
from typing import Any

from allhands.coordinator.client import Control
from allhands.doctor.network_test import measure_network
from programs.protocol import tell, until


def measure_reading_late() -> None:
    """Measure; rank 1 asks for what rank 0 has last told it once rank 0 waits for the end."""
    if os.environ["RANK"] == "1":
        _read_late()
    tell("measured", pairs=measure_network(os.environ, lambda text: None))


def _read_late() -> None:
    get = Control.get

    def get_late(self: Control, key: str, *args: Any, **kwargs: Any) -> Any:
        if key == "allhands-doctor/0/is_connected":
            until(lambda: _waits(self))
        return get(self, key, *args, **kwargs)

    Control.get = get_late  # type: ignore[assignment, method-assign]


def _waits(control: Control) -> bool:
    return any(
        one.name == "allhands-doctor/finish" and "0" in one.arrived for one in control.barriers()
    )
