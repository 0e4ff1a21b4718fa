"""Train on handwritten digits while ranks are killed and others come; see digits.py for the model.

    allhands serve &
    export ALLHANDS_URL=ah://127.0.0.1:7070/digits
    allhands run -n 4 --min-size 1 examples/elastic.py
    allhands run -n 1 examples/elastic.py            # after "step 0": one more rank
    kill -9 PID                                      # of any rank: one less

ELASTIC_STEP_SECONDS=0.05 leaves time for that. Every step, the present ranks share one batch of the
same rows, so that the training depends on their number in its rounding only. Exit status 1: the
accuracy is too low.
"""

import os
import sys
import time

import numpy as np
from digits import BATCH, LEARNING_RATE, MOMENTUM, Digits, Floats, Network, load

import allhands as ah

EPOCHS = int(os.environ.get("ELASTIC_EPOCHS", "20"))
STEP_SECONDS = float(os.environ.get("ELASTIC_STEP_SECONDS", "0"))
"""How long a step takes at least: for who wants to have time to kill a rank."""
COMMIT_EVERY = 5
LEAST_ACCURACY = 0.95


def batch(training: Digits, step: int) -> Digits:
    """Return the rows of a step, the same whoever asks."""
    steps = len(training) // BATCH
    order = np.random.default_rng(step // steps).permutation(len(training))
    start = step % steps * BATCH
    return training.rows(order[start : start + BATCH])


def main() -> int:
    ah.init_process_group(timeout=60, on_failure="shrink", max_size=64, heartbeat_window=2)
    training, test = load()
    network = Network(seed=1)
    state = ah.State(
        parameters=network.parameters,
        velocity=np.zeros_like(network.parameters),
        step=0,
    )
    steps = EPOCHS * (len(training) // BATCH)

    def train(state: ah.State) -> None:
        seen = 0
        while state.step < steps:
            rank, size = ah.get_rank(), ah.get_world_size()
            if size != seen:
                print(f"step {state.step}: rank {rank} of {size}, pid {os.getpid()}", flush=True)
                seen = size
            rows = batch(training, state.step)
            share = rows.rows(np.arange(rank, len(rows), size))
            network.learn(share)
            network.gradients *= len(share)  # sums of rows: they may be shared unevenly
            counted = np.append(network.gradients, np.float32(len(share)))
            ah.all_reduce(counted)
            velocity: Floats = state.velocity
            velocity *= np.float32(MOMENTUM)
            velocity -= np.float32(LEARNING_RATE) * counted[:-1] / counted[-1]
            network.parameters += velocity
            state.step += 1
            if state.step % COMMIT_EVERY == 0:
                state.commit()
            time.sleep(STEP_SECONDS)

    state.run(train)
    accuracy = network.accuracy(test)
    if ah.get_rank() == 0:
        print(f"accuracy {accuracy:.3f} after {state.step} steps, {ah.get_world_size()} ranks")
    ah.destroy_process_group()
    return 0 if accuracy >= LEAST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
