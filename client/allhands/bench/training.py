"""One step of training, as PyTorch's DistributedDataParallel does it, whose result is known.

The model has linear layers and nothing between them, and its loss is the sum of what comes out: so
gradients grow with the scale of what goes in, and NumPy finds them without PyTorch.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from allhands.bench.cell import BATCH, Cell
from allhands.bench.data import Array, values

_TOLERANCE = 1e-4
"""Of the largest gradient of a layer: what the order of float32 sums may change."""


def step(cell: Cell, x: Array, out: Array, seed: int) -> Callable[[], object]:
    """Return what does one step on `x` and leaves the mean of all ranks' gradients in `out`.

    The default group of torch.distributed is there; all its ranks call this.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    width = cell.width
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(cell.layers)]
    with torch.no_grad():
        for layer, drawn in zip(layers, weights(cell, seed), strict=True):
            layer.weight.copy_(torch.from_numpy(drawn))
    gradients = torch.from_numpy(out.reshape(cell.layers, width, width))
    for layer, gradient in zip(layers, gradients, strict=True):
        layer.weight.grad = gradient
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    inputs = torch.from_numpy(x.reshape(BATCH, width))

    def train() -> None:
        model.zero_grad(set_to_none=False)
        model(inputs).sum().backward()

    return train


class Gradients:
    """What one rank brings to a step, and what it must get; see `data.Data`."""

    def __init__(self, cell: Cell, rank: int, seed: int) -> None:
        brought = [
            values(cell, one, seed).astype(np.float32).reshape(BATCH, cell.width)
            for one in range(cell.ranks)
        ]
        self._mine = brought[rank].reshape(-1)
        self._due = list(_gradients(np.concatenate(brought), cell, seed))

    def fill(self, x: Array, scale: int) -> None:
        """Write what this rank brings."""
        x[:] = self._mine * np.float32(scale)

    def wrong(self, got: Array, scale: int) -> str | None:
        """Say what is wrong with a result; None: nothing."""
        for layer, (found, due) in enumerate(
            zip(got.reshape(len(self._due), -1), self._due, strict=True)
        ):
            far = float(np.abs(np.subtract(found, due.reshape(-1) * np.float32(scale))).max())
            largest = float(np.abs(due).max()) * scale
            if not far <= _TOLERANCE * largest:
                return (
                    f"a gradient of layer {layer} of {len(self._due)} is {far:.3g} from the "
                    f"ranks' mean, whose largest is {largest:.3g}"
                )
        return None


def weights(cell: Cell, seed: int) -> Iterator[NDArray[np.float32]]:
    """Draw those of each layer."""
    random = np.random.default_rng(seed)
    for _ in range(cell.layers):
        yield random.standard_normal((cell.width,) * 2, np.float32) / np.float32(cell.width**0.5)


def _gradients(inputs: NDArray[np.float32], cell: Cell, seed: int) -> Iterator[NDArray[np.float32]]:
    """Give each layer's, of the sum of outputs: y = x W^T, so dW = (dy)^T x and dx = dy W."""
    layers = list(weights(cell, seed))
    entering = list(accumulate(layers[:-1], lambda x, one: x @ one.T, initial=inputs))
    leaving = np.ones_like(inputs)
    found: list[NDArray[np.float32]] = []
    for one, x in zip(reversed(layers), reversed(entering), strict=True):
        found.append(leaving.T @ x / np.float32(cell.ranks))
        leaving = np.matmul(leaving, one)
    return reversed(found)
