"""Train with DistributedDataParallel while ranks are killed: those that are left go on at once.

    allhands run -n 4 --min-size 1 examples/torch/recover.py
    allhands run -n 4 --min-size 1 examples/torch/recover.py --kill 40:1 --kill 80:2

Where `--kill STEP:RANK` says so, the process that has that rank then kills itself with SIGKILL;
`kill -9 PID` from outside does the same. No process is started again. Every step, the ranks that
there are share one batch of the same rows, so that the training depends on how many they are in its
rounding only: at the end it is compared with the same training by one process.
"""

import argparse
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import allhands.torch

ROWS, FEATURES, BATCH = 4096, 16, 48
LARGEST_DIFFERENCE = 1e-4


class Training:
    """A network, its optimizer, and how many steps they have made."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.step = 0
        generator = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(ROWS, FEATURES, generator=generator)
        self.targets = (self.inputs[:, :2].prod(1) + self.inputs[:, 2].sin())[:, None]

    def learn(self, model: nn.Module, rank: int, size: int) -> None:
        """Make a step with this rank's share of its rows."""
        first = self.step * BATCH % (ROWS - BATCH)
        share = slice(first + rank, first + BATCH, size)
        errors = (model(self.inputs[share]) - self.targets[share]).square()
        # The ranks' gradients are averaged: so that is the mean of all rows, however uneven.
        loss = errors.sum() * size / BATCH
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1

    def loss(self) -> float:
        """Return the loss of all rows."""
        with torch.no_grad():
            return float((self.network(self.inputs) - self.targets).square().mean())

    def agree(self) -> None:
        """Take over what the rank has that came furthest: some may have made a step more."""
        steps: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(steps, self.step)
        furthest = steps.index(max(steps))
        state = [self.network.state_dict(), self.optimizer.state_dict(), self.step]
        dist.broadcast_object_list(state, src=furthest)
        self.network.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.step = state[2]


def train(training: Training, steps: int, kills: dict[int, int]) -> None:
    model: nn.Module | None = None
    while training.step < steps:
        try:
            if model is None:
                training.agree()
                rank, size = dist.get_rank(), dist.get_world_size()
                print(f"step {training.step}: rank {rank} of {size}, pid {os.getpid()}", flush=True)
                model = DistributedDataParallel(training.network)
            if kills.get(training.step) == dist.get_rank():
                os.kill(os.getpid(), signal.SIGKILL)
            training.learn(model, rank, size)
            if rank == 0 and training.step % 20 == 0:
                print(f"step {training.step}: loss {training.loss():.4f}", flush=True)
        except RuntimeError:
            # From backward() it is no PeerFailed: C++ has lost the class.
            if allhands.torch.failure() is None:
                raise
            model = None
            kills.pop(training.step, None)
            allhands.torch.recover()


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on through losses of ranks.")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--kill", action="append", metavar="STEP:RANK", default=None)
    options = parser.parse_args()
    given = [one.split(":") for one in options.kill or ["40:1", "80:1"]]
    kills = {int(step): int(rank) for step, rank in given}

    dist.init_process_group("allhands", timeout=timedelta(seconds=60))
    training, alone = Training(), Training()
    train(training, options.steps, kills)
    difference = 0.0
    if dist.get_rank() == 0:
        while alone.step < options.steps:
            alone.learn(alone.network, 0, 1)
        for mine, its in zip(
            training.network.parameters(), alone.network.parameters(), strict=True
        ):
            difference = max(difference, float((mine - its).detach().abs().max()))
        print(
            f"{training.step} steps, {dist.get_world_size()} ranks are left; "
            f"parameters differ from those of one process by {difference:.1e} at most"
        )
    dist.destroy_process_group()
    return 0 if difference < LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
