"""Verbs that the key-value port of a coordinator takes."""

import pytest

from allhands.coordinator.kv.calls import read_kv_port
from allhands_proto.kv_verbs import KV_VERBS
from allhands_proto.v1 import coordinator_pb2 as wire


@pytest.mark.parametrize("name", KV_VERBS)
def test_a_port_takes_the_verbs_that_its_coordinator_names(name: str) -> None:
    port = read_kv_port(wire.CoordinatorDescription(kv_port=1, kv_verbs=["get", "barrier"]))
    assert port is not None
    assert port.takes(KV_VERBS[name]) == (name in ("get", "barrier"))


@pytest.mark.parametrize("name", KV_VERBS)
def test_a_port_of_an_older_coordinator_takes_all_but_barriers(name: str) -> None:
    port = read_kv_port(wire.CoordinatorDescription(kv_port=1))
    assert port is not None
    assert port.takes(KV_VERBS[name]) == (
        name not in ("barrier", "cancel_barrier", "list_barriers")
    )
