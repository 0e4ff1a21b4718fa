"""Fixtures shared by the unit tests."""

from collections.abc import Iterator

import pytest

from allhands.collectives import hierarchical_plan, plan, two_level_plan
from allhands.collectives.algorithms import select
from allhands.engine import link_calls
from allhands.engine.hosts import composite_runner, two_level
from allhands.engine.links import executor, output_guard
from allhands.transport import inbox, outbox
from support.process_state import check_process_state

CHUNK = 64
COPIED_EAGER_BYTES = 32
EAGER_BYTES = 48
EAGER_BUDGET = 192


@pytest.fixture(autouse=True)
def same_process_state() -> Iterator[None]:
    """Fail a test after which the process differs from before."""
    with check_process_state():
        yield


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink all size limits: tens of elements are a large array.

    They then take the paths of large ones: slices side by side, ring algorithms, messages that
    wait until they are asked for, and several frames for each.
    """
    monkeypatch.setattr(select, "SMALL_BYTES", 64)
    monkeypatch.setattr(select, "PAIR_BYTES", 64)
    monkeypatch.setattr(select, "DOUBLING_BYTES", 128)
    monkeypatch.setattr(select, "MEDIUM_BYTES", 160)
    monkeypatch.setattr(plan, "SLICE_BYTES", 80)
    monkeypatch.setattr(plan, "BLOCK_SLICE_BYTES", 160)
    monkeypatch.setattr(output_guard, "STAGED_BYTES", 64)
    monkeypatch.setattr(output_guard, "PACED_BYTES", 96)
    monkeypatch.setattr(output_guard, "PIGGYBACK_BYTES", 32)
    monkeypatch.setattr(hierarchical_plan, "FLAT_BYTES", -1)
    monkeypatch.setattr(hierarchical_plan, "SMALL_BYTES", 64)
    monkeypatch.setattr(two_level_plan, "TWO_LEVEL_BYTES", 64)
    monkeypatch.setattr(two_level_plan, "HEAD_BYTES", 256)
    monkeypatch.setattr(two_level_plan, "MESSAGE_BYTES", 40)
    monkeypatch.setattr(hierarchical_plan, "SLICE_BYTES", 240)
    monkeypatch.setattr(hierarchical_plan, "WHOLE_SLICE_BYTES", 480)
    monkeypatch.setattr(outbox, "MAX_PAYLOAD_BYTES", CHUNK)
    monkeypatch.setattr(outbox, "COPIED_EAGER_BYTES", COPIED_EAGER_BYTES)
    monkeypatch.setattr(executor, "BULK_EAGER_BYTES", EAGER_BYTES)
    for module in (composite_runner, inbox, link_calls, outbox, output_guard, two_level):
        monkeypatch.setattr(module, "EAGER_BYTES", EAGER_BYTES)
    monkeypatch.setattr(composite_runner, "_LONGEST_CUT_BYTES", 4 * EAGER_BYTES)
    monkeypatch.setattr(output_guard, "_ROOT_STAGED_BYTES", 3 * EAGER_BYTES)
    for module in (inbox, outbox):
        monkeypatch.setattr(module, "EAGER_BUDGET", EAGER_BUDGET)
        monkeypatch.setattr(module, "LONG_EAGER_BYTES", 4 * EAGER_BYTES)
    monkeypatch.setattr(inbox, "_CREDIT_STEP", EAGER_BUDGET // 4)
