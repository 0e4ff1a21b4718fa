"""Train a network on handwritten digits with each compressing hook, and compare what they cost.

    allhands run -n 4 examples/compression.py
    allhands run -n 4 examples/compression.py int8 top_k

The digits and the network are those of digits.py. Each training begins with the same weights; only
the way in which gradients are averaged differs. The table has the accuracy on 360 digits that were
not trained with, and the bytes per step: those of the arrays handed to collectives, as the flight
recorder has them, and those that a rank then sends by the algorithms that send least.

Compression may learn later what it learns as well: after 12 epochs instead of 20, `top_k` is up to
four points behind, depending on the first weights. Exit status 1: a hook has lost more than one
point of accuracy against `allreduce`, or the ranks have ended with different weights.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import digits  # which sets the number of threads before NumPy is imported
import numpy as np

import allhands as ah

EPOCHS = 20
MOST_LOST = 0.01
"""Of the accuracy."""


@dataclass(frozen=True, slots=True)
class Way:
    """How gradients are averaged in one training."""

    hook: Callable[[Any, ah.GradBucket], Any]
    state: Any = None
    averager: ah.hooks.PeriodicModelAverager | None = None
    """Brings the parameters together again that the hook lets part."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a training on one rank."""

    accuracy: float
    loss: float
    """Mean over the last epoch, of this rank's rows."""
    handed: float
    """Bytes given to collectives per step."""
    sent: float
    """Bytes sent to other ranks per step."""
    weights: bytes
    """Digest of those in the end."""


def post_local_sgd() -> Way:
    """Average gradients over halves of the world after 100 steps, parameters in every 8 then."""
    size = ah.get_world_size()
    halves = [range(size)] if size == 1 else [range(size // 2), range(size // 2, size)]
    groups = [ah.new_group(list(ranks)) for ranks in halves]  # every rank makes both
    mine = next(one for one in groups if isinstance(one, ah.Group))
    return Way(
        ah.hooks.post_local_sgd,
        ah.hooks.PostLocalSGDState(subgroup=mine, start_iteration=100),
        ah.hooks.PeriodicModelAverager(period=8, warmup_steps=100),
    )


WAYS: dict[str, Callable[[], Way]] = {
    "allreduce": lambda: Way(ah.hooks.allreduce),
    "fp16_compress": lambda: Way(ah.hooks.fp16_compress),
    "bf16_compress": lambda: Way(ah.hooks.bf16_compress),
    "int8": lambda: Way(ah.hooks.int8, ah.hooks.Int8State()),
    "top_k": lambda: Way(ah.hooks.top_k, ah.hooks.TopKState(ratio=0.05)),
    "power_sgd": lambda: Way(ah.hooks.power_sgd, ah.hooks.PowerSGDState(rank=2)),
    "post_local_sgd": post_local_sgd,
}


def train(way: Way, epochs: int = EPOCHS, seed: int = 100) -> Outcome:
    """Train on this rank's share of every batch."""
    rank, size = ah.get_rank(), ah.get_world_size()
    data, test = digits.load()
    network = digits.Network(seed)
    parameters, gradients = (
        [one for layer in digits.layer_views(flat) for one in layer]
        for flat in (network.parameters, network.gradients)
    )
    reducer = ah.Reducer(parameters)
    reducer.register_comm_hook(way.state, way.hook)
    velocity = np.zeros_like(network.parameters)
    random = np.random.default_rng(1)  # the same order on every rank
    per_rank = max(digits.BATCH // size, 1)
    share = slice(rank * per_rank, (rank + 1) * per_rank)
    steps = len(data) // (per_rank * size)
    groups = [ah.default_group(), getattr(way.state, "subgroup", None)]
    sizes = {group.name: group.size for group in groups if group is not None}
    handed = sent = loss = 0.0
    for _ in range(epochs):
        begun, loss = time.monotonic_ns(), 0.0
        order = random.permutation(len(data))[: steps * per_rank * size].reshape(steps, -1)
        for rows in order:
            loss += network.learn(data.rows(rows[share])) / steps
            for place in reversed(range(len(gradients))):
                reducer.mark_ready(place, gradients[place])
            reducer.wait()
            velocity *= np.float32(digits.MOMENTUM)
            velocity += network.gradients
            network.parameters -= np.float32(digits.LEARNING_RATE) * velocity
            if way.averager is not None:
                way.averager.average_parameters(parameters)
        calls = [one for one in ah.flight_recorder() if one.created >= begun]
        handed += sum(one.nbytes for one in calls)
        sent += sum(sent_by(one, sizes[one.group]) for one in calls)
    if way.averager is not None:
        ah.all_reduce(network.parameters, ah.ReduceOp.AVG)  # the last steps were local
    count = epochs * steps
    weights = digits.digest(network.parameters)
    return Outcome(network.accuracy(test), loss, handed / count, sent / count, weights)


def sent_by(call: ah.OperationRecord, size: int) -> float:
    """Return the bytes that each of so many ranks sends for a call, by what sends least."""
    match call.operation:
        case "all_reduce":  # the shares of others, then the sum of its own to them
            return call.nbytes * 2 * (size - 1) / size
        case "all_to_all_single":  # all but its own row
            return call.nbytes * (size - 1) / size
        case "all_gather_into_tensor":  # its own block to every other rank
            return float(call.nbytes * (size - 1))
    raise AssertionError(f"no hook calls {call.operation}")


def main(names: list[str]) -> int:
    if unknown := set(names) - WAYS.keys():
        print(f"there are {', '.join(WAYS)}, not {', '.join(unknown)}", file=sys.stderr)
        return 2
    ah.init_process_group()
    faults: list[str] = []
    plain: Outcome | None = None
    if ah.get_rank() == 0:
        print(f"{ah.get_world_size()} ranks, {EPOCHS} epochs")
        print("hook             accuracy    loss  bytes/step handed    sent  of allreduce")
    for name in ["allreduce", *(one for one in names or WAYS if one != "allreduce")]:
        found = train(WAYS[name]())
        plain = plain or found
        own = np.frombuffer(found.weights, np.uint8)
        all_weights = np.empty((ah.get_world_size(), own.size), np.uint8)
        ah.all_gather_into_tensor(all_weights, own)
        if (all_weights != own).any():
            faults.append(f"{name}: the ranks hold different weights")
        if found.accuracy < plain.accuracy - MOST_LOST:
            faults.append(f"{name}: accuracy {found.accuracy:.4f}, {plain.accuracy:.4f} without it")
        if ah.get_rank() == 0:
            share = found.sent / plain.sent if plain.sent else 1.0
            print(
                f"{name:16} {found.accuracy:8.4f}  {found.loss:.4f}  {found.handed:17,.0f} "
                f"{found.sent:7,.0f}  {share:11.1%}"
            )
    ah.destroy_process_group()
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
