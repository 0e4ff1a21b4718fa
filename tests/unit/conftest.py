"""What the unit tests share."""

import pytest

from allhands.collectives import hierarchical_plan, plan
from allhands.collectives.algorithms import select
from allhands.engine.links import executor, output_guard
from allhands.transport import inbox, outbox

CHUNK = 64
EAGER = 32
UNASKED = 48
EAGER_BUDGET = 192


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink everything that has a size, so that tens of elements are a large array.

    They then take the paths of large ones: slices side by side, ring algorithms, messages that
    wait until they are asked for, and several frames for each.
    """
    monkeypatch.setattr(select, "SMALL", 64)
    monkeypatch.setattr(select, "PAIR", 64)
    monkeypatch.setattr(select, "DOUBLED", 128)
    monkeypatch.setattr(select, "MEDIUM", 160)
    monkeypatch.setattr(plan, "SLICE_BYTES", 80)
    monkeypatch.setattr(plan, "BLOCK_SLICE_BYTES", 160)
    monkeypatch.setattr(output_guard, "STAGED_BYTES", 64)
    monkeypatch.setattr(output_guard, "ALONG_BYTES", 32)
    monkeypatch.setattr(hierarchical_plan, "FLAT", -1)
    monkeypatch.setattr(hierarchical_plan, "SMALL", 64)
    monkeypatch.setattr(hierarchical_plan, "SLICE_BYTES", 240)
    monkeypatch.setattr(outbox, "CHUNK", CHUNK)
    monkeypatch.setattr(outbox, "EAGER", EAGER)
    for module in (outbox, executor):
        monkeypatch.setattr(module, "UNASKED", UNASKED)
    for module in (outbox, inbox):
        monkeypatch.setattr(module, "EAGER_BUDGET", EAGER_BUDGET)
    monkeypatch.setattr(inbox, "_CREDIT_STEP", EAGER_BUDGET // 4)
