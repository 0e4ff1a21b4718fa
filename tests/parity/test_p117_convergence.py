"""Every compressing hook on the digits example: accuracy and traffic.

The trainings are as long as the example's, in which every hook is within a point for each of five
seeds that were tried. Shorter ones are not: `top_k` learns later.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allhands.testing import run_threads

SIZE = 3


@pytest.fixture(scope="module")
def compression() -> Iterator[Any]:
    """Give the example, which needs scikit-learn."""
    pytest.importorskip("sklearn")  # not at collection, where each worker would pay for it
    with pytest.MonkeyPatch.context() as patch:  # the example adds to sys.path by itself
        patch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
        import compression

        yield compression


@cache
def trained(compression: Any, name: str) -> tuple[float, float]:
    """Train on threads as ranks; return the accuracy, and the bytes sent by all in a step."""
    found = run_threads(SIZE)(lambda: compression.train(compression.WAYS[name]()))
    assert len({one.weights for one in found}) == 1, "the ranks hold different weights"
    return found[0].accuracy, sum(one.sent for one in found)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("fp16_compress", 0.5),
        pytest.param("bf16_compress", 0.5, marks=pytest.mark.nightly),
        ("int8", 0.26),
        pytest.param("top_k", 0.16, marks=pytest.mark.nightly),
        ("power_sgd", 0.14),
        ("post_local_sgd", 0.8),
    ],
)
def test_p117_hook_learns_digits_as_well_and_sends_less(compression: Any, name: str, most: float):
    accuracy, sent = trained(compression, "allreduce")
    assert accuracy > 0.95
    its_accuracy, its_sent = trained(compression, name)
    assert its_accuracy >= accuracy - 0.01
    assert 0 < its_sent <= most * sent


def test_p117_without_any_averaging_it_would_not_learn_as_one(compression: Any):
    """The comparison above says something: each rank by itself ends elsewhere."""
    way = compression.Way(compression.ah.hooks.noop)
    found = run_threads(SIZE)(lambda: compression.train(way, 1))
    assert len({one.weights for one in found}) == SIZE
    assert {one.sent for one in found} == {0}


def test_p104_power_sgd_learns_the_same_weights_on_all_ranks(compression: Any):
    """Averages come from factors of the gradients, with biases unchanged."""
    accuracy, _ = trained(compression, "power_sgd")
    assert accuracy > 0.95
