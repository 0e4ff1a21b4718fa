"""A training step in the manner of DistributedDataParallel, with a known result.

The model has linear layers and nothing between them, and its loss is the sum of what comes out: so
gradients grow with the scale of what goes in, and NumPy finds them without PyTorch.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allhands.bench.case import BATCH, BenchCase
from allhands.bench.data import Array, draw_values

_TOLERANCE = 1e-4
"""Of the largest gradient of a layer: what the order of float32 sums may change."""


def make_step(case: BenchCase, x: Array, out: Array, seed: int) -> Callable[[], object]:
    """Return a step on `x` that leaves the mean gradient of all ranks in `out`.

    The default group of torch.distributed is there; all its ranks call this.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    width = case.width
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(case.layers)]
    with torch.no_grad():
        for layer, drawn in zip(layers, draw_weights(case, seed), strict=True):
            layer.weight.copy_(torch.from_numpy(drawn))
    gradients = torch.from_numpy(out.reshape(case.layers, width, width))
    for layer, gradient in zip(layers, gradients, strict=True):
        layer.weight.grad = gradient
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    inputs = torch.from_numpy(x.reshape(BATCH, width))

    def train() -> None:
        model.zero_grad(set_to_none=False)
        model(inputs).sum().backward()

    return train


class StepData:
    """Input and expected output of one rank in a step; see `data.CaseData`."""

    def __init__(self, case: BenchCase, rank: int, seed: int) -> None:
        brought = [
            draw_values(case, one, seed).astype(np.float32).reshape(BATCH, case.width)
            for one in range(case.ranks)
        ]
        self._input = brought[rank].reshape(-1)
        self._correct = list(_compute_gradients(np.concatenate(brought), case, seed))

    def fill(self, x: Array, scale: int) -> None:
        """Write this rank's input."""
        x[:] = self._input * np.float32(scale)

    def find_error(self, result: Array, scale: int) -> str | None:
        """Return a description of an error in the result; None: correct."""
        for layer, (found, due) in enumerate(
            zip(result.reshape(len(self._correct), -1), self._correct, strict=True)
        ):
            far = float(np.abs(np.subtract(found, due.reshape(-1) * np.float32(scale))).max())
            largest = float(np.abs(due).max()) * scale
            if not far <= _TOLERANCE * largest:
                return (
                    f"a gradient of layer {layer} of {len(self._correct)} is {far:.3g} from the "
                    f"ranks' mean, whose largest is {largest:.3g}"
                )
        return None


def draw_weights(case: BenchCase, seed: int) -> Iterator[NDArray[np.float32]]:
    """Draw those of each layer."""
    random = np.random.default_rng(seed)
    for _ in range(case.layers):
        yield random.standard_normal((case.width,) * 2, np.float32) / np.float32(case.width**0.5)


def _compute_gradients(
    inputs: NDArray[np.float32], case: BenchCase, seed: int
) -> Iterator[NDArray[np.float32]]:
    """Give each layer's, of the sum of outputs: y = x W^T, so dW = (dy)^T x and dx = dy W."""
    layers = list(draw_weights(case, seed))
    entering = list(accumulate(layers[:-1], lambda x, one: x @ one.T, initial=inputs))
    leaving = np.ones_like(inputs)
    found: list[NDArray[np.float32]] = []
    for one, x in zip(reversed(layers), reversed(entering), strict=True):
        found.append(leaving.T @ x / np.float32(case.ranks))
        leaving = np.matmul(leaving, one)
    return reversed(found)
