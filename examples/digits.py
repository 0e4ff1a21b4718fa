"""Train a small network on handwritten digits with all ranks, each on its share of every batch.

    allhands run -n 4 examples/digits.py
    torchrun --nproc-per-node 4 examples/digits.py
    mpirun -n 4 python examples/digits.py
    python examples/digits.py

The data are the 1,797 digits (8x8 pixels) of the UCI repository that come with scikit-learn; the
network has two hidden layers and is written in plain NumPy. In the end rank 0 trains the same
network once more, alone, and says how far the two differ. Exit status 1: accuracy, agreement of
the ranks, or agreement with the training in one process is not what it must be.
"""

import os

# Ranks share the cores, so each computes with one thread; NumPy reads this when it is imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import allhands as ah

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

LAYERS = (64, 64, 64, 10)
EPOCHS = 20
BATCH = 64
LEARNING_RATE = 0.1
MOMENTUM = 0.9
TEST_ROWS = 360
LEAST_ACCURACY = 0.95


@dataclass(frozen=True, slots=True)
class Digits:
    pixels: Floats
    """(rows, 64), from 0 to 1."""
    labels: Integers

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: "Integers | slice") -> "Digits":
        return Digits(self.pixels[chosen], self.labels[chosen])


class Network:
    """A multi-layer perceptron whose parameters, and their gradients, are each one flat array.

    One array is one message: the gradients of a step travel in a single all_reduce. The layers
    are joined by tanh, which is smooth: at the kink of a ReLU a rounding error can decide over a
    whole gradient, and two trainings that are both right end a thousand times further apart.
    """

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        sizes = list(pairwise(LAYERS))
        count = sum(rows * columns + columns for rows, columns in sizes)
        self.parameters = np.zeros(count, np.float32)
        self.gradients = np.zeros(count, np.float32)
        self._layers = list(layer_views(self.parameters))
        self._layer_gradients = list(layer_views(self.gradients))
        for weights, _ in self._layers:
            weights[:] = random.normal(0, 1 / np.sqrt(len(weights)), weights.shape)

    def predict(self, pixels: Floats) -> list[Floats]:
        """Return the input of each layer, and last the logits."""
        values = [pixels]
        for index, (weights, biases) in enumerate(self._layers, 1):
            value = values[-1] @ weights + biases
            values.append(value if index == len(self._layers) else np.tanh(value))
        return values

    def learn(self, batch: Digits) -> float:
        """Set the gradients to those of the batch's mean loss; return that loss."""
        *inputs, logits = self.predict(batch.pixels)
        logits = logits - logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(batch))
        loss = -np.log(chances[rows, batch.labels] + np.float32(1e-12)).mean()
        slope = chances
        slope[rows, batch.labels] -= 1
        slope /= np.float32(len(batch))
        for index in reversed(range(len(self._layers))):
            weight_gradients, bias_gradients = self._layer_gradients[index]
            np.matmul(inputs[index].T, slope, out=weight_gradients)
            np.sum(slope, axis=0, out=bias_gradients)
            slope = (slope @ self._layers[index][0].T) * (1 - inputs[index] ** 2)
        return float(loss)

    def accuracy(self, digits: Digits) -> float:
        return float((self.predict(digits.pixels)[-1].argmax(axis=1) == digits.labels).mean())


def layer_views(flat: Floats) -> "Iterator[tuple[Floats, Floats]]":
    """Cut the flat array into the weights (inputs, outputs) and biases of each layer."""
    start = 0
    for inputs, outputs in pairwise(LAYERS):
        middle, stop = start + inputs * outputs, start + inputs * outputs + outputs
        yield flat[start:middle].reshape(inputs, outputs), flat[middle:stop]
        start = stop


def load() -> tuple[Digits, Digits]:
    """Return the digits to train with and those to test with, the same on every rank."""
    pixels, labels = load_digits(return_X_y=True)
    digits = Digits((pixels / 16).astype(np.float32), labels.astype(np.int64))
    order = np.random.default_rng(0).permutation(len(digits))
    return digits.rows(order[TEST_ROWS:]), digits.rows(order[:TEST_ROWS])


def train(
    network: Network,
    digits: Digits,
    *,
    batch: int,
    share: slice,
    average: Callable[[Floats], object],
    report: Callable[[int, float, float], None],
) -> None:
    """Train by gradient descent with momentum.

    Of every global batch of `batch` rows this rank computes on the rows in `share`; `average`
    replaces an array by its mean over the ranks, which is the mean over the batch because all
    shares are equal. `report` gets the epoch, its mean loss, and samples per second.
    """
    velocity = np.zeros_like(network.parameters)
    random = np.random.default_rng(1)  # the same order on every rank
    steps = len(digits) // batch  # an incomplete last batch is left out
    for epoch in range(1, EPOCHS + 1):
        began = time.perf_counter()
        order = random.permutation(len(digits))[: steps * batch].reshape(steps, batch)
        losses = np.zeros(1, np.float32)
        for rows in order:
            losses += network.learn(digits.rows(rows[share]))
            average(network.gradients)
            velocity *= np.float32(MOMENTUM)
            velocity += network.gradients
            network.parameters -= np.float32(LEARNING_RATE) * velocity
        average(losses)
        seconds = time.perf_counter() - began
        report(epoch, float(losses[0]) / steps, steps * batch / seconds)


def digest(parameters: Floats) -> bytes:
    return hashlib.sha256(parameters.tobytes()).digest()


def main() -> int:
    ah.init_process_group()
    rank, size = ah.get_rank(), ah.get_world_size()
    training, test = load()

    # Every rank begins with weights of its own, so that nothing works unless the broadcast does.
    network = Network(seed=100 + rank)
    ah.broadcast(network.parameters, src=0)

    per_rank = max(BATCH // size, 1)
    if rank == 0:
        print(f"{size} ranks, {per_rank} rows each of every batch of {per_rank * size}")

    def report(epoch: int, loss: float, rate: float) -> None:
        if rank == 0:
            print(f"epoch {epoch:2}  loss {loss:.4f}  {rate:7,.0f} samples/s")

    train(
        network,
        training,
        batch=per_rank * size,
        share=slice(rank * per_rank, (rank + 1) * per_rank),
        average=lambda array: ah.all_reduce(array, op=ah.ReduceOp.AVG),
        report=report,
    )

    own = np.frombuffer(digest(network.parameters), np.uint8).copy()
    digests = [np.empty_like(own) for _ in range(size)]
    ah.all_gather(digests, own)
    faults = []
    if any((other != own).any() for other in digests):
        faults.append(f"rank {rank}: the ranks hold different weights")
    if rank == 0:
        print(ah.status())
    ah.barrier()  # nobody leaves before the status is shown
    ah.destroy_process_group()
    if rank == 0:  # after the barrier: nobody waits while rank 0 trains alone
        faults += judge(network, training, test, per_rank * size)
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


def judge(network: Network, training: Digits, test: Digits, batch: int) -> list[str]:
    """Show the results on rank 0; return what is wrong with them."""
    faults = []
    accuracy = network.accuracy(test)
    print(f"test accuracy {accuracy:.4f}")
    if accuracy < LEAST_ACCURACY:
        faults.append(f"the accuracy is below {LEAST_ACCURACY}")
    print(f"weights {digest(network.parameters).hex()[:16]}")

    alone = Network(seed=100)
    train(
        alone,
        training,
        batch=batch,
        share=slice(None),
        average=lambda array: None,
        report=lambda epoch, loss, rate: None,
    )
    difference = float(np.abs(network.parameters - alone.parameters).max())
    tolerance = rounding_tolerance(alone.parameters, EPOCHS * (len(training) // batch))
    print(
        f"largest difference from training in one process {difference:.2g} "
        f"(tolerance {tolerance:.2g})"
    )
    if not difference <= tolerance:
        faults.append("the weights are not those of training in one process")
    return faults


def rounding_tolerance(parameters: Floats, steps: int) -> float:
    """Return how far two trainings may part that differ in rounding only.

    Sums of gradients in another order differ in the last bits, so that a step may move a weight
    by one unit in its last place more in one training than in the other: at most eps times the
    largest weight. That adds up to this only if all steps err in the same direction; with errors
    of either sign the trainings stay about a hundred times closer.
    """
    return steps * float(np.finfo(np.float32).eps) * float(np.abs(parameters).max())


if __name__ == "__main__":
    sys.exit(main())
