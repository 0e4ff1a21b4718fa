"""A small network and the gradients, in the order of backpropagation."""

from collections.abc import Iterator

import numpy as np

Arrays = dict[str, np.ndarray]

ROWS = 24
INPUTS, HIDDEN, OUTPUTS = 5, 7, 3


def parameters(seed: int = 0, **dtypes: str) -> Arrays:
    """Return the parameters of three layers; of float64 unless `dtypes` says otherwise."""
    random = np.random.default_rng(seed)
    shapes = {
        "w1": (INPUTS, HIDDEN),
        "b1": (HIDDEN,),
        "w2": (HIDDEN, HIDDEN),
        "b2": (HIDDEN,),
        "w3": (HIDDEN, OUTPUTS),
        "b3": (OUTPUTS,),
    }
    return {
        name: random.normal(0, 0.5, shape).astype(dtypes.get(name, "float64"))
        for name, shape in shapes.items()
    }


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of a step, the same on all ranks."""
    random = np.random.default_rng(1000 + step)
    return random.normal(size=(ROWS, INPUTS)), random.normal(size=(ROWS, OUTPUTS))


def gradients(given: Arrays, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the gradient of the mean squared error by each parameter, the last first.

    Each is the mean over the rows, in the dtype of its parameter.
    """
    first = np.tanh(x @ given["w1"] + given["b1"])
    second = np.tanh(first @ given["w2"] + given["b2"])
    slope = 2 * (second @ given["w3"] + given["b3"] - y) / len(x)
    for layer, inputs in (("3", second), ("2", first), ("1", x)):
        yield "b" + layer, slope.sum(axis=0).astype(given["b" + layer].dtype)
        yield "w" + layer, (inputs.T @ slope).astype(given["w" + layer].dtype)
        slope = (slope @ given["w" + layer].T) * (1 - inputs**2)


def descend(given: Arrays, found: Arrays) -> None:
    """Go a step down the gradient."""
    for name, gradient in found.items():
        given[name] -= 0.1 * gradient


def trained_alone(steps: int, **dtypes: str) -> Arrays:
    """Train on whole batches, in one process."""
    given = parameters(0, **dtypes)
    for step in range(steps):
        descend(given, dict(gradients(given, *batch(step))))
    return given


def share(step: int, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of one rank."""
    x, y = batch(step)
    return x[rank::size], y[rank::size]
